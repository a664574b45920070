"""`lmtool embed`: contextual embeddings of words, or embeddings of whole texts; `lmtool search`: texts by these."""

from pathlib import Path
from typing import Literal

import typer

from lmtool.cli.arguments import RUN_HELP, TEXT_HELP, Device, Json, Precision, Quiet, RunName, TypedText
from lmtool.cli.help import GroupWithDefault, argument, flag, group, option, register
from lmtool.cli.output import check_new, describe, open_model, put, put_json
from lmtool.cli.progress import Display
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


def index(
    texts: list[str] | None = argument("FILES|TABLE", f"{TEXT_HELP} Each line or row is a text."),
    run: str | None = option("RUN", f"The model: {RUN_HELP[0].lower()}{RUN_HELP[1:]}", shown="that of the index"),
    output: Path = option("INDEX", "The folder of the index, new or not.", "--output", "-o", default=...),
    remove: list[str] | None = option("ID|FILE", "Remove a text, or all texts of a file. May be repeated."),
    column: Column = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make an index of texts, add texts to it, or remove some: a vector for each, pooled as the model was trained to.

    Texts that are in it already are not computed again, and those that have changed are replaced: what was interrupted
    goes on when the command is repeated.

    Examples:
    lmtool search index notes/ --run last -o notes.index
    lmtool search index news.csv --column headline -o notes.index
    lmtool search index -o notes.index --remove notes/old.txt
    """
    from lmtool.search import index as indexing

    if bool(texts) is bool(remove):
        raise UsageError("nothing to index, or two things to do", fix="name files or a table, or else give --remove")
    if texts:
        loaded = open_model(run or indexing.Index(output).run, device, "float32")
        describe(loaded, quiet)
        entries = indexing.read_entries(texts, column or loaded.recipe.data.column)
        with Display(shown=True, quiet=quiet) as display:
            counts = indexing.add(output, loaded, entries, display.report)
    else:
        counts = indexing.remove(output, remove or [])
    n_texts = len(indexing.Index(output).row_N)
    if as_json:
        put_json({"index": str(output), "texts": n_texts, **counts})
    else:
        put(f"{output}: {n_texts:,} texts; {', '.join(f'{count:,} {what}' for what, count in counts.items())}")


def query(
    index: Path = argument("INDEX", "The folder of an index.", ..., shown=True),
    queries: list[str] | None = argument("QUERY", "Queries; lines of standard input by default."),
    k: int = option("N", "How many texts to show.", "-k", default=10, min=1),
    rerank: str | None = option("RUN", "A model of pairs of texts, which ranks the nearest 100 anew."),
    run: str | None = option("RUN", "The model of the index, where it has been moved."),
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show the texts of an index that are nearest to a query, by cosine similarity. `query` may be left out.

    Examples:
    lmtool search query notes.index "how to bake bread"
    lmtool search query notes.index "how to bake bread" -k 3 --rerank pairs
    lmtool search query notes.index --json < questions.txt
    """
    from lmtool.inference.embedding import read_texts
    from lmtool.search.index import open_index

    opened = open_index(index, run, rerank=rerank, device=device)
    texts = list(read_texts([], "", queries or []))
    for text, entries in zip(texts, opened.search(texts, k), strict=True):
        lines = [f"{one.score:.4f}  {one.id}  {' '.join(one.text.split())[:200]}" for one in entries]
        if as_json:
            put_json({"query": text, "hits": [entry._asdict() for entry in entries]})
        else:
            put(*([text] if len(texts) > 1 else []), *lines)


HELP = "Find texts by what they mean: lmtool search INDEX QUERY, in what lmtool search index has made."
searches = group(HELP, 'lmtool search query notes.index "how to bake bread"', cls=GroupWithDefault)
register(searches, "index", index)
register(searches, "query", query)
