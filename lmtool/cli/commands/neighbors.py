"""`lmtool neighbors`: the nearest neighbours of a word."""

from functools import partial
from typing import Any, Literal

from lmtool.cli.arguments import Device, HtmlFile, Json, Quiet, RunName
from lmtool.cli.help import argument, flag, option
from lmtool.cli.output import check_new, describe, print_json, print_lines, print_result, show_picture, warn_of_skipped
from lmtool.cli.settings import COLUMN_HELP, READ_OPTIONS, key_options, to_data, to_settings
from lmtool.errors import UsageError


@key_options({key: READ_OPTIONS[key] for key in ("data.encoding", "data.delimiter", "data.skip_bad_rows")})
def neighbors(
    run: RunName,
    word: str | None = argument("WORD", "A word that is one token of the run; with --in any of that text."),
    k: int | None = option("N", "How many to show.", "-k", shown="10; with --only all", min=1),
    analogy: tuple[str, str, str] | None = option(
        "A B C", "Instead of WORD: what is to C as A is to B; king man woman."
    ),
    similarity: str | None = option(
        "FILE", "Instead of WORD: a table of pairs of words and their similarity, to correlate with."
    ),
    only: str | None = option("WORD,...", "Compare WORD with these words alone."),
    text: str | None = option("TEXT", "The word as it is meant in this text.", "--in"),
    among: list[str] | None = option("FILE", "With --in: files of texts, whose words may be neighbours."),
    distinct: bool = flag("With --in: list each word once, where it is nearest.", "--distinct"),
    layer: int | None = option("K", "With --in: 0 for the embeddings, 1 for the first layer.", shown="-1, the last"),
    column: str | None = option("NAME", COLUMN_HELP, "--column", "--text-column"),
    method: Literal["pca", "tsne"] | None = option("", "Draw the word and its neighbours in the plane.", "--map"),
    output: HtmlFile = None,
    *,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
    **reading: Any,
) -> None:
    """List the nearest neighbours of a word by cosine similarity of their vectors.

    The vectors are static: those of skip-gram, or the token embeddings of any other model. With --in they are the
    states of a layer, which depend on the text around a word. --analogy A B C lists the words nearest to A - B + C, and
    --similarity ranks pairs of words against people's judgements by Spearman's rho.

    Examples:
    lmtool neighbors last moon -k 5
    lmtool neighbors last moon --only sun,star,cheese --map pca
    lmtool neighbors last bank --in "the bank of the river" --among texts.txt --map pca
    """
    from lmtool.apps.search.entries import read_entries
    from lmtool.compute.device import configure_compute
    from lmtool.evaluation import neighbors as analysis
    from lmtool.interop.resolve import resolve_reference
    from lmtool.recipe.spec.text import Data
    from lmtool.report import neighbors as report
    from lmtool.runs.load import load_run

    if [word, analogy, similarity].count(None) != 2:
        raise UsageError("give a WORD, --analogy or --similarity", fix="one of them: lmtool neighbors RUN WORD")
    if word is None and (text is not None or among):
        raise UsageError("--in and --among need a WORD", fix="give one, or omit them")
    if (text is None) != (not among) or (text is None and (layer is not None or column is not None or distinct)):
        what = "--in, --among, --distinct, --layer and --column belong together"
        raise UsageError(what, fix="give at least --in and --among")
    candidates = None if only is None else [one.strip() for one in only.split(",")]
    if candidates is not None and (word is None or text is not None):
        raise UsageError("--only needs a WORD, without --in", fix="give one: lmtool neighbors RUN WORD --only A,B,C")
    k = k or (10 if candidates is None else len(candidates))
    settings = to_settings(reading)
    if settings and similarity is None:
        raise UsageError(f"{settings[0].flag} is only for --similarity, which reads a table", fix="omit it")
    check_new(output)
    if similarity is not None:
        if method is not None or output is not None:
            raise UsageError("--similarity draws no map", fix="omit --map and -o")
        measured = analysis.correlate_with_human_similarities(
            run, similarity, device=device, table_format=to_data(settings)
        )
        describe(measured.loaded, quiet)
        print_result(measured, as_json)
        warn_of_skipped(measured.skipped)
        return
    loaded = load_run(resolve_reference(run), configure_compute(device, "float32"))
    if analogy is not None:
        result = analysis.solve_analogy(loaded, analogy, k)
    elif text is None:
        assert word is not None
        result = analysis.find_neighbors(loaded, word, k, candidates)
    else:
        assert word is not None
        texts = (entry.text for entry in read_entries(among or [], Data(column=column or "text")))
        layer = -1 if layer is None else layer
        result = analysis.find_context_neighbors(loaded, word, text, texts, layer, k, each_word_once=distinct)
    describe(result.loaded, quiet)
    if method is None and output is not None:
        method = "pca"
    if method is not None and len(result.nearest) < 3:
        raise UsageError(f"{len(result.nearest)} neighbours are too few for a map", fix="ask for 3 or more with -k")
    value: dict[str, object] | None = None
    if as_json:
        drawn = report.project_neighbors(result, method)[1:] if method else []
        on_map = [{"x": x, "y": y} for x, y in drawn] or [{}] * len(result.nearest)
        nearest = [
            {"word": one.word, "similarity": one.similarity} | ({} if one.text is None else {"text": one.text}) | point
            for one, point in zip(result.nearest, on_map, strict=True)
        ]
        value = {"word": result.word, "neighbors": nearest}
    if method is not None:
        show_picture(
            partial(report.format_neighbor_map_lines, result, method),
            partial(report.render_neighbor_map_page, result, method),
            output,
            value,
        )
    elif as_json:
        print_json(value)
    else:
        print_lines(*report.format_neighbors(result))
