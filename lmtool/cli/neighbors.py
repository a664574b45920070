"""`lmtool neighbors`: the nearest neighbours of a word."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.arguments import Column, Device, HtmlFile, Json, Quiet, RunName, as_data, reads_tables
from lmtool.cli.output import check_new, describe, show_lines
from lmtool.errors import UsageError
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.recipe.load import Setting


@reads_tables("encoding", "delimiter", "skip_bad_rows")
def neighbors(
    run: RunName,
    word: Annotated[
        str | None,
        typer.Argument(
            metavar="WORD",
            help="A word that is one token of the run; with --in any of that text.",
            show_default=False,
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="How many to show.")] = 10,
    analogy: Annotated[
        tuple[str, str, str] | None,
        typer.Option(
            metavar="A B C",
            help="Instead of WORD: what is to C as A is to B; king man woman.",
            show_default=False,
        ),
    ] = None,
    similarity: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Instead of WORD: a table of pairs of words and their similarity, to correlate with.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--in", metavar="TEXT", help="The word as it is meant in this text.", show_default=False),
    ] = None,
    among: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="With --in: files of texts, whose words may be neighbours.", show_default=False
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="With --in: 0 for the embeddings, 1 for the first layer.",
            show_default="-1, the last",
        ),
    ] = None,
    column: Column = None,
    method: Annotated[
        Literal["pca", "tsne"] | None,
        typer.Option("--map", help="Draw the word and its neighbours in the plane.", show_default=False),
    ] = None,
    output: HtmlFile = None,
    reading: "Sequence[Setting]" = (),
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the nearest neighbours of a word by cosine similarity of their vectors.

    The vectors are static: those of skip-gram, or the token embeddings of any other model. With --in they are the
    states of a layer, which depend on the text around a word. --analogy A B C lists the words nearest to A - B + C, and
    --similarity ranks pairs of words against people's judgements by Spearman's rho.
    """
    import json

    from lmtool.inference import embedding
    from lmtool.inference.neighbors import analogy as find_analogy
    from lmtool.inference.neighbors import neighbors as find
    from lmtool.inference.neighbors import neighbors_in_context
    from lmtool.interop.reference import run_of
    from lmtool.report import neighbors as report
    from lmtool.report.page import write_page

    if [word, analogy, similarity].count(None) != 2:
        raise UsageError("give a WORD, --analogy or --similarity", fix="one of them: lmtool neighbors RUN WORD")
    if word is None and (text is not None or among):
        raise UsageError("--in and --among are for a WORD", fix="give one, or omit them")
    if (text is None) != (not among) or (text is None and (layer is not None or column is not None)):
        raise UsageError("--in, --among, --layer and --column belong together", fix="give at least --in and --among")
    if reading and similarity is None:
        raise UsageError(f"{reading[0].flag} is for the table of --similarity", fix="omit it")
    check_new(output)
    reference = run_of(run)
    if similarity is not None:
        from lmtool.tables.similarity import measure_similarity

        if method is not None or output is not None:
            raise UsageError("--similarity has no map", fix="omit --map and -o")
        measured = measure_similarity(reference, similarity, device=device, reading=as_data(reading))
        describe(measured.loaded, quiet)
        for line in [json.dumps(measured.record())] if as_json else measured.lines():
            typer.echo(plain(line))
        if measured.skipped.count:
            typer.echo(plain(f"warning: {measured.skipped}"), err=True)
        return
    if analogy is not None:
        found = find_analogy(reference, analogy, k, device=device)
    elif text is None:
        assert word is not None
        found = find(reference, word, k, device=device)
    else:
        assert word is not None
        texts = embedding.read_texts(among or [], column or "text")
        found = neighbors_in_context(reference, word, text, texts, -1 if layer is None else layer, k, device=device)
    describe(found.loaded, quiet)
    if method is None and output is not None:
        method = "pca"
    if method is not None and len(found.nearest) < 3:
        raise UsageError(f"{len(found.nearest)} neighbours are too few for a map", fix="ask for 3 or more with -k")
    if output is not None and method is not None:
        write_page(output, report.as_page(found, method))
    if as_json:
        places = report.points(found, method) if method else []
        nearest = [
            {"word": neighbor.word, "similarity": neighbor.similarity}
            | ({} if neighbor.text is None else {"text": neighbor.text})
            | ({"x": places[i][0], "y": places[i][1]} if places else {})
            for i, neighbor in enumerate(found.nearest, 1)
        ]
        typer.echo(json.dumps({"word": found.word, "neighbors": nearest}))
    elif output is not None:
        typer.echo(plain(str(output)))
    elif method is not None:
        show_lines(partial(report.as_lines, found, method))
    else:
        for line in report.list_lines(found):
            typer.echo(plain(line))
