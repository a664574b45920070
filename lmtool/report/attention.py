"""Pictures of attention: a page to explore all layers and heads, and one head in a terminal.

Shapes: L layers, N heads, T queries, S keys.
"""

import base64
from collections.abc import Iterable, Iterator

import numpy as np
from markupsafe import Markup
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from lmtool.analysis.attention import AttentionKind, AttentionWeights, TextAttention
from lmtool.analysis.attribution import Attribution
from lmtool.errors import UsageError
from lmtool.printable import align_columns, printable
from lmtool.report.page import Section, asset, embed, page, render, table

PAGE_WEIGHTS = 8_000_000
"""Most weights of a page, 21 MB; browsers become slow beyond."""

TITLES: dict[AttentionKind, str] = {
    "self": "Self-attention",
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
    "cross": "Attention of the target to its source",
    "memory": "Attention to past states",
    "pooling": "Attention that pools the text",
}
LABEL_WIDTH = 16
"""Most terminal cells of a token."""


def attention_page(
    attended: TextAttention,
    decided: Attribution | None = None,
    *,
    kind: AttentionKind | None = None,
    layer: int = -1,
    head: int | None = None,
) -> str:
    """A page with every weight: one head as a heat map and as linked words, and all layers by heads in small.

    decided: of a classifier, shown as a table. kind, layer, head: what is shown first.
    Raises UsageError where these do not exist, and for a text too long for a page.
    """
    n_weights = sum(part.weights_LNTS.size for part in attended.parts)
    if n_weights > PAGE_WEIGHTS:
        what = f"a page of {n_weights:,} weights is too large; {PAGE_WEIGHTS:,} fit"
        raise UsageError(what, fix="write them with --npz FILE, or shorten the text")
    first = attended.part(kind)
    first.head(layer, head)
    n_layers, n_heads = first.weights_LNTS.shape[:2]
    shown = -1 if head is None else head % n_heads
    start = {"part": attended.parts.index(first), "layer": layer % n_layers, "head": shown}
    data = {"parts": [_packed(part) for part in attended.parts], "start": start}
    sections = [Section("Weights", Markup("\n").join((render("attention.html"), embed("attention-data", data))))]
    if decided is not None:
        sections.append(Section("Words that decided", _words(decided)))
    lead = printable(f"{attended.run}, step {attended.step}")
    return page("Attention", sections, lead=lead, styles=[asset("attention.css")], scripts=[asset("attention.js")])


def _packed(part: AttentionWeights) -> dict[str, object]:
    """Weights as 16-bit integers, 65535 for 1, in little-endian order and base64."""
    weights = np.round(part.weights_LNTS * 65535).astype("<u2")
    return {
        "kind": part.kind,
        "title": TITLES[part.kind],
        "queries": part.queries,
        "keys": part.keys,
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "weights": base64.b64encode(weights.tobytes()).decode("ascii"),
    }


def _words(decided: Attribution) -> Markup:
    columns = ("word", *(name for name, _ in decided.columns()))
    rounded = ([round(value, 4) for value in values] for _, values in decided.columns())
    rows = zip(decided.words, *rounded, strict=True)
    lead = f"{printable(decided.label)}, {decided.score:.3f}" if decided.label else f"{decided.score:.4g}"
    return table(columns, list(rows), caption=f"Prediction: {lead}", headed=True)


def matrix_lines(part: AttentionWeights, layer: int, head: int | None, width: int) -> Iterator[Text]:
    """One head for a terminal of `width` cells: a row for each query, percentages on shades, keys by number.

    Without colour the percentages remain; below half a percent they are a dot. Keys that do not fit beside each other
    follow below. layer, head: as in `AttentionWeights.head`, whose errors are raised.
    """
    weights_TS = part.head(layer, head)
    n_layers, n_heads = part.weights_LNTS.shape[:2]
    of_heads = f"mean of {n_heads} heads" if head is None else f"head {head % n_heads}"
    shown = f"layer {layer % n_layers}, {of_heads if n_heads > 1 else 'its only head'}"
    yield Text(f"{TITLES[part.kind]}, {shown}, in percent")
    if part.keys != part.queries:
        yield from _flowing((f"{i} {key}" for i, key in enumerate(part.keys)), width)
    n_digits = len(str(len(part.queries) - 1))
    label = n_digits + 1 + min(LABEL_WIDTH, max(map(cell_len, part.queries)))
    # 100 fills a cell of 3, which no other number of its row does then, unless rows sum to more
    cell = 1 + max(2, len(str(len(part.keys) - 1)), 3 if weights_TS.sum(-1).max() > 1.01 else 2)
    at_once = max(1, (width - label) // cell)
    for first in range(0, len(part.keys), at_once):
        chosen = range(first, min(first + at_once, len(part.keys)))
        yield Text(" " * label + "".join(f"{i:{cell}}" for i in chosen))
        for i, (query, row) in enumerate(zip(part.queries, weights_TS[:, chosen], strict=True)):
            name = f"{i:{n_digits}} {query}"
            line = Text(set_cell_size(name, label))
            for weight in row.tolist():
                percent = round(100 * weight)
                line.append(f"{percent or '·':>{cell}}", style=_shade(weight) if percent else "")
            yield line


def attribution_lines(decided: Attribution) -> Iterator[Text]:
    """The words of a text and what each contributes, for a terminal."""
    label = printable(decided.label) or "prediction"
    yield Text(f"{label} {decided.score:.4g}; what each word adds:")
    columns = [("word", *decided.words), *((name, *(f"{x:.3f}" for x in values)) for name, values in decided.columns())]
    yield from map(Text, align_columns(list(zip(*columns, strict=True))))


def _shade(weight: float) -> str:
    """A style of rich: from white to blue, with the ink that is legible on it."""
    share = min(1.0, weight)
    red, green, blue = (round(255 + share * (full - 255)) for full in (31, 95, 191))
    return f"{'white' if share > 0.55 else 'black'} on rgb({red},{green},{blue})"


def _flowing(parts: Iterable[str], width: int) -> Iterator[Text]:
    """Parts two cells apart, in as few lines as the width allows."""
    line = ""
    for part in parts:
        joined = f"{line}  {part}" if line else part
        if line and cell_len(joined) > width:
            yield Text(line)
            joined = part
        line = joined
    yield Text(line)
