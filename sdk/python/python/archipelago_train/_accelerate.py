"""A learner in a loop of accelerate."""

from __future__ import annotations

from typing import Any

from ._learner import Learner


def prepare(accelerator: Any, model: Any, url: str, **options: Any) -> Learner:
    """Makes the processes of an accelerator one learner; call it after `accelerator.prepare`.

    Args:
        accelerator: The `accelerate.Accelerator`.
        model: The prepared model. Its trainable parameters are exchanged.
        url: The syncer's address, such as ws://HOST:7700, or a link to the run's page.
        options: Further arguments of `Learner`, such as `name` and `identity`.

    Returns:
        The learner. All processes call its `step` after each step of the optimiser.

    Raises:
        ArchipelagoError: As `Learner`.
    """
    group = None
    if accelerator.num_processes > 1:
        import torch.distributed as dist

        group = dist.group.WORLD
    inner = accelerator.unwrap_model(model)
    params = [(name, param) for name, param in inner.named_parameters() if param.requires_grad]
    return Learner(url, params, group=group, **options)
