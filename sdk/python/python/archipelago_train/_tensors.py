"""The program's tensors, read and changed in place: NumPy arrays, and PyTorch tensors on any device.

Values are passed as 32-bit floats. A float32 array or CPU tensor is read and changed through a view; other tensors are
converted a fragment at a time.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ._errors import DtypeError, LayoutError

if TYPE_CHECKING:
    import torch

Floats: TypeAlias = npt.NDArray[np.float32]
Tensor: TypeAlias = "npt.NDArray[Any] | torch.Tensor"
Params: TypeAlias = "Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]"

_WIDTHS = "float32, float64, float16 or, in PyTorch, bfloat16"


class Held(Protocol):
    """One tensor of the program."""

    name: str
    shape: list[int]
    # Whether all ranks of its mesh must read together.
    is_sharded: bool

    def read(self, start: int, stop: int) -> Floats:
        """Returns the values from start to stop, flat and row-major: a view of a float32 tensor on the CPU."""

    def change(self, start: int, stop: int, kept: float, values: Floats) -> None:
        """Multiplies each value by kept and adds the new value."""


class _Array:
    """A NumPy array."""

    is_sharded = False

    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise DtypeError(f"tensor {name} is {array.dtype}: make it {_WIDTHS}, or leave it out")
        if not array.flags.writeable:
            raise LayoutError(f"tensor {name} cannot be written to: give a copy of it that can")
        if not array.flags.c_contiguous:
            raise LayoutError(f"tensor {name} is not contiguous: give np.ascontiguousarray of it, and train that")
        self.name, self.shape = name, list(array.shape)
        self._flat = array.reshape(-1)

    def read(self, start: int, stop: int) -> Floats:
        return np.asarray(self._flat[start:stop], np.float32)

    def change(self, start: int, stop: int, kept: float, values: Floats) -> None:
        _change(self._flat[start:stop], kept, values)


class _Torch:
    """A PyTorch tensor. Its storage is looked up on each access, since a module may be moved later."""

    is_sharded = False

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        if not tensor.is_floating_point() or tensor.element_size() not in (2, 4, 8):
            raise DtypeError(f"tensor {name} is {tensor.dtype}: make it {_WIDTHS}, or leave it out")
        self.name, self.shape = name, list(tensor.shape)
        self._tensor = tensor
        self._flat()

    def _flat(self) -> torch.Tensor:
        tensor = self._tensor.detach()
        if not tensor.is_contiguous():
            raise LayoutError(f"tensor {self.name} is not contiguous: call .contiguous() on it, and train that")
        return tensor.view(-1)

    def read(self, start: int, stop: int) -> Floats:
        import torch

        floats: Floats = self._flat()[start:stop].to("cpu", torch.float32).numpy()
        return floats

    def change(self, start: int, stop: int, kept: float, values: Floats) -> None:
        import torch

        part = self._flat()[start:stop]
        if part.device.type == "cpu" and part.dtype == torch.float32:
            return _change(part.numpy(), kept, values)
        # A copy, since PyTorch has no read-only tensors.
        added = torch.from_numpy(values.copy()).to(part.device)
        if kept == 0:
            part.copy_(added)
        elif kept == 1:
            part.add_(added)
        else:
            part.mul_(kept).add_(added)


class _Sharded:
    """A tensor that is sharded over the processes of a mesh (DTensor): FSDP2 and tensor parallelism.

    It is gathered when it is read, and a change is cut into shards without communication. In between, no process holds
    more of it than before.
    """

    is_sharded = True

    def __init__(self, name: str, tensor: Any) -> None:
        from torch.distributed.tensor import Replicate, Shard

        if not tensor.is_floating_point() or tensor.element_size() not in (2, 4, 8):
            raise DtypeError(f"tensor {name} is {tensor.dtype}: make it {_WIDTHS}, or leave it out")
        if not all(type(placement) in (Shard, Replicate) for placement in tensor.placements):
            raise LayoutError(
                f"tensor {name} is placed as {tensor.placements}: give one that is replicated, or sharded by whole "
                "rows or columns"
            )
        self.name, self.shape = name, list(tensor.shape)
        self._tensor = tensor

    def read(self, start: int, stop: int) -> Floats:
        import torch

        whole = self._tensor.detach().full_tensor().reshape(-1)
        floats: Floats = whole[start:stop].to("cpu", torch.float32).numpy()
        return floats

    def change(self, start: int, stop: int, kept: float, values: Floats) -> None:
        import torch

        local = self._tensor.detach().to_local()
        whole = torch.zeros(self._tensor.numel())
        whole[start:stop] = torch.from_numpy(values.copy())
        added = self._own_part(whole).to(local.dtype)
        if kept == 1:
            local.add_(added)
            return
        whole.fill_(1)
        whole[start:stop] = kept
        factor = self._own_part(whole).to(local.dtype)
        # Values that are to be replaced may not be finite.
        local.copy_(torch.where(factor == 0, 0, local * factor) + added)

    def _own_part(self, whole: torch.Tensor) -> torch.Tensor:
        """Returns this process's shard of values that all processes have."""
        from torch.distributed.tensor import DTensor, Replicate

        mesh = self._tensor.device_mesh
        there = whole.view(self._tensor.shape).to(self._tensor.device)
        same = DTensor.from_local(there, mesh, [Replicate()] * mesh.ndim, run_check=False)
        part: torch.Tensor = same.redistribute(placements=self._tensor.placements).to_local()
        return part


