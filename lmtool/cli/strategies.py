"""The options of decoding strategies, made from the fields of their settings."""

import inspect
from collections.abc import Callable, Mapping

import typer

from lmtool.decoding.settings import Settings, described


def with_settings(
    *kinds: type[Settings], defaults: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that gives a command an option for each setting of these strategies, None by default.

    The command takes them as its last parameter, `**asked`. They come before its keyword-only parameters.

    defaults: the default to display, of settings that have another than their own.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = inspect.signature(command).parameters.values()
        asked: dict[str, inspect.Parameter] = {}
        for kind in kinds:
            for name, (type_, help) in described(kind).items():
                default = str(getattr(kind, name) or "") if help.default is None else help.default
                option = typer.Option(
                    None,
                    help.flag or f"--{name.replace('_', '-')}",
                    metavar=help.metavar,
                    help=help.text,
                    show_default=(defaults or {}).get(name, default) or False,
                    rich_help_panel=kind.panel,
                )
                asked.setdefault(
                    name,
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=type_ | None),
                )
        first = [parameter for parameter in own if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
        signature = inspect.Signature([*first, *asked.values(), *own[len(first) :]])
        command.__signature__ = signature  # type: ignore[attr-defined]  # Typer reads it in place of the function's own
        return command

    return decorated
