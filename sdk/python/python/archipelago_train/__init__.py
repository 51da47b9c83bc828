"""A learner of Decoupled DiLoCo around any model in NumPy arrays or PyTorch tensors.

    learner = archipelago_train.Learner(url, dict(model.named_parameters()))
    for batch in learner.batches():
        loss = train(model, batch)
        learner.step(loss)

The package's README describes all of it.
"""

from importlib.metadata import version

from ._accelerate import prepare
from ._errors import (
    ArchipelagoError,
    CompleteError,
    DtypeError,
    LayoutError,
    NotASyncerError,
    NotFiniteError,
    ProgramError,
    ProgramNotFoundError,
    RefusedError,
    TrackerError,
    TrackerNotInstalledError,
    UnreachableError,
)
from ._file import write_params
from ._learner import Learner, Report
from ._programs import Server, export, replay, serve, simulate
from ._watch import watch

__version__ = version("archipelago-train")

__all__ = [
    "ArchipelagoError",
    "CompleteError",
    "DtypeError",
    "LayoutError",
    "Learner",
    "NotASyncerError",
    "NotFiniteError",
    "ProgramError",
    "ProgramNotFoundError",
    "RefusedError",
    "Report",
    "Server",
    "TrackerError",
    "TrackerNotInstalledError",
    "UnreachableError",
    "__version__",
    "export",
    "prepare",
    "replay",
    "serve",
    "simulate",
    "watch",
    "write_params",
]
