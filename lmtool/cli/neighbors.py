"""`lmtool neighbors`: the nearest neighbours of a word."""

from typing import Annotated

import typer

from lmtool.cli.arguments import Device, Json, Quiet, RunName
from lmtool.cli.output import describe
from lmtool.printable import plain


def neighbors(
    run: RunName,
    word: Annotated[str, typer.Argument(metavar="WORD", help="A word that is one token of the run.")],
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="How many to show.")] = 10,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the nearest neighbours of a word by cosine similarity of their vectors.

    The vectors are static: those of skip-gram, or the token embeddings of any other model.
    """
    import json

    from lmtool.inference.neighbors import neighbors as find
    from lmtool.interop.reference import run_of

    found = find(run_of(run), word, k, device=device)
    describe(found.loaded, quiet)
    if as_json:
        nearest = [{"word": neighbor.word, "similarity": neighbor.similarity} for neighbor in found.nearest]
        typer.echo(json.dumps({"word": found.word, "neighbors": nearest}))
        return
    for neighbor in found.nearest:
        typer.echo(f"{neighbor.similarity:.3f}  {plain(neighbor.word)}")
