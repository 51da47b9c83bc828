"""The package's errors, each with a message of one sentence."""


class ArchipelagoError(Exception):
    """Base class of this package's errors, other than invalid arguments."""


class LayoutError(ArchipelagoError, ValueError):
    """The tensors do not match the run: one is missing, unknown to the run, or of another shape."""


class DtypeError(ArchipelagoError, TypeError):
    """A tensor has a number type that cannot be trained here."""


class NotFiniteError(ArchipelagoError, ArithmeticError):
    """The loss or a parameter is infinite or NaN.

    The learner sent nothing of that step and goes on: the next batch starts from the run's parameters. Reset the
    optimiser first, since its state may not be finite either.
    """


class UnreachableError(ArchipelagoError, ConnectionError):
    """No run answers at the address."""


class NotASyncerError(UnreachableError):
    """What answers at the address is not a run of a syncer."""


class CompleteError(ArchipelagoError):
    """The run is complete and takes no more learners; the parameters are unchanged, and `export` writes its model."""


class RefusedError(ArchipelagoError):
    """The run refuses this learner: it needs an invite, is full, or its owner sent the learner away.

    Also: the syncer refuses a watcher's token.
    """


class TrackerNotInstalledError(ArchipelagoError, ImportError):
    """The package of an experiment tracker cannot be imported."""


class TrackerError(ArchipelagoError):
    """The package of an experiment tracker failed; the message has its reason. A new watcher continues."""


class ProgramNotFoundError(ArchipelagoError, FileNotFoundError):
    """A program of Archipelago is not installed on this machine."""


class ProgramError(ArchipelagoError):
    """A program of Archipelago ended with an error; the message is the program's.

    Attributes:
        code: The exit code; the program's help explains it.
    """

    code: int

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


KINDS: dict[str, type[ArchipelagoError]] = {
    "not finite": NotFiniteError,
    "unreachable": UnreachableError,
    "layout": LayoutError,
    "refused": RefusedError,
    "failed": ArchipelagoError,
}
