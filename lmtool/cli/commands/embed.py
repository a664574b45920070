"""`lmtool embed`: contextual embeddings of words, or embeddings of whole texts."""

from pathlib import Path
from typing import Literal

import typer

from lmtool.cli.arguments import TEXT_HELP, Device, Precision, Quiet, RunName, TypedText
from lmtool.cli.help import argument, flag, option
from lmtool.cli.output import check_new, describe, open_model, put
from lmtool.cli.settings import Column
from lmtool.errors import UsageError


def embed(
    run: RunName,
    text: list[str] | None = argument("TEXT", f"{TEXT_HELP[:-1]}; - is standard input, the default."),
    typed: TypedText = None,
    layer: int = option("K", "0 for the embeddings, 1 for the first layer, -1 for the last.", default=-1),
    pool: Literal["none", "mean", "max", "first", "last"] = option(
        "", "How to pool each text into one vector; none gives one per word.", default="none"
    ),
    whole: bool = flag("One vector per text, pooled as the model was trained to; by mean where it was not.", "--whole"),
    output: Path | None = option(
        "FILE", "A new .npz or .jsonl file; JSON lines on stdout by default.", "--output", "-o"
    ),
    truncate: bool = flag("Truncate texts to the context.", "--truncate"),
    column: Column = None,
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Write a model's contextual embeddings of words, or its embeddings of whole texts.

    Each line of a .txt file and each row of a table is one text.

    Examples:
    lmtool embed last lines.txt --pool mean -o vectors.npz
    lmtool embed last --whole --text "One day" --text "It rained."
    lmtool embed last - --layer 0 < lines.txt
    """
    from lmtool.compute.processes import is_main
    from lmtool.inference import embedding

    if whole and pool != "none":
        raise UsageError(f"--whole pools as the model does, not by --pool {pool}", fix="give only one of them")
    check_new(output, ".npz", ".jsonl")
    loaded = open_model(run, device, precision)
    describe(loaded, quiet or output is None)
    texts = embedding.read_texts(text or [], column or loaded.recipe.data.column, typed or [])
    embedded = embedding.embed(loaded, texts, layer, "own" if whole else pool, truncate=truncate)
    if output is None or not is_main():
        for line in embedding.as_lines(embedded):
            if is_main():
                typer.echo(line)
        return
    embedding.save(output, embedded)
    put(output)
