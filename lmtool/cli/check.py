"""`lmtool check`: verify a run, or look for what ruins training in a table or a text."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.arguments import Column, Json, Overrides, Quiet
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.recipe.load import Setting
    from lmtool.text.tokenizer import Tokenizer
    from lmtool.training.checking import Checked

MOST = 20
"""Damaged files that are listed."""

HELP = "A run, a table, texts, or a folder of tokens."


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
    from lmtool.recipe.load import Setting

    if not names and not with_cache:
        raise UsageError("nothing to check", fix="name a run, a table or a text; or --cache")
    flags = [
        Setting(key, value, flag)
        for key, value, flag in (
            ("data.train", names, "TEXT"),
            ("data.valid", valid, "--valid"),
            ("data.test", test, "--test"),
            ("data.column", column, "--column"),
        )
        if value is not None
    ]
    found = []
    if names:
        found.append(_look(names, flags, overrides or [], tokenizer, quiet))
    if with_cache:
        from lmtool.text.prepare import default_cache
        from lmtool.training.checking import check_cache

        found.append(check_cache(default_cache()))
    for checked in found:
        _show(checked, as_json)
    for checked in found:
        checked.refuse(strict=strict)


def _look(
    names: list[str], flags: "list[Setting]", overrides: list[str], tokenizer: str | None, quiet: bool
) -> "Checked":
    from pathlib import Path

    from lmtool.cli.progress import Display
    from lmtool.recipe.load import load
    from lmtool.text.prepare import default_cache
    from lmtool.training import checking

    recipe = load("linear", overrides, flags).recipe
    data, seed, cache = recipe.data, recipe.seed, default_cache()
    is_text = any(flag.key == "data.column" for flag in flags)
    with Display(shown=True, quiet=quiet) as display:
        match checking.subject_of(names, data, is_text=is_text):
            case "run":
                return checking.check_run(names[0], cache=cache, report=display.report)
            case "tokens":
                return checking.check_tokens(Path(names[0]))
            case "table":
                return checking.check_labelled(data, None, seed, *_tokenizer(tokenizer))
        return checking.check_text(data, seed, *_tokenizer(tokenizer), cache=cache, report=display.report)


def _tokenizer(name: str | None) -> "tuple[Tokenizer | None, float | None]":
    """A tokenizer, and the bytes that its tokens had in the text of its run, where these are known."""
    from pathlib import Path

    from lmtool.run.find import find
    from lmtool.text.tokenizer import Tokenizer

    if name is None:
        return None, None
    if Path(name).is_file():
        return Tokenizer.load(name), None
    run = find(name).run
    return Tokenizer.load(run.tokenizer_path), run.info.data.bytes_per_token if run.info.data else None


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
        typer.echo(plain(f"found    {notice.kind}: {notice}"))
    if not checked.damage and not checked.notices:
        typer.echo("nothing found")