def _change(part: npt.NDArray[Any], kept: float, values: Floats) -> None:
    if kept == 0:
        part[:] = values
    elif kept == 1:
        part += values
    else:
        part *= kept
        part += values


def hold(params: Params, in_group: bool = False) -> list[Held]:
    """Returns the tensors of params, in order; sharded ones only if the learner is a group of processes.

    Raises:
        DtypeError: A tensor has a number type that cannot be trained.
        LayoutError: A tensor cannot be changed in place.
        TypeError: A value is neither an array nor a tensor, or has no name.
    """
    return [_hold(name, tensor, in_group) for name, tensor in by_name(params)]


def by_name(params: Params) -> list[tuple[str, Tensor]]:
    """Returns the pairs of params, in order; of a model with adapters, those that are trained.

    Raises:
        TypeError: The parameters are not pairs of a name and a tensor.
    """
    kind = f"a {type(params).__module__}.{type(params).__qualname__}"
    if not isinstance(params, Iterable) or hasattr(params, "named_parameters"):
        raise TypeError(f"the parameters are {kind}: give them by name, as model.named_parameters() does")
    pairs: list[Any] = list(params.items() if isinstance(params, Mapping) else params)
    if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise TypeError(
            f"the parameters are {kind} whose items are not pairs of a name and a tensor: give them by name, as "
            "model.named_parameters() does"
        )
    if any(".lora_A." in name for name, _ in pairs):
        return [(name, tensor) for name, tensor in pairs if not is_torch(tensor) or tensor.requires_grad]
    return pairs


def _hold(name: str, tensor: Any, in_group: bool) -> Held:
    if isinstance(tensor, np.ndarray):
        return _Array(name, tensor)
    if is_torch(tensor):
        if hasattr(tensor, "placements") and not in_group:
            raise LayoutError(
                f"tensor {name} is sharded over processes (DTensor): make the learner on all of them, with "
                "group=torch.distributed.group.WORLD"
            )
        if hasattr(tensor, "placements"):
            return _Sharded(name, tensor)
        return _Torch(name, tensor)
    kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    raise TypeError(f"tensor {name} is a {kind}: give a NumPy array or a PyTorch tensor, which change in place")


def is_torch(tensor: object) -> bool:
    """Whether it is a PyTorch tensor; does not import PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def describe(tensors: Iterable[Tensor]) -> str:
    """Returns a readable name of the library and device of the tensors."""
    first = next(iter(tensors), None)
    if first is None or not is_torch(first):
        return f"numpy {np.__version__}, {platform.machine()}"
    import torch

    assert isinstance(first, torch.Tensor)
    place = first.device.type
    if place == "cuda":
        place = torch.cuda.get_device_name(first.device)
    return f"pytorch {torch.__version__.split('+')[0]}, {place}"
