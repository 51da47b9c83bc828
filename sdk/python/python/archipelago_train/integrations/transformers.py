"""A learner in the `Trainer` of transformers, and in the trainers of TRL, which are built on it.

from archipelago_train.integrations.transformers import ArchipelagoCallback

ArchipelagoCallback("ws://HOST:7700").attach(trainer)
trainer.train()
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .._learner import Learner

# Label of a token that is no target.
_IGNORED = -100


class ArchipelagoCallback(TrainerCallback):
    """Makes the trainer's process, or all processes of its group, one learner of a run.

    The learner trains on the trainer's own data, with its optimiser and its schedule. The run replaces the model's
    parameters when training begins, and changes them between two steps. Training ends when the run is complete.

    Args:
        url: The syncer's address, such as ws://HOST:7700, or a link to the run's page.
        follow_schedule: Whether the optimiser follows the learning rate of the run instead of the trainer's.
        options: Further arguments of `Learner`, such as `name` and `identity`.

    Attributes:
        learner: The learner while training goes on, else None.
    """

    def __init__(self, url: str, *, follow_schedule: bool = False, **options: Any) -> None:
        self.learner: Learner | None = None
        self._url = url
        self._follows = follow_schedule
        self._options = options
        self._hook: Any = None
        self._reset()

    def attach(self, trainer: Trainer) -> ArchipelagoCallback:
        """Adds this callback before the trainer's loggers, so that they log the learner's report too.

        `trainer.add_callback` adds it after them; then the logs lack the report, and all else is the same.
        """
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Joins the run and loads its parameters into the model.

        Raises:
            ArchipelagoError: As `Learner`.
        """
        model = kwargs["model"]
        group = dist.group.WORLD if dist.is_initialized() and dist.get_world_size() > 1 else None
        params = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        self.learner = Learner(self._url, params, group=group, **self._options)
        self._hook = model.register_forward_hook(self._note, with_kwargs=True)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sets the learning rate of the run's schedule."""
        if self._follows and self.learner is not None and self.learner.learning_rate > 0:
            for group in kwargs["optimizer"].param_groups:
                group["lr"] = self.learner.learning_rate

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Reports the step, and applies the run's changes.

        Raises:
            ArchipelagoError: As `Learner.step`.
            ValueError: The model returned no loss.
        """
        if self.learner is None:
            return
        if not self._tokens:
            raise ValueError(
                "the model returned no loss, so the run cannot count this step: give it labels, or use Learner in a "
                "loop of your own"
            )
        loss = float(self._loss_sum) / max(self._targets, 1)
        tokens = self._tokens
        self._reset()
        if not self.learner.step(loss, tokens):
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds the learner's report to what is logged."""
        if self.learner is None or logs is None or not state.is_world_process_zero:
            return
        report = self.learner.report
        logs.update(
            {
                "archipelago/updates_merged": report.updates_merged,
                "archipelago/updates_late": report.updates_late,
                "archipelago/updates_refused": report.updates_refused,
                "archipelago/tokens_merged": report.tokens_merged,
                "archipelago/run_tokens": report.clock_tokens,
                "archipelago/sync_ratio": report.sync_ratio,
            }
        )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sends the last progress and leaves."""
        if self._hook is not None:
            self._hook.remove()
        if self.learner is not None:
            self.learner.close()
        self._hook = self.learner = None

    def _reset(self) -> None:
        self._loss_sum: Any = 0.0
        self._targets = 0
        self._tokens = 0

    def _note(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Adds a forward pass of training to the step's sums. A step has several with gradient accumulation."""
        loss = output.get("loss") if isinstance(output, dict) else None
        labels = kwargs.get("labels")
        if not model.training or loss is None or labels is None:
            return
        targets = int((labels[..., 1:] != _IGNORED).sum())
        # The trainer passes the targets of the whole step if the model divides by them.
        items = kwargs.get("num_items_in_batch")
        self._loss_sum = self._loss_sum + loss.detach().float() * (targets if items is None else items)
        self._targets += targets
        mask = kwargs.get("attention_mask")
        self._tokens += labels.numel() if mask is None or mask.dim() != 2 else int(mask.sum())
