"""How commands, arguments and options are declared, how `--help` shows them, and which numbers options take.

A command declares what it alone takes as the default of a parameter, by `argument`, `option` and `flag`.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from lmtool.errors import UsageError


def examples(*lines: str) -> str:
    """The epilog of a command: complete command lines that work as they are, given their files and runs."""
    return "  \n".join(("Examples:", *(f"`{line}`" for line in lines)))


def run_names(begun: str) -> list[str]:
    """The names of runs that begin so, which a shell completes."""
    from lmtool.run.paths import known_runs

    return [name for name in ("last", *sorted(path.name for path in known_runs())) if name.startswith(begun)]


def recipe_names(begun: str) -> list[str]:
    """The names of shipped recipes that begin so."""
    from lmtool.recipe.load import shipped

    return [name for name in sorted(shipped()) if name.startswith(begun)]


_NAMES = {"RUN": run_names, "RECIPE": recipe_names}
"""By what stands for a value in the help."""


def argument(metavar: str, text: str, default: Any = None, shown: str | bool = False) -> Any:
    """A positional argument. metavar: its name in the help. default: `...` for none. shown: the default in words."""
    return typer.Argument(default, metavar=metavar, help=text, show_default=shown, autocompletion=_NAMES.get(metavar))


def option(
    metavar: str, text: str, *names: str, default: Any = None, shown: str | bool = True, panel: str = "", **more: Any
) -> Any:
    """An option, called as its parameter unless there are other names.

    metavar: stands for its value; empty where the type lists all values.
    default: `...` in a type that commands share, where each has a default of its own.
    shown: the default in words, or whether it is told.
    panel: heading in the help.
    more: min and max.
    """
    more |= {"rich_help_panel": panel or None, "autocompletion": _NAMES.get(metavar)}
    return typer.Option(default, *names, metavar=metavar or None, help=text, show_default=shown, **more)


shared = partial(option, default=...)
"""An option that several commands share, each with a default of its own."""


def flag(text: str, *names: str, default: Any = False, panel: str = "", **more: Any) -> Any:
    """An option without a value."""
    return typer.Option(default, *names, metavar="", help=text, rich_help_panel=panel or None, **more)


def register(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Give a program a command whose docstring is its help, and ends in lines below "Examples:"."""
    text, _, lines = inspect.cleandoc(command.__doc__ or "").partition("\n\nExamples:\n")
    app.command(name, cls=Command, help=text, epilog=examples(*map(str.strip, lines.splitlines())))(command)


class _Tidy:
    """Help in our style: Typer writes `<bool>` for flags, and defaults in words in parentheses."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the other base
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
            if isinstance(getattr(parameter, "show_default", None), str):
                parameter.help = f"{parameter.help} [default: {parameter.show_default}]"
                parameter.show_default = False
        return parameters


class Command(_Tidy, TyperCommand):
    """A command with tidy help, whose numbers are finite and of a size that all code can hold."""

    def invoke(self, ctx: Any) -> Any:
        """Raises UsageError for a number that is not finite, or larger than one of a recipe can be."""
        from lmtool.recipe.spec.base import LARGEST, LARGEST_FLOAT, is_fit

        for parameter in self.params:
            values = ctx.params.get(parameter.name)
            for value in values if isinstance(values, list | tuple) else [values]:
                if isinstance(value, int | float) and not is_fit(value):
                    most = LARGEST if isinstance(value, int) else LARGEST_FLOAT
                    is_large = isinstance(value, int) or math.isfinite(value)
                    what = f"the number is too large: at most {most}" if is_large else f"{value} is not a finite number"
                    raise UsageError(what, where=max(parameter.opts, key=len), fix=f"see {ctx.command_path} --help")
        return super().invoke(ctx)


class Group(_Tidy, TyperGroup):
    """A group of commands with tidy help."""


class GroupWithDefault(Group):
    """A group whose last command is meant where none is named."""

    def named(self, args: list[str]) -> list[str]:
        """The arguments with the name of a command."""
        return [list(self.commands)[-1], *args] if args and args[0] not in (*self.commands, "--help") else args

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.named(args))


def group(help: str, *lines: str, cls: type[Group] = Group, **more: Any) -> typer.Typer:
    """A program of several commands, and examples of it."""
    return typer.Typer(cls=cls, help=help, epilog=examples(*lines), no_args_is_help=True, **more)
