"""`lmtool tokenize`: text to a tokenizer and a token store."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.arguments import DEFAULT_RECIPE, Json, Overrides, RecipeName

if TYPE_CHECKING:
    from lmtool.text.prepare import Prepared
    from lmtool.text.tokenizer import Tokenizer


def tokenize(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT...", help="Files, folders, globs or hf:NAME.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder for tokenizer.json, train/ and valid/.")
    ] = None,
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    kind: Annotated[
        Literal["bpe", "wordpiece", "char", "word"] | None, typer.Option(help="Kind of tokenizer to train.")
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Entries of the tokenizer to train.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="FILE", help="Use this tokenizer.json, or that of this folder or run.")
    ] = None,
    show: Annotated[str | None, typer.Option(metavar="TEXT", help="Show the pieces and ids of this text.")] = None,
    as_json: Json = False,
) -> None:
    """Train a tokenizer on text, or take one, and write the text as tokens.

    With --show and --tokenizer no other text is needed.
    """
    from lmtool.recipe.load import Setting, load

    flags = [
        Setting(key, value, flag)
        for key, value, flag in (
            ("tokenizer.kind", kind, "--kind"),
            ("tokenizer.vocab_size", vocab_size, "--vocab-size"),
            ("data.train", text, "TEXT"),
        )
        if value is not None
    ]
    if tokenizer is not None:
        flags += [Setting("tokenizer.kind", "file", "--tokenizer"), Setting("tokenizer.path", tokenizer, "--tokenizer")]
    resolved = load(recipe, overrides or (), flags).recipe

    from lmtool.cli.progress import Display
    from lmtool.errors import UsageError
    from lmtool.text.prepare import default_cache, prepare
    from lmtool.text.tokenizer import Tokenizer

    if not text:
        if tokenizer is None or show is None:
            raise UsageError("no text to tokenize", fix="name a file, or use --tokenizer FILE --show TEXT")
        _show(Tokenizer.load(tokenizer), show, as_json)
        return
    with Display(shown=True, quiet=as_json) as display:
        prepared = prepare(
            resolved.data,
            resolved.tokenizer,
            cache=default_cache(),
            seed=resolved.seed,
            progress=display.report,
            out=output,
        )
    if show is not None:
        _show(prepared.tokenizer, show, as_json)
        return
    _summarise(prepared, output, as_json)


def _show(tokenizer: "Tokenizer", text: str, as_json: bool) -> None:
    """Pieces and ids of a text."""
    ids = tokenizer.encode(text)
    pieces = [tokenizer.piece(token) for token in ids]
    if as_json:
        typer.echo(json.dumps({"text": text, "pieces": pieces, "ids": ids}))
    else:
        for token, piece in zip(ids, pieces, strict=True):
            typer.echo(f"{token}\t{piece}")


def _summarise(prepared: "Prepared", output: Path | None, as_json: bool) -> None:
    """Sizes and speed; speed only when there was work to do."""
    stores = {"train": prepared.train, "valid": prepared.valid}
    n_bytes = sum(store.total_bytes for store in stores.values())
    tokens = sum(len(store) for store in stores.values())
    record = {
        "tokenizer": prepared.tokenizer.kind,
        "vocab_size": prepared.tokenizer.vocab_size,
        "bytes": n_bytes,
        "tokens": tokens,
        "bytes_per_token": n_bytes / tokens,
        "megabytes_per_second": n_bytes / 1e6 / prepared.seconds if prepared.seconds else None,
        "train_tokens": len(prepared.train),
        "valid_tokens": len(prepared.valid),
        "documents": prepared.train.n_documents + prepared.valid.n_documents,
        "split": prepared.data.split,
    }
    if as_json:
        typer.echo(json.dumps(record))
        return
    speed = f"{record['megabytes_per_second']:.1f} MB/s" if prepared.seconds else "found in the cache"
    typer.echo(f"tokenizer  {prepared.tokenizer.kind}, {prepared.tokenizer.vocab_size:,} entries")
    typer.echo(f"text       {n_bytes:,} bytes in {record['documents']:,} documents")
    typer.echo(f"tokens     {tokens:,}, {n_bytes / tokens:.2f} bytes each; {speed}")
    typer.echo(f"split      by {prepared.data.split}: {len(prepared.train):,} train, {len(prepared.valid):,} valid")
    if output is not None:
        typer.echo(f"written    {output}/tokenizer.json, train/, valid/")
