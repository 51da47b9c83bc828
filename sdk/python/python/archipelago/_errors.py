"""What can go wrong, each said in one sentence."""


class ArchipelagoError(Exception):
    """Any error of this package that is not one of its arguments alone."""


class LayoutError(ArchipelagoError, ValueError):
    """The tensors are not those of the run: one is missing, is not the run's, or has another shape."""


class DtypeError(ArchipelagoError, TypeError):
    """A tensor's numbers are of a kind that cannot be trained here."""


class NotFiniteError(ArchipelagoError, ArithmeticError):
    """The loss or a parameter is infinite or no number.

    Nothing of that was sent. The learner goes on: with the next batch the parameters are those of the run again. Reset
    the optimiser before, since what it remembers may not be finite either.
    """


class UnreachableError(ArchipelagoError, ConnectionError):
    """No run answers at the address."""


class CompleteError(ArchipelagoError):
    """The run is complete and takes in nobody any more, so the parameters are as they were; `export` has its model."""


class RefusedError(ArchipelagoError):
    """The run does not take this learner: it needs an invite, is full, or its owner sent the learner away."""


class ProgramNotFoundError(ArchipelagoError, FileNotFoundError):
    """A program of Archipelago is not installed on this machine."""


class ProgramError(ArchipelagoError):
    """A program of Archipelago ended with an error; the sentence is its own.

    Attributes:
        code: The exit code, which the program's help explains.
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
