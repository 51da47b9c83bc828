"""Several processes as one learner.

Rank 0 speaks to the syncer. All ranks apply the same changes at the same step.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ._errors import LayoutError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class Link(Protocol):
    """The connection of a learner, as `_native.Link` has it."""

    def next(self, wait_s: float) -> tuple[Any, ...]:
        """Returns the next order, or an empty tuple after wait_s seconds."""

    def done(self, id: int, loss: float, tokens: int | None) -> tuple[Any, ...] | None:
        """Reports a step; returns a fault or None."""

    def give(self, id: int, parts: list[Any]) -> None:
        """Answers the order to read."""

    def measured(self, id: int, loss: float | None) -> None:
        """Answers the order to measure."""

    def is_loaded(self) -> bool:
        """Whether the parameters of the run were loaded."""

    def notes(self) -> list[tuple[bool, str]]:
        """Returns lines for the log, and whether each is a warning."""

    def report(self) -> str | None:
        """Returns the newest report as JSON."""

    def leave(self) -> None:
        """Begins to leave the run."""

    def let_go(self) -> None:
        """Drops the connection."""


class GroupLink:
    """The link of a rank in a process group. All ranks call its methods in the same order.

    Args:
        group: The process group.
        layout: Names and shapes of this rank's tensors.
        connect: Opens the connection; called on rank 0 only.
        part: Which part of each batch this rank trains on, and the number of parts; by default its rank and their
            number.

    Raises:
        ValueError: There is no such part, or the ranks cannot have equally many each.
        LayoutError: The ranks have different tensors.
        Exception: What `connect` raised on rank 0, on each rank.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        layout: list[tuple[str, list[int]]],
        connect: Callable[[], Link],
        part: tuple[int, int] | None = None,
    ) -> None:
        import torch
        import torch.distributed as dist

        self._group = group
        self._rank: int = dist.get_rank(group)
        self._ranks: int = dist.get_world_size(group)
        self._part: int
        self.parts: int
        self._part, self.parts = part or (self._rank, self._ranks)
        if not 0 <= self._part < self.parts or self._ranks % self.parts:
            raise ValueError(
                f"data_part=({self._part}, {self.parts}) does not fit a group of {self._ranks} ranks: give (part, "
                "parts), with parts a divisor of the number of ranks"
            )
        self._first = dist.get_global_rank(group, 0)
        on_gpu = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self._is_loaded = False
        self._link: Link | None = None
        # Windows of the newest batch that not all ranks have.
        self.odd_windows = 0
        self._check(layout)
        fault = None
        if self._rank == 0:
            try:
                self._link = connect()
            except Exception as error:
                fault = error
        fault = self.share(fault)
        if fault is not None:
            raise fault

    def _check(self, layout: list[tuple[str, list[int]]]) -> None:
        """Compares the tensors of the ranks."""
        import torch.distributed as dist

        layouts: list[Any] = [None] * self._ranks
        dist.all_gather_object(layouts, layout, group=self._group)
        for rank, other in enumerate(layouts):
            for first, own in zip(layouts[0], other, strict=False):
                if first != own:
                    raise LayoutError(
                        f"rank {rank} of the group has tensor {own[0]} {own[1]} where rank 0 has {first[0]} "
                        f"{first[1]}: give all ranks the same parameters in the same order"
                    )
            if len(other) != len(layouts[0]):
                raise LayoutError(
                    f"rank {rank} of the group has {len(other)} tensors, but rank 0 has {len(layouts[0])}: give all "
                    "ranks the same parameters"
                )

    def share(self, value: Any) -> Any:
        """Returns the value of rank 0 on all ranks."""
        import torch
        import torch.distributed as dist

        body = pickle.dumps(value) if self._rank == 0 and value is not None else b""
        size = torch.tensor([len(body)], device=self._device)
        dist.broadcast(size, self._first, group=self._group)
        if not int(size):
            return None
        data = self._bytes(body, int(size))
        dist.broadcast(data, self._first, group=self._group)
        return value if self._rank == 0 else pickle.loads(data.cpu().numpy().tobytes())

    def _bytes(self, body: bytes, size: int) -> torch.Tensor:
        import torch

        if self._rank == 0:
            return torch.frombuffer(bytearray(body), dtype=torch.uint8).to(self._device)
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def next(self, wait_s: float) -> tuple[Any, ...]:
        """Returns the next order of rank 0 on all ranks, and each rank's part of a batch."""
        news = None
        if self._link is not None:
            order = self._link.next(wait_s)
            if order[0] != "nothing" or self._link.is_loaded() != self._is_loaded:
                news = (order, self._link.is_loaded())
        news = self.share(news)
        if news is None:
            return ("nothing",)
        order, self._is_loaded = news
        return self._own_part(*order) if order[0] == "step" else tuple(order)

    def _own_part(self, kind: str, id: int, tokens: bytes, windows: int, learning_rate: float) -> tuple[Any, ...]:
        """Returns the order of a step with this rank's windows only."""
        self.odd_windows = windows % self.parts
        window = len(tokens) // windows
        first, last = (windows * part // self.parts for part in (self._part, self._part + 1))
        return kind, id, tokens[first * window : last * window], last - first, learning_rate

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self._rank == 0

    def average(self, loss: float, targets: int, tokens: int | None) -> tuple[float, int | None]:
        """Returns the mean loss over the targets of all ranks, and the sum of their tokens, if a rank gave some."""
        import torch
        import torch.distributed as dist

        # A rank without targets may have no loss.
        sums = [loss * targets if targets else 0.0, targets, tokens or 0, tokens is not None]
        total = torch.tensor(sums, dtype=torch.float64, device=self._device)
        dist.all_reduce(total, group=self._group)
        loss_sum, count, all_tokens, are_given = total.tolist()
        # Ranks with the same part have the same tokens.
        all_tokens *= self.parts / self._ranks
        return loss_sum / count if count else 0.0, int(all_tokens) if are_given else None

    def done(self, id: int, loss: float, tokens: int | None) -> tuple[Any, ...] | None:
        """Reports a step; returns a fault or None."""
        fault: tuple[Any, ...] | None = None if self._link is None else self._link.done(id, loss, tokens)
        fault = self.share(fault)
        return fault

    def give(self, id: int, parts: list[Any]) -> None:
        """Answers the order to read, from rank 0."""
        if self._link is not None:
            self._link.give(id, parts)

    def measured(self, id: int, loss: float | None) -> None:
        """Answers the order to measure, from rank 0."""
        if self._link is not None:
            self._link.measured(id, loss)

    def is_loaded(self) -> bool:
        """Whether the parameters of the run were loaded."""
        return self._is_loaded

    def notes(self) -> list[tuple[bool, str]]:
        """Returns lines for the log on rank 0."""
        return self._link.notes() if self._link is not None else []

    def report(self) -> str | None:
        """Returns the newest report on rank 0."""
        return self._link.report() if self._link is not None else None

    def leave(self) -> None:
        """Begins to leave the run."""
        if self._link is not None:
            self._link.leave()

    def let_go(self) -> None:
        """Drops the connection."""
        if self._link is not None:
            self._link.let_go()
