"""Errors for users: what happened, where, and how to fix it; with an exit code for each kind."""

from typing import ClassVar, Literal

Code = (
    Literal["unexpected", "usage", "recipe", "data", "checkpoint", "resource", "numerical"]
    | Literal["output_exists", "run_in_use", "run_not_found", "no_checkpoint", "damaged", "data_changed"]
    | Literal["file_not_found", "not_permitted", "no_space"]
)
"""Identifies what went wrong, for programs; it stays when messages are reworded."""


class LmtoolError(Exception):
    """Base of all errors of lmtool.

    `what` is wrong, `where` is the file, line, column or key, `fix` is what to do about it. Printed as at most three
    lines. The subclass sets the exit code. `code` is for programs: that of the subclass, or a narrower one.
    """

    exit_code: ClassVar[int] = 1
    code: Code = "unexpected"

    def __init__(self, what: str, *, where: str = "", fix: str = "", code: Code | None = None) -> None:
        super().__init__(what)
        self.code = code or self.code
        self.what = what
        self.where = where
        self.fix = fix

    def lines(self) -> list[str]:
        """Returns the printed lines of the message."""
        return [self.what, *(f"  {part}" for part in (self.where, self.fix) if part)]

    def __str__(self) -> str:
        return "\n".join(self.lines())


class UsageError(LmtoolError):
    """The command line names something that does not exist, or contradicts itself."""

    exit_code = 2
    code: Code = "usage"


MAX_SHOWN_MISTAKES = 20
"""Mistakes of a recipe that an error lists; nobody mends a file with more line by line."""


class RecipeError(LmtoolError):
    """A recipe is not valid. Has one line per mistake, so that all can be fixed at once; of very many the first two."""

    exit_code = 2
    code: Code = "recipe"

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__(mistakes[0])
        self.mistakes = mistakes

    def lines(self) -> list[str]:
        if len(self.mistakes) <= MAX_SHOWN_MISTAKES:
            return self.mistakes
        return [*self.mistakes[:2], f"and {len(self.mistakes) - 2:,} more mistakes: is this a recipe?"]


class DataError(LmtoolError):
    """Text or a table cannot be read or used."""

    exit_code = 3
    code: Code = "data"


class CheckpointError(LmtoolError):
    """A run, checkpoint, model or tokenizer is missing, damaged, or does not fit."""

    exit_code = 4
    code: Code = "checkpoint"


class ResourceError(LmtoolError):
    """A resource is unavailable: device, memory, disk or permission."""

    exit_code = 5
    code: Code = "resource"


class NumericalError(LmtoolError):
    """A loss or gradient is NaN or infinite."""

    exit_code = 6
    code: Code = "numerical"
