"""Pictures of attention weights: a page to explore all layers and heads, or one head in a terminal.

Shapes: L layers, N heads, T queries, S keys.
"""

import base64
from collections.abc import Iterable, Iterator

import numpy as np
from markupsafe import Markup
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from lmtool.errors import UsageError
from lmtool.evaluation.attention import AttentionKind, AttentionWeights, TextAttention
from lmtool.evaluation.attribution import WordAttribution
from lmtool.printable import align_columns, printable
from lmtool.report.page import Section, embed_json, page, render, table

MAX_PAGE_WEIGHTS = 8_000_000
"""Most attention weights of a page, 21 MB; browsers become slow beyond."""

ATTENTION_TITLES: dict[AttentionKind, str] = {
    "self": "Self-attention",
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
    "cross": "Attention of the target to its source",
    "memory": "Attention to past states",
    "pooling": "Attention that pools the text",
}
MAX_LABEL_CELLS = 16
"""Terminal cells of the name of a token."""


def render_attention_page(
    attention: TextAttention,
    attribution: WordAttribution | None = None,
    *,
    initial_kind: AttentionKind | None = None,
    initial_layer: int = -1,
    initial_head: int | None = None,
) -> str:
    """Renders a page with every weight: one head as a heat map and as linked words, and small maps of all heads.

    attribution: of a classifier, shown as a table. initial_kind, initial_layer, initial_head: what is shown first.
    Raises UsageError if these do not exist, and for a text that is too long for a page.
    """
    n_weights = sum(part.weights_LNTS.size for part in attention.parts)
    if n_weights > MAX_PAGE_WEIGHTS:
        what = f"a page of {n_weights:,} weights is too large; {MAX_PAGE_WEIGHTS:,} fit"
        raise UsageError(what, fix="write them with --npz FILE, or shorten the text")
    first = attention.part(initial_kind)
    first.head(initial_layer, initial_head)
    n_layers, n_heads = first.weights_LNTS.shape[:2]
    shown = -1 if initial_head is None else initial_head % n_heads
    start = {"part": attention.parts.index(first), "layer": initial_layer % n_layers, "head": shown}
    data = {"parts": [_pack_weights_as_base64(part) for part in attention.parts], "start": start}
    sections = [Section("Weights", Markup("\n").join((render("attention.html"), embed_json("attention-data", data))))]
    if attribution is not None:
        columns = ("word", *(name for name, _ in attribution.columns()))
        rounded = ([round(value, 4) for value in values] for _, values in attribution.columns())
        rows = zip(attribution.words, *rounded, strict=True)
        score = f"{printable(attribution.label)}, {attribution.score:.3f}"
        caption = f"Prediction: {score if attribution.label else f'{attribution.score:.4g}'}"
        sections.append(Section("Words that decided", table(columns, rows, caption=caption, row_headers=True)))
    lead = printable(f"{attention.run}, step {attention.step}")
    return page("Attention", sections, lead=lead, styles=["attention.css"], scripts=["attention.js"])


def _pack_weights_as_base64(attention: AttentionWeights) -> dict[str, object]:
    """Encodes weights as 16-bit integers, 65535 for 1, in little-endian order and base64."""
    weights = np.round(attention.weights_LNTS * 65535).astype("<u2")
    return {
        "kind": attention.kind,
        "title": ATTENTION_TITLES[attention.kind],
        "queries": attention.queries,
        "keys": attention.keys,
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "weights": base64.b64encode(weights.tobytes()).decode("ascii"),
    }


def format_attention_head(attention: AttentionWeights, layer: int, head: int | None, width: int) -> Iterator[Text]:
    """Formats one head for a terminal of `width` cells: a row for each query, shaded percentages, keys by number.

    Less than half a percent is a dot. Keys that do not fit the width follow below. layer, head: see
    `AttentionWeights.head`, whose errors are raised.
    """
    weights_TS = attention.head(layer, head)
    n_layers, n_heads = attention.weights_LNTS.shape[:2]
    of_heads = f"mean of {n_heads} heads" if head is None else f"head {head % n_heads}"
    shown = f"layer {layer % n_layers}, {of_heads if n_heads > 1 else 'its only head'}"
    yield Text(f"{ATTENTION_TITLES[attention.kind]}, {shown}, in percent")
    if attention.keys != attention.queries:
        yield from _wrap_items((f"{i} {key}" for i, key in enumerate(attention.keys)), width)
    n_digits = len(str(len(attention.queries) - 1))
    label = n_digits + 1 + min(MAX_LABEL_CELLS, max(map(cell_len, attention.queries)))
    # 100 fills a cell of 3, which no other number of its row does then, unless rows sum to more
    cell = 1 + max(2, len(str(len(attention.keys) - 1)), 3 if weights_TS.sum(-1).max() > 1.01 else 2)
    at_once = max(1, (width - label) // cell)
    for first in range(0, len(attention.keys), at_once):
        chosen = range(first, min(first + at_once, len(attention.keys)))
        yield Text(" " * label + "".join(f"{i:{cell}}" for i in chosen))
        for i, (query, row) in enumerate(zip(attention.queries, weights_TS[:, chosen], strict=True)):
            name = f"{i:{n_digits}} {query}"
            line = Text(set_cell_size(name, label))
            for weight in row.tolist():
                percent, share = round(100 * weight), min(1.0, weight)
                # a background from white to blue, and the colour of text that is legible on it
                red, green, blue = (round(255 + share * (full - 255)) for full in (31, 95, 191))
                shade = f"{'white' if share > 0.55 else 'black'} on rgb({red},{green},{blue})"
                line.append(f"{percent or '·':>{cell}}", style=shade if percent else "")
            yield line


def format_head_summaries(attention: AttentionWeights) -> Iterator[str]:
    """Formats a table with a row for each head: see `HeadSummary`, whose names are the columns."""
    yield f"{ATTENTION_TITLES[attention.kind]}, means over the queries"
    heads = [
        {name: value for name, value in head._asdict().items() if value is not None}
        for head in attention.summarize_heads()
    ]
    cells = [[str(value) if isinstance(value, int) else f"{value:.2f}" for value in head.values()] for head in heads]
    yield from align_columns([list(heads[0]), *cells])


def format_attribution(attribution: WordAttribution) -> Iterator[Text]:
    """Formats the words of a text and what each contributes, for a terminal."""
    label = printable(attribution.label) or "prediction"
    yield Text(f"{label} {attribution.score:.4g}; what each word adds:")
    columns = [(name, *(f"{value:.3f}" for value in values)) for name, values in attribution.columns()]
    yield from map(Text, align_columns(list(zip(("word", *attribution.words), *columns, strict=True))))


def _wrap_items(items: Iterable[str], width: int) -> Iterator[Text]:
    """Joins items, two cells apart, to lines of at most `width` cells."""
    line = ""
    for part in items:
        joined = f"{line}  {part}" if line else part
        if line and cell_len(joined) > width:
            yield Text(line)
            joined = part
        line = joined
    yield Text(line)
