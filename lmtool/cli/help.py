"""How commands, arguments and options are declared, how `--help` shows them, and which numbers options take.

A command declares what it alone takes as the default of a parameter, by `argument`, `option` and `flag`.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from lmtool.errors import ResourceError, UsageError


def examples(*lines: str) -> str:
    """The epilog of a command: complete command lines that work as they are, given their files and runs."""
    return "  \n".join(("Examples:", *(f"`{line}`" for line in lines)))


def run_names(begun: str) -> list[str]:
    """The names of runs that begin so, which a shell completes."""
    from lmtool.run.paths import list_runs

    return [name for name in ("last", *sorted(path.name for path in list_runs())) if name.startswith(begun)]


def recipe_names(begun: str) -> list[str]:
    """The names of shipped recipes that begin so."""
    from lmtool.recipe.load import shipped_recipes

    return [name for name in sorted(shipped_recipes()) if name.startswith(begun)]


def recipe_or_run_names(begun: str) -> list[str]:
    """The names of shipped recipes and of runs that begin so."""
    return recipe_names(begun) + run_names(begun)


_NAMES = {"RUN": run_names, "RECIPE": recipe_names, "RECIPE|RUN": recipe_or_run_names}
"""By what stands for a value in the help."""


def argument(metavar: str, text: str, default: Any = None, shown: str | bool = False, **more: Any) -> Any:
    """A positional argument. metavar: its name in the help. default: `...` for none. shown: the default in words.

    more: parser.
    """
    more |= {"autocompletion": _NAMES.get(metavar)}
    return typer.Argument(default, metavar=metavar, help=text, show_default=shown, **more)


def option(
    metavar: str, text: str, *names: str, default: Any = None, shown: str | bool = True, panel: str = "", **more: Any
) -> Any:
    """An option, called as its parameter unless there are other names.

    metavar: stands for its value; empty where the type lists all values.
    default: `...` in a type that commands share, where each has a default of its own.
    shown: the default in words, or whether it is told.
    panel: heading in the help.
    more: min, max and parser.
    """
    more |= {"rich_help_panel": panel or None, "autocompletion": _NAMES.get(metavar)}
    return typer.Option(default, *names, metavar=metavar or None, help=text, show_default=shown, **more)


def file_to_write(value: str | Path) -> Path:
    """The `parser` of an option that names a file to write, so that a name that cannot be one is refused at once.

    Raises UsageError for an empty name and for a folder, ResourceError where the file's folder is missing.
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
    """The `parser` of an option that names a folder to write, or a file. Raises UsageError for an empty name."""
    if value == "":
        fix = "write a name; it may be that of a shell's variable that is not set"
        raise UsageError("the name of an output is empty", where="''", fix=fix)
    return Path(value)


shared = partial(option, default=...)
"""An option that several commands share, each with a default of its own."""


def flag(text: str, *names: str, default: Any = False, panel: str = "", **more: Any) -> Any:
    """An option without a value."""
    return typer.Option(default, *names, metavar="", help=text, rich_help_panel=panel or None, **more)


