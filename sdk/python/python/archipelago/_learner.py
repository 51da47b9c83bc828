"""The learner: takes part in a run between the steps of a program's own training."""

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
from typing import Any, Self, SupportsFloat

import numpy as np
import numpy.typing as npt

from . import _native
from ._errors import KINDS, CompleteError
from ._tensors import Params, by_name, describe, hold, is_torch

_log = logging.getLogger("archipelago")

# How long to look for news at once, in seconds: Ctrl+C is seen in between.
_WAIT_S = 0.1
# The label of a token that is not learnt, as PyTorch's `ignore_index` has it.
_IGNORED = -100
# How long to wait for a polite end at most, in seconds: longer than the loop takes for it.
_LEAVE_S = 20.0


@dataclass(frozen=True)
class Report:
    """How things stand with a learner.

    Attributes:
        doing: What it is doing: connecting, joining, starved, held, training, paused or leaving.
        offline: Why there is no connection, or None if there is one.
        steps: Steps done.
        tokens_trained: Tokens trained on.
        tokens_merged: Tokens that were merged, the mean over fragments.
        tokens_unsettled: Tokens that the syncer has got and has not merged yet, the mean over fragments.
        updates_merged: Updates that were merged.
        updates_late: Updates that came too late.
        updates_refused: Updates that were refused.
        clock_tokens: Merged tokens of the whole run that count for its schedule, as last heard.
        sync_ratio: The share of its time that training waited for this package, 0 to 1, since the first batch.
        sent_bytes: Bytes of payload sent.
        received_bytes: Bytes of payload received.
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


@dataclass(frozen=True)
class _Batch:
    """What is trained on."""

    id: int
    tokens: Any


class Learner:
    """Takes part in a run with the parameters of a model, which it changes in place between two steps.

    Making it joins the run and fills the parameters with the run's. Training goes on while the connection is gone, and
    what was trained is merged later. With the same `identity` the run knows it again when the program is started anew.

    Args:
        url: The syncer's address, such as ws://HOST:7700, or a link to the run's page.
        params: The tensors that are trained, by name: NumPy arrays, or PyTorch tensors on any device, as
            `model.named_parameters()` gives them. For the built-in decoder the names are those of Hugging Face's Llama.
            Prefixes that `torch.compile`, DDP and FSDP add to names make no difference.
        name: What people call it; by default as this machine.
        identity: The file of its key, made if it is not there; by default one of this user's for this syncer.
        batch: Windows of a batch, 1 to 4096; by default as many as the run says.
        evaluate: Measures the held-out loss, if the run's owner trusts this learner with that (`evaluator` of `serve`).
            It is called between two steps, with the parameters that the run has, by name, as arrays or tensors of
            their own, with held-out windows as `batches` gives them, and with their labels as `labels` gives them; it
            returns the mean loss of what is learnt in nats per token, and leaves the model as it is.
        contact_s: How long to try to be taken in at first, in seconds.

    Raises:
        DtypeError: A tensor is not of floating-point numbers.
        LayoutError: The tensors are not those of the run, or one cannot be changed in place.
        CompleteError: The run is complete; the parameters are as they were.
        UnreachableError: No run answers within `contact_s`.
        RefusedError: The run does not take this learner.
        TypeError: The parameters have no names, or one is neither an array nor a tensor.
        ValueError: The address or the batch makes no sense.
        OSError: The key's file cannot be used.
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
    ) -> None:
        pairs = by_name(params)
        self._tensors = hold(pairs)
        first = next((tensor for _, tensor in pairs), None)
        self._model = first if is_torch(first) else None
        self._evaluate = evaluate
        self._batch: _Batch | None = None
        self._labels: npt.NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._learning_rate = 0.0
        self._is_over = False
        self._begun_s: float | None = None
        self._waited_s = 0.0
        self._link = _native.Link(
            url,
            [(tensor.name, tensor.shape) for tensor in self._tensors],
            name=name or platform.node() or "python",
            device=describe(tensor for _, tensor in pairs),
            identity=None if identity is None else os.fspath(identity),
            batch=batch,
            contact_s=contact_s,
            measures=evaluate is not None,
        )
        try:
            while not self._is_over and not self._link.is_loaded():
                self._take(_WAIT_S)
            if not self._link.is_loaded():
                raise CompleteError(
                    f"the run at {url} is complete and takes in nobody any more, so the parameters are as they were: "
                    "take its model home with archipelago.export from its folder, or from its page"
                )
            # What was loaded may lie there still.
            self._do_all()
        except BaseException:
            self._link.let_go()
            raise

    def batches(self) -> Iterator[Any]:
        """Batches to train on, until the run is complete or this learner was closed; call `step` after each.

        Yields:
            Tokens, `[windows, context + 1]`, as int64: a PyTorch tensor on the device of the first parameter if that is
            one, else a NumPy array. Each token but the last of a window is an input, and the next one its target,
            unless the run's text has it as given: `labels` says which are to be learnt.
        """
        while self._await_batch():
            batch = self._batch
            assert batch is not None
            yield batch.tokens
            if self._batch is batch:
                raise RuntimeError("call step() after each batch, so that the run knows of it")

    def step(self, loss: SupportsFloat, tokens: int | None = None) -> bool:
        """Says that a step was taken, and does to the parameters what the run asks for. Never waits for the network.

        A program with data of its own calls it after each step without `batches`. Then it waits while the run's owner
        holds the run, and while the run leases no data.

        Args:
            loss: The mean loss of the step over what is learnt, in nats per token, as a number or a tensor of one. In a
                batch without anything to be learnt it does not matter, and may be no number.
            tokens: Tokens trained on; by default those of the batch, given ones among them, which is also the most that
                counts.

        Returns:
            Whether the run goes on.

        Raises:
            NotFiniteError: The loss or a parameter is not finite; see there how to go on.
            RefusedError: The run sent this learner away.
        """
        mean = _number(loss)
        begun_s = time.perf_counter()
        try:
            if self._batch is None and not self._await_batch():
                return False
            assert self._batch is not None
            batch, self._batch = self._batch, None
            self._raise(self._link.done(batch.id, mean, tokens))
            self._do_all()
        finally:
            self._waited_s += time.perf_counter() - begun_s
        return not self._is_over

    @property
    def labels(self) -> Any:
        """What is to be learnt of the newest batch, `[windows, context]`, as int64, of the kind that `batches` yields.

        It is the token after each input, or −100 where that is given and not learnt, as the questions of a run of
        conversations are: the `ignore_index` of PyTorch, and the only label below 0. Take it before `step`, which may
        fetch the next batch. Before the first batch it is empty.
        """
        return self._like_model(self._labels)

    @property
    def learning_rate(self) -> float:
        """The rate of the run's schedule for the newest batch, for an optimiser that follows it."""
        return self._learning_rate

    @property
    def is_over(self) -> bool:
        """Whether the run is complete or this learner was closed."""
        return self._is_over

    @property
    def report(self) -> Report:
        """How things stand, at most half a second old."""
        told = json.loads(self._link.report() or "{}")
        names = [name for name in Report.__dataclass_fields__ if name not in ("sync_ratio", "offline", "doing")]
        begun_s = time.perf_counter() if self._begun_s is None else self._begun_s
        return Report(
            doing=told.get("doing", "connecting"),
            offline=(told.get("offline") or {}).get("reason"),
            sync_ratio=self._waited_s / max(time.perf_counter() - begun_s, 1e-9),
            **{name: told.get(_camel(name), 0) for name in names},
        )

    def close(self) -> None:
        """Hands in what was trained and leaves politely; takes a few seconds. Once is enough."""
        self._link.leave()
        until_s = time.perf_counter() + _LEAVE_S
        try:
            while not self._is_over and time.perf_counter() < until_s:
                self._take(_WAIT_S)
        finally:
            self._is_over = True
            self._link.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error of the program nobody knows what its parameters are worth.
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self.close()
        else:
            self._is_over = True
            self._link.let_go()

    def _await_batch(self) -> bool:
        """Does what is asked for until there is a batch; whether there is."""
        begun_s = time.perf_counter()
        while self._batch is None and not self._is_over:
            self._take(_WAIT_S)
        if self._begun_s is None:
            self._begun_s = time.perf_counter()
        else:
            self._waited_s += time.perf_counter() - begun_s
        return self._batch is not None

    def _do_all(self) -> None:
        """Does all that lies there, up to the next batch."""
        while self._batch is None and not self._is_over and self._take(0.0):
            pass

    def _take(self, wait_s: float) -> bool:
        """Does one order that comes within wait_s; whether there was one."""
        order = self._link.next(wait_s)
        for is_warning, text in self._link.notes():
            _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
        self._raise(order)
        match order:
            case ("read", id, parts):
                self._link.give(id, [self._tensors[tensor].read(start, stop) for tensor, start, stop in parts])
            case ("change", kept, values, parts):
                flat, at = np.frombuffer(values, np.float32), 0
                for tensor, start, stop in parts:
                    self._tensors[tensor].change(start, stop, kept, flat[at : at + stop - start])
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

    def _measure(
        self,
        id: int,
        values: bytes,
        parts: list[tuple[int, int, int]],
        windows: npt.NDArray[np.int64],
        labels: npt.NDArray[np.int64],
    ) -> None:
        """Has the program measure these parameters; what it raises is the program's to hear, after the run."""
        flat, at = np.frombuffer(values, np.float32), 0
        # A tensor may come in parts.
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
        """An array as the program has its tensors, of the same numbers."""
        if self._model is None:
            return array
        import torch

        return torch.from_numpy(array).to(self._model.device)

    def _raise(self, told: tuple[Any, ...] | None) -> None:
        if told is not None and told[0] == "fault":
            _, kind, sentence = told
            raise KINDS[kind](sentence)


def _told_apart(tokens: bytes, windows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ids `[windows, context + 1]` and labels `[windows, context]` of tokens that are marked where they are given."""
    marked = np.frombuffer(tokens, "<u4").astype(np.int64).reshape(windows, -1)
    targets = marked[:, 1:]
    return marked & (_native.GIVEN - 1), np.where(targets < _native.GIVEN, targets, _IGNORED)


def _number(loss: SupportsFloat) -> float:
    # A tensor that has a gradient warns of being made a number.
    detach = getattr(loss, "detach", None)
    return float(loss if detach is None else detach())


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)
