"""The file that a run of a model of one's own begins with."""

from __future__ import annotations

import math
import os

from . import _native
from ._tensors import Params, hold


def write_params(path: str | os.PathLike[str], params: Params, *, mean: list[str] | tuple[str, ...] = ()) -> None:
    """Writes what a run of this model begins with: the file of `serve --params`, in the format of safetensors.

    Args:
        path: The file to write.
        params: The tensors that are trained, by name, as `Learner` takes them. A tensor of more than two sizes becomes
            a matrix: all sizes but the first are one.
        mean: Names of those that are merged by the plain mean, which suits embeddings; others are merged radially.

    Raises:
        DtypeError: A tensor is not of floating-point numbers.
        LayoutError: A tensor cannot be changed in place, so that it could not be trained either.
        TypeError: The parameters have no names, or one is neither an array nor a tensor.
        ValueError: `mean` names what is not there.
        OSError: The file cannot be written.
    """
    tensors = []
    for held in hold(params):
        tensors.append((held.name, held.shape, held.read(0, math.prod(held.shape))))
    _native.write_params(os.fspath(path), tensors, list(mean))
