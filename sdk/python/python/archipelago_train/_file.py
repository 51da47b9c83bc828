"""The initial parameters of a run of your own model, as a file."""

from __future__ import annotations

import math
import os

from . import _native
from ._tensors import Params, hold


def write_params(path: str | os.PathLike[str], params: Params, *, mean: list[str] | tuple[str, ...] = ()) -> None:
    """Writes the initial parameters of a run of this model: the file of `serve --params`, in the safetensors format.

    Args:
        path: The file to write.
        params: The tensors to train, by name, as `Learner` takes them. A tensor of more than two dimensions becomes
            a matrix: all dimensions but the first are flattened into one.
        mean: Names of tensors to merge by the plain mean, which suits embeddings; others are merged radially.

    Raises:
        DtypeError: A tensor is not of floating-point numbers.
        LayoutError: A tensor cannot be changed in place, so it could not be trained either.
        TypeError: The parameters have no names, or one is neither an array nor a tensor.
        ValueError: `mean` names an unknown tensor.
        OSError: The file cannot be written.
    """
    tensors = []
    for held in hold(params):
        tensors.append((held.name, held.shape, held.read(0, math.prod(held.shape))))
    _native.write_params(os.fspath(path), tensors, list(mean))
