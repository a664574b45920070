"""Declares commands, arguments and options, formats `--help`, and checks numbers.

A command declares its own arguments and options as defaults of parameters, by `argument`, `option` and `flag`.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from lmtool.errors import ResourceError, UsageError


def format_examples(*lines: str) -> str:
    """Formats the epilog of a command: complete command lines that work as they are, given their files and runs."""
    return "  \n".join(("Examples:", *(f"`{line}`" for line in lines)))


def complete_runs(prefix: str) -> list[str]:
    """Returns the names of runs that begin with `prefix`, for completion in a shell."""
    from lmtool.runs.paths import list_runs

    return [name for name in ("last", *sorted(path.name for path in list_runs())) if name.startswith(prefix)]


def complete_recipes(prefix: str) -> list[str]:
    """Returns the names of shipped recipes that begin with `prefix`."""
    from lmtool.recipe.load import shipped_recipes

    return [name for name in sorted(shipped_recipes()) if name.startswith(prefix)]


def complete_recipes_or_runs(prefix: str) -> list[str]:
    """Returns the names of shipped recipes and of runs that begin with `prefix`."""
    return complete_recipes(prefix) + complete_runs(prefix)


_COMPLETIONS = {"RUN": complete_runs, "RECIPE": complete_recipes, "RECIPE|RUN": complete_recipes_or_runs}
"""Functions that complete values in a shell, by metavar."""


def argument(metavar: str, text: str, default: Any = None, shown: str | bool = False, **more: Any) -> Any:
    """Declares a positional argument.

    metavar: its name in the help. default: `...` if it is required. shown: the displayed default. more: parser.
    """
    more |= {"autocompletion": _COMPLETIONS.get(metavar)}
    return typer.Argument(default, metavar=metavar, help=text, show_default=shown, **more)


def option(
    metavar: str, text: str, *names: str, default: Any = None, shown: str | bool = True, panel: str = "", **more: Any
) -> Any:
    """Declares an option, named as its parameter unless there are other names.

    metavar: placeholder of its value; empty if the type lists all values.
    default: `...` in a shared type, for which each command has a default of its own.
    shown: the displayed default, or whether to display it.
    panel: heading in the help.
    more: min, max and parser.
    """
    more |= {"rich_help_panel": panel or None, "autocompletion": _COMPLETIONS.get(metavar)}
    return typer.Option(default, *names, metavar=metavar or None, help=text, show_default=shown, **more)


def file_to_write(value: str | Path) -> Path:
    """Parses the value of an option that names a file to write.

    Raises UsageError for an empty name and for a folder, ResourceError if the folder of the file is missing.
    """
    path = folder_to_write(value)
    if os.path.isdir(path):
        fix = f"name a file in it: {path / 'NAME'}"
        raise UsageError(
            "a folder is there, and a file is to be written", where=str(path), fix=fix, code="output_exists"
        )
    if not os.path.isdir(path.parent):
        fix = "make that folder, or choose another"
        raise ResourceError("cannot write: no such folder", where=str(path.parent), fix=fix, code="file_not_found")
    return path


def folder_to_write(value: str | Path) -> Path:
    """Parses the value of an option that names a folder or file to write. Raises UsageError for an empty name."""
    if value == "":
        fix = "write a name; it may be that of a shell's variable that is not set"
        raise UsageError("the name of an output is empty", where="''", fix=fix)
    return Path(value)


shared = partial(option, default=...)
"""Declares an option that several commands share, each with a default of its own."""


def flag(text: str, *names: str, default: Any = False, panel: str = "", **more: Any) -> Any:
    """Declares an option without a value."""
    return typer.Option(default, *names, metavar="", help=text, rich_help_panel=panel or None, **more)


def register(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Adds a command to a program. Its docstring is its help, and ends in examples below "Examples:".

    A command whose first argument is a run also gets `--run`; see `Command.parse_args`.
    """
    command = _add_run_option(command)
    text, _, lines = inspect.cleandoc(command.__doc__ or "").partition("\n\nExamples:\n")
    app.command(name, cls=Command, help=text, epilog=format_examples(*map(str.strip, lines.splitlines())))(command)


RUN_OPTION = "run_by_option"
"""The parameter of `--run` of a command whose argument is a run; the command itself does not get it."""