def register(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Give a program a command whose docstring is its help, and ends in lines below "Examples:".

    A command whose first argument is a run gets `--run`, which names it as well; see `Command.make_parser`.
    """
    command = _with_run_option(command)
    text, _, lines = inspect.cleandoc(command.__doc__ or "").partition("\n\nExamples:\n")
    app.command(name, cls=Command, help=text, epilog=examples(*map(str.strip, lines.splitlines())))(command)


RUN_OPTION = "run_by_option"
"""The parameter of `--run` where a run is an argument; commands are not given it."""


def _with_run_option(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `--run`, if its first argument is a run."""
    parameters = [*inspect.signature(command).parameters.values()]
    first = parameters[0] if parameters else None
    if first is None or not _names_run(first):
        return command
    is_list = get_origin(first.annotation) is list or list[str] in get_args(first.annotation)
    made = option("RUN", "Another way to name the run.", "--run")
    kind = list[str] | None if is_list else str | None
    named = inspect.Parameter(RUN_OPTION, inspect.Parameter.KEYWORD_ONLY, default=made, annotation=kind)
    n = sum(one.kind is not inspect.Parameter.KEYWORD_ONLY for one in parameters)

    @wraps(command)
    def called(**values: Any) -> None:
        del values[RUN_OPTION]  # `make_parser` has read it
        command(**values)

    signature = inspect.Signature([*parameters[:n], named, *parameters[n:]])
    called.__signature__ = signature  # type: ignore[attr-defined]
    return called


def _names_run(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is an argument that names runs."""
    made = [parameter.default, *getattr(parameter.annotation, "__metadata__", ())]
    is_argument = [one for one in made if isinstance(one, typer.models.ArgumentInfo)]
    return any(one.metavar in ("RUN", "RECIPE|RUN") for one in is_argument)


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

    def make_parser(self, ctx: Any) -> Any:
        """A parser that puts the runs of `--run` before the arguments, as if they were the first of them."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            values, rest, order = parse(args)
            if not (runs := values.pop(RUN_OPTION, None)):
                return values, rest, order
            words = [runs] if isinstance(runs, str) else [*runs]
            arguments = [one for one in self.params if one.param_type_name == "argument"]
            for one in arguments:
                value = values.pop(one.name, None)
                words += [value] if isinstance(value, str) else value or ()
            words += rest
            for one in arguments:
                n_words = 1 if one.nargs == 1 else len(words)
                if words:
                    values[one.name] = words[0] if one.nargs == 1 else tuple(words)
                words = words[n_words:]
            return values, words, order

        parser.parse_args = parse_args  # type: ignore[method-assign]  # Typer has no hook between reading and values
        return parser

    def invoke(self, ctx: Any) -> Any:
        """Raises UsageError for a number that is not finite, or larger than one of a recipe can be."""
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


class Group(_Tidy, TyperGroup):
    """A group of commands with tidy help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises UsageError for an unknown command."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            if os.path.isfile(name):
                raise UsageError(f"a file is no command: {name}", fix=f"train on it: lmtool pretrain {name}")
            near = did_you_mean(*near_words(name, self.commands))
            raise UsageError(f"No such command {name!r}{near}", fix=f"see {ctx.command_path} --help")
        return super().resolve_command(ctx, args)


class GroupWithDefault(Group):
    """A group whose last command is meant where none is named."""

    def named(self, args: list[str]) -> list[str]:
        """The arguments with the name of a command."""
        return [list(self.commands)[-1], *args] if args and args[0] not in (*self.commands, *HELP_NAMES) else args

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.named(args))


HELP_NAMES = ["--help", "-h"]


def near_words(word: str, known: Iterable[str]) -> list[str]:
    """The words that may have been meant by one of them that is misspelt.

    Those that it begins, or that begin it; that have all its parts between hyphens; or that differ by one letter or two
    neighbours exchanged, and words of eight letters by two.
    """
    return [other for other in known if _is_near(_bare(word), _bare(other))]


def _bare(word: str) -> str:
    return word.lstrip("-").lower().replace("_", "-")


def _is_near(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    if len(short) < 3:
        return False
    parts = word.split("-")
    if long.startswith(short) or (len(parts) > 1 and set(parts) <= set(other.split("-"))):
        return True
    return _edits(word, other) <= (2 if len(long) >= 8 else 1)


def _edits(word: str, other: str) -> int:
    """Letters to insert, remove or replace, and neighbours to exchange (Damerau 1964)."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(word, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == other[j - 2] and b == word[i - 2]:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def did_you_mean(*words: str) -> str:
    """The end of a message that suggests words; nothing where there are none."""
    return f"; did you mean {' or '.join(words)}?" if words else ""


def group(help: str, *lines: str, cls: type[Group] = Group, **more: Any) -> typer.Typer:
    """A program of several commands, and examples of it."""
    return typer.Typer(cls=cls, help=help, epilog=examples(*lines), no_args_is_help=True, **more)
