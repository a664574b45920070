"""`lmtool embed`: vectors of words in their context, or of whole texts."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.arguments import Column, Device, Precision, Quiet, Run
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.engine.embed import Embedded


def embed(
    run: Run,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="Files, folders or globs (.txt .jsonl .csv .parquet, also .gz), or hf:NAME; lines of standard input "
            "when there is none.",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int, typer.Option("--layer", metavar="K", help="0 for the embeddings, 1 for the first layer, -1 for the last.")
    ] = -1,
    pool: Annotated[
        Literal["none", "mean", "max", "first", "last"],
        typer.Option(help="One vector for each text in place of one for each word."),
    ] = "none",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="A new .npz or .jsonl file; JSON lines on stdout by default."
        ),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", metavar="", help="Cut off what is beyond the context.")
    ] = False,
    column: Column = None,
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Write the vectors that a model gives to words in their context, or to whole texts.

    Each line of a .txt file and each row of a table is a text.
    """
    from lmtool.decoding.prompts import read_prompts
    from lmtool.engine import embed as engine
    from lmtool.engine.build import load_packed
    from lmtool.errors import UsageError
    from lmtool.text.disk import refusing_disk

    if output is not None and output.suffix not in (".npz", ".jsonl"):
        raise UsageError(
            "the output is neither .npz nor .jsonl", where=str(output), fix="end its name with one of them"
        )
    if output is not None and output.exists():
        raise UsageError("the output exists already", where=str(output), fix="choose another name with -o")
    loaded = load_packed(run, device=device, precision=precision)
    for warning in loaded.warnings:
        typer.echo(plain(f"warning: {warning}"), err=True)
    if text:
        texts = engine.read_texts(text, column or loaded.recipe.data.column)
    else:
        texts = (line for line in read_prompts("-") if line.strip())
    found = engine.embed(loaded, texts, layer, pool, truncate=truncate)
    if output is None:
        for line in _lines(found, pool != "none"):
            typer.echo(line)
        return
    with refusing_disk(output):
        if output.suffix == ".npz":
            _write_arrays(output, found, pool != "none")
        else:
            _write(output, (f"{line}\n".encode() for line in _lines(found, pool != "none")))
    if not quiet:
        typer.echo(plain(f"{loaded.run_path}, step {loaded.step}, {loaded.compute.describe()}"), err=True)
    typer.echo(plain(str(output)))


def _lines(found: "Iterable[Embedded]", pooled: bool) -> Iterator[str]:
    """A JSON object for each text."""
    for one in found:
        vectors = one.vectors.tolist()
        own = {"vector": vectors[0]} if pooled else {"words": one.words, "vectors": vectors}
        yield json.dumps({"text": one.text, **own})


def _write_arrays(path: Path, found: "Iterable[Embedded]", pooled: bool) -> None:
    """vectors (N, D), texts (N): the number of the text of each, and words (N) unless texts are pooled."""
    import io

    import numpy as np

    every = list(found)
    arrays = {
        "vectors": np.concatenate([one.vectors for one in every]),
        "texts": np.repeat([one.text for one in every], [len(one.vectors) for one in every]),
    }
    if not pooled:
        arrays["words"] = np.array([word for one in every for word in one.words])
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    _write(path, [buffer.getbuffer()])


def _write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Under another name first, so that the file is whole as soon as it is there."""
    from lmtool import durable

    temporary = path.with_name(f"{durable.TEMPORARY}{path.name}")
    try:
        durable.write_new(temporary, chunks)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
