"""`lmtool embed`: contextual embeddings of words, or embeddings of whole texts; `lmtool search`: texts by these."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lmtool.cli.arguments import RUN_HELP, TEXT_HELP, Device, Json, Precision, Quiet, RunName, TypedText
from lmtool.cli.help import GroupWithDefault, argument, file_to_write, flag, folder_to_write, group, option, register
from lmtool.cli.output import check_new, describe, load_model, print_json, print_lines, print_text, warn_of_skipped
from lmtool.cli.progress import Display
from lmtool.cli.settings import TEXTS_OPTIONS, key_options, to_data, to_settings
from lmtool.errors import UsageError
from lmtool.printable import format_count

if TYPE_CHECKING:
    from lmtool.apps.search.entries import Entry
    from lmtool.recipe.spec.recipe import Recipe


@key_options(TEXTS_OPTIONS)
def embed(
    run: RunName,
    text: list[str] | None = argument("TEXT", f"{TEXT_HELP[:-1]}, the default."),
    typed: TypedText = None,
    layer: int = option("K", "0 for the embeddings, 1 for the first layer, -1 for the last.", default=-1),
    pool: Literal["none", "mean", "max", "first", "last"] = option(
        "", "How to pool each text into one vector; none gives one per word.", default="none"
    ),
    whole: bool = flag("One vector per text, pooled as the model was trained to; by mean where it was not.", "--whole"),
    output: Path | None = option(
        "FILE", "A new .npz or .jsonl file; JSON lines on stdout by default.", "--output", "-o", parser=file_to_write
    ),
    truncate: bool = flag("Truncate texts to the context.", "--truncate"),
    *,
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
    **reading: Any,
) -> None:
    """Write a model's contextual embeddings of words, or its embeddings of whole texts.

    Each line of a .txt file and each row of a table is one text.

    Examples:
    lmtool embed last lines.txt --pool mean -o vectors.npz
    lmtool embed last --whole --text "One day" --text "It rained."
    lmtool embed last - --layer 0 < lines.txt
    """
    from lmtool.compute.processes import is_main_process
    from lmtool.evaluation import embedding

    if whole and pool != "none":
        raise UsageError(f"--whole pools as the model does, not by --pool {pool}", fix="give only one of them")
    check_new(output, ".npz", ".jsonl")
    loaded = load_model(run, device, precision)
    describe(loaded, quiet or output is None)
    texts = (entry.text for entry in _read_texts(text, typed, loaded.recipe, reading))
    embedded = embedding.embed(loaded, texts, layer, "own" if whole else pool, truncate=truncate)
    if output is None or not is_main_process():
        for line in embedding.to_json_lines(embedded):
            if is_main_process():
                print_text(line)
        return
    embedding.save_embeddings(output, embedded)
    print_text(output)


def _read_texts(
    files: list[str] | None, typed: list[str] | None, recipe: "Recipe", reading: dict[str, Any]
) -> "Iterator[Entry]":
    """Yields typed texts, then those of files, by default of standard input. Warns of skipped bad rows.

    recipe: recipe of the run, whose columns are read from tables unless the options name others.
    """
    from lmtool.apps.search.entries import Entry, get_text_columns_to_index, read_entries
    from lmtool.recipe.load import Setting

    sources = files or ([] if typed else ["-"])
    stated = to_settings(reading, TEXTS_OPTIONS)
    if stated and not sources:
        raise UsageError(
            f"{stated[0].flag} is for files and tables, and there are only typed texts", fix="leave it out"
        )
    yield from (Entry("", "", text) for text in typed or [])
    data = to_data([*stated, Setting("data.column", recipe.data.column, "")])
    usual = get_text_columns_to_index(recipe)
    warn_of_skipped((yield from read_entries(sources, data, reading.get("id_column"), usual)))


@key_options(
    TEXTS_OPTIONS, {"id_column": (str | None, option("NAME", "Column of ids.", shown="FILE:ROW", panel="Data"))}
)
def index(
    texts: list[str] | None = argument("TEXT|TABLE", f"{TEXT_HELP} Each line or row is a text."),
    run: str | None = option("RUN", f"The model: {RUN_HELP[0].lower()}{RUN_HELP[1:]}", shown="that of the index"),
    output: Path = option(
        "INDEX", "The folder of the index, new or not.", "--output", "-o", default=..., parser=folder_to_write
    ),
    remove: list[str] | None = option("ID|FILE", "Remove a text, or all texts of a file. May be repeated."),
    *,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
    **reading: Any,
) -> None:
    """Make an index of texts, add texts to it, or remove some: a vector for each, pooled as the model was trained to.

    Texts that are in it already are not computed again, and those that have changed are replaced: what was interrupted
    goes on when the command is repeated.

    Examples:
    lmtool search index notes/ --run last -o notes.index
    lmtool search index news.csv --text-column headline --text-column body --id-column url -o notes.index
    lmtool search index -o notes.index --remove notes/old.txt
    """
    from lmtool.apps.search import index as indexing

    if bool(texts) is bool(remove):
        raise UsageError("give either texts to index, or --remove", fix="name files or a table; or use --remove alone")
    if texts:
        loaded = load_model(run, device, "float32") if run else indexing.open_index(output, device=device).loaded
        describe(loaded, quiet)
        entries = list(_read_texts(texts, None, loaded.recipe, reading))
        with Display(shown=True, quiet=quiet) as display:
            counts = indexing.add_or_replace_texts(output, loaded, entries, display.report)
    else:
        counts = indexing.remove_texts_by_id_or_source(output, remove or [])
    n_texts = len(indexing.Index(output).row_N)
    if as_json:
        print_json({"index": str(output), "texts": n_texts, **counts})
    else:
        print_lines(
            f"{output}: {format_count(n_texts, 'text')}; "
            + ", ".join(f"{count:,} {what}" for what, count in counts.items())
        )


@key_options(TEXTS_OPTIONS)
def query(
    index: Path = argument("INDEX", "The folder of an index.", ..., shown=True),
    queries: list[str] | None = argument(
        "QUERY", "Queries themselves; lines of standard input, which is -, by default."
    ),
    query_file: list[str] | None = option("FILE", "Queries: lines of text, rows of a table; - is standard input."),
    k: int = option("N", "How many texts to show.", "-k", default=10, min=1),
    rerank: str | None = option("RUN", "A model of pairs of texts, which reranks the nearest 100."),
    run: str | None = option("RUN", "The model of the index, where it has been moved."),
    output: Path | None = option(
        "FILE", "A new .jsonl or .csv file for what is found.", "--output", "-o", parser=file_to_write
    ),
    *,
    device: Device = "auto",
    as_json: Json = False,
    **reading: Any,
) -> None:
    """Show the texts of an index that are nearest to a query, by cosine similarity. `query` may be left out.

    Examples:
    lmtool search query notes.index "how to bake bread"
    lmtool search query notes.index "how to bake bread" -k 3 --rerank pairs
    lmtool search query notes.index --query-file questions.csv --text-column question -o answers.csv
    lmtool search query notes.index --json < questions.txt
    """
    from lmtool.apps.search.entries import hits_to_csv, hits_to_json_lines
    from lmtool.apps.search.index import open_index
    from lmtool.data.stdin import STDIN
    from lmtool.storage import durable

    check_new(output, ".jsonl", ".csv")
    opened = open_index(index, run, rerank=rerank, device=device)
    if STDIN in (queries or ()):
        queries, query_file = [text for text in queries or () if text != STDIN], [*(query_file or ()), STDIN]
    texts = [entry.text for entry in _read_texts(query_file, queries, opened.loaded.recipe, reading)]
    if empty := [number for number, text in enumerate(texts, 1) if not text.strip()]:
        raise UsageError(f"query {empty[0]} is empty", fix="write what to look for")
    answers = opened.search_each(texts, k)
    if output is not None:
        lines = hits_to_csv(answers) if output.suffix == ".csv" else hits_to_json_lines(answers)
        durable.write_output_file(output, map(str.encode, lines))
        print_text(output)
    elif as_json:
        for line in hits_to_json_lines(answers):
            print_text(line, end="")
    else:
        for text, entries in answers:
            shown = [f"{one.score:.4f}  {one.id}  {' '.join(one.text.split())[:200]}" for one in entries]
            print_lines(*([text] if len(texts) > 1 else []), *shown)


HELP = "Find texts by meaning: lmtool search INDEX QUERY searches an index that lmtool search index made."
searches = group(HELP, 'lmtool search query notes.index "how to bake bread"', cls=GroupWithDefault)
register(searches, "index", index)
register(searches, "query", query)
