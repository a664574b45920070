"""How `--help` looks: examples below, defaults without parentheses, and flags without a type; and which numbers options
take.
"""

import math
from typing import Any

from typer.core import TyperCommand, TyperGroup

from lmtool.errors import UsageError


def examples(*lines: str) -> str:
    """The epilog of a command: complete command lines that work as they are, given their files and runs."""
    return "  \n".join(("Examples:", *(f"`{line}`" for line in lines)))


def _tidied(parameters: list[Any]) -> list[Any]:
    """Parameters whose help is in our style: Typer writes `<bool>` for flags, and defaults in words in parentheses."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
        if isinstance(getattr(parameter, "show_default", None), str):
            parameter.help = f"{parameter.help} [default: {parameter.show_default}]"
            parameter.show_default = False
    return parameters


class Command(TyperCommand):
    """A command with tidy help, whose numbers are finite and of a size that all code can hold."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `_tidied`."""
        return _tidied(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Raises UsageError for a number that is not finite, or larger than one of a recipe can be."""
        from lmtool.recipe.spec.base import LARGEST, LARGEST_FLOAT, is_fit

        for parameter in self.params:
            given = ctx.params.get(parameter.name)
            for value in given if isinstance(given, list | tuple) else [given]:
                if isinstance(value, int | float) and not is_fit(value):
                    most = LARGEST if isinstance(value, int) else LARGEST_FLOAT
                    is_large = isinstance(value, int) or math.isfinite(value)
                    what = f"the number is too large: at most {most}" if is_large else f"{value} is no finite number"
                    raise UsageError(what, where=max(parameter.opts, key=len), fix=f"see {ctx.command_path} --help")
        return super().invoke(ctx)


class Group(TyperGroup):
    """A group of commands with tidy help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `_tidied`."""
        return _tidied(super().get_params(ctx))
