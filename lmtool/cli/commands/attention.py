"""`lmtool attention`: the attention weights of a model on a text, in the terminal, as a page, or as numbers."""

from pathlib import Path
from typing import Literal

from lmtool.cli.arguments import Device, Json, Quiet, RunName
from lmtool.cli.help import argument, file_to_write, flag, option
from lmtool.cli.output import check_new, describe, print_json, print_lines, print_text, warn_of_file_names
from lmtool.errors import UsageError


def attention(
    run: RunName,
    text: list[str] | None = argument(
        "SENTENCE", "A text itself, or -; one for each text of a row, for a classifier of several."
    ),
    source: str | None = option("TEXT", "For a model that answers sources, in place of SENTENCE: the source."),
    target: str | None = option("TEXT", "Its target; the model's own by default, decoded greedily."),
    kind: Literal["self", "encoder", "decoder", "cross", "memory", "pooling"] | None = option(
        "", "Which attention to show, where there are several; of a target to its source first."
    ),
    layer: int = option("K", "Layer to show, counted from 0; -1 is the last.", default=-1),
    head: int | None = option("K", "Head to show, counted from 0; the mean of all by default."),
    compare_heads: bool = flag("Show a line for each head instead: where its weight is on average.", "--compare-heads"),
    output: Path | None = option(
        "FILE", "A new .html page with all layers and heads.", "--output", "-o", parser=file_to_write
    ),
    npz: Path | None = option("FILE", "A new .npz file: layers, heads, queries, keys.", parser=file_to_write),
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show which tokens a model attends to: Transformers, and recurrent models with attention.

    The weights are those of the forward pass that computes. For a classifier, also the words that decided.

    Examples:
    lmtool attention last "The animal was tired." --layer 0 --head 1
    lmtool attention last "The animal was tired." --compare-heads
    lmtool attention last "The animal was tired." -o page.html
    lmtool attention last --source "Ein Hund läuft." --target "A dog runs." --npz weights.npz
    """
    from itertools import chain

    from rich.console import Console

    from lmtool.compute.device import configure_compute
    from lmtool.evaluation.attention import compute_attention
    from lmtool.evaluation.attribution import attribute_words
    from lmtool.generation.prompts import resolve_stdin_text
    from lmtool.interop.resolve import resolve_reference
    from lmtool.model.heads import Classifier
    from lmtool.report.attention import (
        format_attention_head,
        format_attribution,
        format_head_summaries,
        render_attention_page,
    )
    from lmtool.report.page import write_page
    from lmtool.runs.load import load_run

    if compare_heads and (output is not None or npz is not None):
        raise UsageError("--compare-heads prints a table, and writes no file", fix="leave it out, or -o and --npz")
    check_new(output, ".html")
    check_new(npz, ".npz")
    warn_of_file_names(filter(None, [*(text or ()), source, target]))
    loaded = load_run(resolve_reference(run), configure_compute(device, "float32"))
    describe(loaded, quiet)
    texts = [resolve_stdin_text(one) for one in text or ()]
    attended = compute_attention(loaded, texts, source=source, target=target)
    decided = attribute_words(loaded, texts, attended) if isinstance(loaded.model, Classifier) else None
    shown = attended.part(kind)
    shown.head(layer, head)
    if output is not None:
        write_page(
            output, render_attention_page(attended, decided, initial_kind=kind, initial_layer=layer, initial_head=head)
        )
    if npz is not None:
        attended.save_npz(npz)
    if as_json:
        heads = {"heads": [head._asdict() for head in shown.summarize_heads()]} if compare_heads else {}
        print_json(attended.to_json() | heads | ({} if decided is None else {"attribution": decided.to_json()}))
    elif compare_heads:
        print_lines(*format_head_summaries(shown))
    elif output is not None or npz is not None:
        for path in filter(None, (output, npz)):
            print_text(path)
    else:
        console = Console(highlight=False)
        words = () if decided is None else format_attribution(decided)
        for line in chain(format_attention_head(shown, layer, head, console.width), words):
            console.print(line, no_wrap=True, crop=False, overflow="ignore")
