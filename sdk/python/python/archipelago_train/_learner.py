"""The learner: takes part in a run between the steps of a program's own training loop."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

import numpy as np
import numpy.typing as npt

from . import _native
from ._errors import KINDS, CompleteError
from ._group import GroupLink, Link
from ._tensors import Params, by_name, describe, hold, is_torch

if TYPE_CHECKING:
    import torch.distributed as dist

_log = logging.getLogger("archipelago_train")

# Longest single wait for news, in seconds: Ctrl+C takes effect in between.
_WAIT_S = 0.1
# Label of a token that is not learnt, the default `ignore_index` of PyTorch.
_IGNORED = -100
# Longest wait for a graceful end, in seconds: longer than the loop needs for it.
_LEAVE_S = 20.0


@dataclass(frozen=True)
class Report:
    """State and counters of a learner.

    Attributes:
        doing: Current activity: connecting, joining, starved, held, training, paused or leaving.
        offline: Reason for a missing connection, or None while connected.
        steps: Steps taken.
        tokens_trained: Tokens trained on.
        tokens_merged: Tokens merged, averaged over fragments.
        tokens_unsettled: Tokens that the syncer has received and not yet merged, averaged over fragments.
        updates_merged: Updates merged.
        updates_late: Updates that arrived too late.
        updates_refused: Updates refused.
        clock_tokens: Merged tokens of the whole run that count for its schedule, as last reported.
        sync_ratio: Share of the time since the first batch that training waited for this package, 0 to 1.
        sent_bytes: Payload bytes sent.
        received_bytes: Payload bytes received.
    """

    doing: str
    offline: str | None
    steps: int
    tokens_trained: int
    tokens_merged: int
    tokens_unsettled: int
    updates_merged: int
    updates_late: int
    updates_refused: int
    clock_tokens: int
    sync_ratio: float
    sent_bytes: int
    received_bytes: int

    def as_dict(self) -> dict[str, float]:
        """Returns the numbers by name, in the same units, for a tracker: `doing` and `offline` are left out."""
        return {name: value for name, value in vars(self).items() if isinstance(value, (int, float))}


@dataclass(frozen=True)
class _Batch:
    """A batch to train on."""

    id: int
    tokens: Any


class Learner:
    """Trains a model in a run; changes its parameters in place between two steps.

    The constructor joins the run and loads its parameters into the model. Training continues while the connection is
    down, and the progress is merged later. After a restart with the same `identity` the run recognises the learner.

    Args:
        url: The syncer's address, such as ws://HOST:7700, or a link to the run's page.
        params: The tensors to train, by name: NumPy arrays, or PyTorch tensors on any device, as
            `model.named_parameters()` gives them. For the built-in decoder use the names of Hugging Face's Llama.
            Name prefixes from `torch.compile`, DDP and FSDP are ignored.
        name: Display name; by default this machine's name.
        identity: The key file, created if missing; by default one per user and syncer.
        batch: Windows in a batch, 1 to 4096; by default the run's.
        evaluate: Measures the held-out loss, if the run's owner trusts this learner with that (`evaluator` of `serve`).
            It is called between two steps with copies of the run's parameters by name, as arrays or tensors; with
            held-out windows in the form of `batches`; and with their labels in the form of `labels`. It returns the
            mean loss in nats per learnt token, and must leave the model unchanged.
        contact_s: Longest time to wait for the first admission, in seconds.
        group: The processes that are this learner together, such as `torch.distributed.group.WORLD`. All of them make
            the learner, with the same tensors, whole or sharded (DTensor), and call its methods at the same points of
            their loops. Rank 0 speaks to the syncer. The group shares a batch of `batch` windows in equal parts.
        data_part: In a group, which part of each batch this process trains on, and the number of parts: by default its
            rank and the number of ranks. With tensor parallelism, processes that train on the same windows give the
            same part.

    Raises:
        DtypeError: A tensor is not of floating-point numbers.
        LayoutError: The tensors do not match the run, or one cannot be changed in place.
        CompleteError: The run is complete; the parameters are unchanged.
        UnreachableError: No run answers within `contact_s`.
        RefusedError: The run refuses this learner.
        TypeError: The parameters have no names, or one is neither an array nor a tensor.
        ValueError: The address or the batch is invalid, or a group is to evaluate.
        OSError: The key file cannot be used.
    """

    def __init__(
        self,
        url: str,
        params: Params,
        *,
        name: str | None = None,
        identity: str | os.PathLike[str] | None = None,
        batch: int | None = None,
        evaluate: Callable[[dict[str, Any], Any, Any], SupportsFloat] | None = None,
        contact_s: float = 30.0,
        group: dist.ProcessGroup | None = None,
        data_part: tuple[int, int] | None = None,
    ) -> None:
        if group is not None and evaluate is not None:
            raise ValueError("a group of processes does not evaluate: make the evaluator a learner of its own")
        pairs = by_name(params)
        self._tensors = hold(pairs, group is not None)
        first = next((tensor for _, tensor in pairs), None)
        self._model = first if is_torch(first) else None
        self._evaluate = evaluate
        self._batch: _Batch | None = None
        self._labels: npt.NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._learning_rate = 0.0
        self._is_over = False
        self._begun_s: float | None = None
        self._waited_s = 0.0
        self._changed: set[str] = set()
        layout = [(tensor.name, tensor.shape) for tensor in self._tensors]

        def connect() -> Link:
            return _native.Link(
                url,
                layout,
                name=name or platform.node() or "python",
                device=describe(tensor for _, tensor in pairs),
                identity=None if identity is None else os.fspath(identity),
                batch=batch,
                contact_s=contact_s,
                measures=evaluate is not None,
            )

        self._group = None if group is None else GroupLink(group, layout, connect, data_part)
        self._link = self._group or connect()
        try:
            while not self._is_over and not self._link.is_loaded():
                self._take(_WAIT_S)
            if not self._link.is_loaded():
                raise CompleteError(
                    f"the run at {url} is complete and admits no more learners, so the parameters are unchanged: "
                    "take its model home with archipelago_train.export from its folder, or from its page"
                )
            # Loaded parameters may still be in the queue.
            self._do_all()
        except BaseException:
            self._link.let_go()
            raise

    def batches(self) -> Iterator[Any]:
        """Yields batches to train on until the run is complete or this learner is closed; call `step` after each.

        Yields:
            Tokens, `[windows, context + 1]`, as int64: a PyTorch tensor on the device of the first parameter if that is
            one, else a NumPy array. Each token but the last of a window is an input, and the next token is its target,
            unless the run's text marks it as given: `labels` has the tokens to learn. In a group, each process gets
            its own part of the batch.

        Raises:
            ValueError: The processes of a group cannot share the batch in equal parts.
        """
        while self._await_batch():
            batch = self._batch
            assert batch is not None
            if self._group is not None and self._group.odd_windows:
                parts = self._group.parts
                raise ValueError(f"a batch cannot be cut into {parts} equal parts: give batch={8 * parts}")
            yield batch.tokens
            if self._batch is batch:
                raise RuntimeError("call step() after each batch, so that the run counts it")

    def step(self, loss: SupportsFloat, tokens: int | None = None) -> bool:
        """Reports a step, and applies the run's pending changes to the parameters. Never waits for the network.

        A program with its own data calls it after each step without `batches`. It then waits while the run's owner
        holds the run, and while the run leases no data.

        Args:
            loss: The step's mean loss in nats per learnt token, as a number or a tensor of one element. Ignored, and
                allowed to be NaN, for a batch without tokens to learn.
            tokens: Tokens trained on, including given ones; by default those of the batch, which is also the most that
                counts. In a group, the tokens of this process.

        Returns:
            Whether the run continues.

        Raises:
            NotFiniteError: The loss or a parameter is not finite; the class describes how to continue.
            RefusedError: The run sent this learner away.
        """
        mean = _number(loss)
        begun_s = time.perf_counter()
        self._changed.clear()
        try:
            is_own_data = self._batch is None
            if self._batch is None and not self._await_batch():
                return False
            assert self._batch is not None
            batch, self._batch = self._batch, None
            if self._group is not None:
                targets = (tokens or 1) if is_own_data else int((self._labels >= 0).sum())
                mean, tokens = self._group.average(mean, targets, tokens)
            self._raise(self._link.done(batch.id, mean, tokens))
            self._do_all()
        finally:
            self._waited_s += time.perf_counter() - begun_s
        return not self._is_over

    @property
    def labels(self) -> Any:
        """The labels of the newest batch, `[windows, context]`, as int64, of the kind that `batches` yields.

        A label is the token after an input, or −100, PyTorch's `ignore_index`, if that token is given and not learnt,
        such as the questions in a run of conversations. No other label is below 0. Read it before `step`, which may
        fetch the next batch. It is empty before the first batch.
        """
        return self._like_model(self._labels)

    @property
    def changed(self) -> frozenset[str]:
        """Names of the parameters that the newest `step` changed; all of them after the constructor."""
        return frozenset(self._changed)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the run's schedule for the newest batch, for an optimiser that follows it."""
        return self._learning_rate

    @property
    def is_over(self) -> bool:
        """Whether the run is complete or this learner was closed."""
        return self._is_over

    @property
    def report(self) -> Report:
        """State and counters, at most half a second old. In a group, only rank 0 has counters."""
        told = json.loads(self._link.report() or "{}")
        names = [name for name in Report.__dataclass_fields__ if name not in ("sync_ratio", "offline", "doing")]
        begun_s = time.perf_counter() if self._begun_s is None else self._begun_s
        return Report(
            # The constructor returns once the learner has joined; the first report follows within half a second.
            doing=told.get("doing", "training"),
            offline=(told.get("offline") or {}).get("reason"),
            sync_ratio=self._waited_s / max(time.perf_counter() - begun_s, 1e-9),
            **{name: told.get(_camel(name), 0) for name in names},
        )

    def close(self) -> None:
        """Sends the last progress and leaves gracefully, which takes a few seconds. Idempotent.

        All processes of a group call it.
        """
        self._link.leave()
        until_s = time.perf_counter() + _LEAVE_S
        try:
            while not self._is_over and self._agreed(time.perf_counter() < until_s):
                self._take(_WAIT_S)
        finally:
            self._is_over = True
            self._link.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error in the program its parameters cannot be trusted.
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self.close()
        else:
            self._is_over = True
            self._link.let_go()

    def _agreed(self, value: bool) -> bool:
        """Returns rank 0's value in a group, since its processes read their clocks at different times."""
        return value if self._group is None else bool(self._group.share(value))

    def _await_batch(self) -> bool:
        """Carries out orders until there is a batch; returns whether there is one."""
        begun_s = time.perf_counter()
        while self._batch is None and not self._is_over:
            self._take(_WAIT_S)
        if self._begun_s is None:
            self._begun_s = time.perf_counter()
        else:
            self._waited_s += time.perf_counter() - begun_s
        return self._batch is not None

    def _do_all(self) -> None:
        """Carries out all queued orders, up to the next batch."""
        while self._batch is None and not self._is_over and self._take(0.0):
            pass

    def _take(self, wait_s: float) -> bool:
        """Carries out one order that arrives within wait_s; returns whether there was one."""
        order = self._link.next(wait_s)
        for is_warning, text in self._link.notes():
            _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
        self._raise(order)
        match order:
            case ("read", id, parts):
                self._give(id, parts)
            case ("change", kept, values, parts):
                flat, at = np.frombuffer(values, np.float32), 0
                for tensor, start, stop in parts:
                    self._tensors[tensor].change(start, stop, kept, flat[at : at + stop - start])
                    self._changed.add(self._tensors[tensor].name)
                    at += stop - start
            case ("measure", id, values, parts, tokens, windows):
                self._measure(id, values, parts, *_told_apart(tokens, windows))
            case ("step", id, tokens, windows, learning_rate):
                ids, self._labels = _told_apart(tokens, windows)
                self._batch = _Batch(id, self._like_model(ids))
                self._learning_rate = learning_rate
            case ("over",):
                self._is_over = True
            case _:
                return False
        return True

    def _give(self, id: int, parts: list[tuple[int, int, int]]) -> None:
        """Gives the values of these parts. In a group, the other ranks only help to gather sharded tensors."""
        gives = self._group is None or self._group.is_first
        held = [(self._tensors[tensor], start, stop) for tensor, start, stop in parts]
        self._link.give(id, [one.read(start, stop) for one, start, stop in held if gives or one.is_sharded])

    def _measure(
        self,
        id: int,
        values: bytes,
        parts: list[tuple[int, int, int]],
        windows: npt.NDArray[np.int64],
        labels: npt.NDArray[np.int64],
    ) -> None:
        """Lets the program measure these parameters; its exceptions propagate to the program."""
        flat, at = np.frombuffer(values, np.float32), 0
        # A tensor may arrive in parts.
        whole = [np.empty(math.prod(held.shape), np.float32) for held in self._tensors]
        for tensor, start, stop in parts:
            whole[tensor][start:stop] = flat[at : at + stop - start]
            at += stop - start
        pairs = zip(self._tensors, whole, strict=True)
        params = {held.name: self._like_model(array.reshape(held.shape)) for held, array in pairs}
        loss = None
        try:
            if self._evaluate is not None:
                loss = _number(self._evaluate(params, self._like_model(windows), self._like_model(labels)))
        finally:
            self._link.measured(id, loss)

    def _like_model(self, array: npt.NDArray[Any]) -> Any:
        """Returns the array as a tensor of the model's kind and device, with the same numbers."""
        if self._model is None:
            return array
        import torch

        return torch.from_numpy(array).to(self._model.device)

    def _raise(self, told: tuple[Any, ...] | None) -> None:
        if told is not None and told[0] == "fault":
            _, kind, sentence = told
            raise KINDS[kind](sentence)


def _told_apart(tokens: bytes, windows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Splits marked tokens into ids `[windows, context + 1]` and labels `[windows, context]`."""
    marked = np.frombuffer(tokens, "<u4").astype(np.int64).reshape(windows, -1)
    targets = marked[:, 1:]
    return marked & (_native.MASKED - 1), np.where(targets < _native.MASKED, targets, _IGNORED)


def _number(loss: SupportsFloat) -> float:
    # Converting a tensor that requires a gradient would emit a warning.
    detach = getattr(loss, "detach", None)
    return float(loss if detach is None else detach())


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)
