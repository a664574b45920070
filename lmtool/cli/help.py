"""How `--help` looks: examples below, defaults without parentheses, and flags without a type."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


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
    """A command with tidy help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `_tidied`."""
        return _tidied(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands with tidy help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `_tidied`."""
        return _tidied(super().get_params(ctx))
