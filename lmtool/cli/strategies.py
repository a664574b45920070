"""The options of decoding strategies, made from the fields of their settings."""

import inspect
from collections.abc import Callable

import typer

from lmtool.decoding.settings import STRATEGIES, described


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each setting of a strategy, None by default.

    The command takes them as its last parameter, `**asked`. They come before its keyword-only parameters.
    """
    *own, _ = inspect.signature(command).parameters.values()
    asked: dict[str, inspect.Parameter] = {}
    for kind in STRATEGIES.values():
        for name, (type_, help) in described(kind).items():
            default = str(getattr(kind, name) or "") if help.default is None else help.default
            option = typer.Option(
                None,
                help.flag or f"--{name.replace('_', '-')}",
                metavar=help.metavar,
                help=help.text,
                show_default=default or False,
                rich_help_panel=kind.panel,
            )
            parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=type_ | None)
            asked.setdefault(name, parameter)
    first = [parameter for parameter in own if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    signature = inspect.Signature([*first, *asked.values(), *own[len(first) :]])
    command.__signature__ = signature  # type: ignore[attr-defined]  # Typer reads it in place of the function's own
    return command