def _add_run_option(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--run` to a command if its first argument is a run."""
    parameters = [*inspect.signature(command).parameters.values()]
    first = parameters[0] if parameters else None
    made = [] if first is None else [first.default, *getattr(first.annotation, "__metadata__", ())]
    metavars = [one.metavar for one in made if isinstance(one, typer.models.ArgumentInfo)]
    if first is None or not {"RUN", "RECIPE|RUN"} & set(metavars):
        return command
    is_list = get_origin(first.annotation) is list or list[str] in get_args(first.annotation)
    default = option("RUN", "Another way to name the run.", "--run")
    kind = list[str] | None if is_list else str | None
    named = inspect.Parameter(RUN_OPTION, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    n = sum(one.kind is not inspect.Parameter.KEYWORD_ONLY for one in parameters)

    @wraps(command)
    def called(**values: Any) -> None:
        del values[RUN_OPTION]  # `parse_args` has read it
        command(**values)

    signature = inspect.Signature([*parameters[:n], named, *parameters[n:]])
    called.__signature__ = signature  # type: ignore[attr-defined]
    return called


class _HelpMixin:
    """Formats help: without `<bool>` for flags, and with defaults in brackets instead of Typer's parentheses."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the other base
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
            if isinstance(getattr(parameter, "show_default", None), str):
                parameter.help = f"{parameter.help} [default: {parameter.show_default}]"
                parameter.show_default = False
        return parameters


class Command(_HelpMixin, TyperCommand):
    """A command with formatted help, which checks that numbers are finite and not too large."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments with the runs of `--run` before all others.

        Raises UsageError for a run that would be read as an option there.
        """
        options, _, _ = self.make_parser(ctx).parse_args([*args])
        runs = options.get(RUN_OPTION) or []
        if isinstance(runs, str):
            runs = [runs]
        for run in runs:
            if run.startswith("-") and run != "-":
                fix = f"name a run, or write ./{run} for a folder of this name"
                raise UsageError(f"no run is called {run!r}", where="--run", fix=fix)
        rest = super().parse_args(ctx, [*runs, *args])
        if runs:
            ctx.params[RUN_OPTION] = None  # they are arguments now
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Raises UsageError for a number that is not finite, or larger than a recipe allows."""
        from lmtool.recipe.spec.base import MAX_FLOAT, MAX_INTEGER, is_representable

        for parameter in self.params:
            values = ctx.params.get(parameter.name)
            for value in values if isinstance(values, list | tuple) else [values]:
                if isinstance(value, int | float) and not is_representable(value):
                    most = MAX_INTEGER if isinstance(value, int) else MAX_FLOAT
                    is_large = isinstance(value, int) or math.isfinite(value)
                    what = f"the number is too large: at most {most}" if is_large else f"{value} is not a finite number"
                    raise UsageError(what, where=max(parameter.opts, key=len), fix=f"see {ctx.command_path} --help")
        return super().invoke(ctx)


class Group(_HelpMixin, TyperGroup):
    """A group of commands with formatted help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises UsageError for an unknown command."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            if os.path.isfile(name):
                raise UsageError(f"a file is no command: {name}", fix=f"train on it: lmtool pretrain {name}")
            from lmtool.recipe.grammar import did_you_mean

            near = did_you_mean(*find_near_words(name, self.commands))
            raise UsageError(f"No such command {name!r}{near}", fix=f"see {ctx.command_path} --help")
        return super().resolve_command(ctx, args)


class GroupWithDefault(Group):
    """A group whose last command is the default."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *HELP_NAMES):
            args = [list(self.commands)[-1], *args]
        return super().parse_args(ctx, args)


HELP_NAMES = ["--help", "-h"]


def find_near_words(word: str, known: Iterable[str]) -> list[str]:
    """Returns the words that a misspelt one may mean: a prefix of either, one with all its parts, or a close match."""
    near = []
    for name in known:
        typed, other = (one.lstrip("-").lower().replace("_", "-") for one in (word, name))
        short, long = sorted((typed, other), key=len)
        parts = typed.split("-")
        has_parts = len(parts) > 1 and set(parts) <= set(other.split("-"))
        is_close = len(typed) > 3 and bool(get_close_matches(typed, [other], cutoff=0.75))
        if len(short) >= 3 and (long.startswith(short) or has_parts or is_close):
            near.append(name)
    return near


def group(help: str, *lines: str, cls: type[Group] = Group, **more: Any) -> typer.Typer:
    """Makes a program of several commands. lines: examples."""
    return typer.Typer(cls=cls, help=help, epilog=format_examples(*lines), no_args_is_help=True, **more)
