"""`lmtool check`: verify a run, or look for what ruins training in a table or a text."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.arguments import Column, Json, Labels, Overrides, Quiet, label_settings, reads_tables
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.recipe.load import Setting
    from lmtool.text.tokenizer import Tokenizer
    from lmtool.training.checking import Checked

MOST = 20
"""Damaged files that are listed."""

HELP = "A run, a table, texts, or a folder of tokens."


@reads_tables()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="RUN|TABLE|TEXT", help=HELP, show_default=False)] = None,
    valid: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Validation text or table. May be repeated.")
    ] = None,
    test: Annotated[str | None, typer.Option(metavar="TABLE", help="Test table.", show_default=False)] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Is the text in the language of this run's or file's tokenizer?"),
    ] = None,
    column: Column = None,
    reading: "Sequence[Setting]" = (),
    labels: Labels = "auto",
    overrides: Overrides = None,
    with_cache: Annotated[bool, typer.Option("--cache", metavar="", help="Verify the cache of tokens too.")] = False,
    strict: Annotated[bool, typer.Option("--strict", metavar="", help="Any finding is an error, exit code 3.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Verify every file of a run; or look in a table or a text for what ruins training before it starts.

    Duplicates, rows or text that are held out and trained on, labels that contradict each other, cut texts.
    """
    from lmtool.errors import UsageError
    from lmtool.interop.reference import HUB, run_of
    from lmtool.recipe.load import Setting, settings_of

    if not names and not with_cache:
        raise UsageError("nothing to check", fix="name a run, a table or a text; or --cache")
    if names and len(names) == 1 and not names[0].startswith(HUB):  # there a name is of a dataset
        names = [run_of(names[0])]
    given = (
        ("data.train", names, "TEXT"),
        ("data.valid", valid, "--valid"),
        ("data.test", test, "--test"),
        ("data.column", column, "--column"),
    )
    flags = [
        *reading,
        *label_settings(labels),
        *(Setting(key, value, flag) for key, value, flag in given if value is not None),
    ]
    found = []
    if names:
        found.append(_look(names, settings_of(overrides or (), flags), tokenizer, quiet))
    if with_cache:
        from lmtool.text.prepare import default_cache
        from lmtool.training.checking import check_cache

        found.append(check_cache(default_cache()))
    for checked in found:
        _show(checked, as_json)
    for checked in found:
        checked.refuse(strict=strict)


def _look(names: list[str], settings: "list[Setting]", tokenizer: str | None, quiet: bool) -> "Checked":
    from pathlib import Path

    from lmtool.cli.progress import Display
    from lmtool.recipe.load import load
    from lmtool.text.prepare import default_cache
    from lmtool.training import checking
    from lmtool.training.start import named_kind

    recipe = load("linear", [setting for setting in settings if setting.key != "objective.kind"]).recipe
    data, seed, cache = recipe.data, recipe.seed, default_cache()
    is_text = any(setting.key == "data.column" for setting in settings)
    with Display(shown=True, quiet=quiet) as display:
        match checking.subject_of(names, data, is_text=is_text):
            case "run":
                return checking.check_run(names[0], cache=cache, report=display.report)
            case "tokens":
                return checking.check_tokens(Path(names[0]))
            case "table":
                return checking.check_labelled(recipe, named_kind(settings), *_tokenizer(tokenizer))
        return checking.check_text(data, seed, *_tokenizer(tokenizer), cache=cache, report=display.report)


def _tokenizer(name: str | None) -> "tuple[Tokenizer | None, float | None]":
    """A tokenizer, and the bytes that its tokens had in the text of its run, where these are known."""
    from pathlib import Path

    from lmtool.interop.reference import tokenizer_path
    from lmtool.run.directory import Run
    from lmtool.run.places import INFO
    from lmtool.text.tokenizer import Tokenizer

    if name is None:
        return None, None
    path = Path(tokenizer_path(name))
    folder = path if path.is_dir() else path.parent
    data = Run.open(folder).info.data if (folder / INFO).exists() else None
    return Tokenizer.load(path), None if data is None else data.bytes_per_token


def _show(checked: "Checked", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(checked.record))
        return
    for line in checked.lines:
        typer.echo(plain(f"{checked.subject:8} {line}"))
    for path, problem in checked.damage[:MOST]:
        typer.echo(plain(f"damaged  {path}: {problem}"))
    if len(checked.damage) > MOST:
        typer.echo(f"damaged  {len(checked.damage) - MOST:,} more; --json lists all")
    for notice in checked.notices:
        is_named = notice.text.startswith(notice.kind.split()[0])
        typer.echo(plain(f"found    {'' if is_named else f'{notice.kind}: '}{notice}"))
    if not checked.damage and not checked.notices:
        typer.echo("nothing found")
