"""A recipe's model as pictures: its tree of parts, its attention masks for a short row, its position signal."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch
from rich.text import Text
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import Batch, Mask
from lmtool.cost.summary import ModelPart, default_prefix_length, make_layer_mask, summarize_model
from lmtool.errors import RecipeError
from lmtool.model.layers.memory_attention import earlier
from lmtool.model.layers.positions import RelativePositions, RotaryPositions, alibi_slopes, build_position
from lmtool.model.size import BEYOND, size_of
from lmtool.printable import align_columns, printable
from lmtool.recipe.spec import position as positions
from lmtool.recipe.spec.objective import HeadSpec
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.transformer import Transformer, WindowPattern
from lmtool.report.charts import HeatMap, Line, LineChart
from lmtool.report.numbers import shown
from lmtool.report.page import Section, TableCell, figure, page, table
from lmtool.report.terminal import plot, shaded
from lmtool.tokenization.tokenizer import resolve_vocab_size

CHARACTERS = 128
"""Vocabulary that is assumed where only the text knows it: the characters of ASCII."""

ROW = 16
"""Positions of a row whose mask is drawn, unless a window needs more."""

LONGEST_ROW = 4096

CELLS = 32
"""Maximum cells of a picture in each direction."""

UNBROKEN = str.maketrans(" -", "\u00a0\u2011")
"""Spaces and hyphens at which no line is broken."""

CPU = torch.device("cpu")


class MaskPicture(NamedTuple):
    """Who attends to whom: rows are queries, columns are keys.

    shares: of the pairs in each cell those that are allowed. cell: positions that a cell stands for, in each direction.
    """

    title: str
    shares: list[list[float]]
    cell: int = 1


class Signal(NamedTuple):
    """What tells a model the order of its tokens: a sentence, and numbers if there are any.

    rows: begin with a position, distance, head or pair.
    chart: of lines, whose points are the first column and one of the others each; without it rows are shades.
    """

    sentence: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[float]] = ()
    chart: LineChart | None = None


class Drawing(NamedTuple):
    """The model of a recipe. context: tokens of the row that FLOPs are for. notes: what was assumed."""

    title: str
    tree: ModelPart
    context: int
    notes: list[str]
    masks: list[MaskPicture]
    signal: Signal


def draw(recipe: Recipe, name: str) -> Drawing:
    """The pictures of a recipe's model. Raises RecipeError for one that no machine holds, and as `Tokenizer.load`."""
    notes = []
    vocab_size, spec = resolve_vocab_size(recipe), recipe.model
    if vocab_size is None:
        vocab_size = CHARACTERS
        notes.append(f"the vocabulary depends on the text; {CHARACTERS} are assumed, -s model.vocab_size=N changes it")
    if size_of(spec, vocab_size) == BEYOND:
        raise RecipeError([f"{name}: the model has a tensor of more bytes than can be counted"])
    if isinstance(recipe.objective, HeadSpec):
        notes.append("the labels depend on the table, so the head for them is not in the tree")
    if spec.counts:
        notes.append("a table of counts, whose size depends on the text, and there are no weights")
    if isinstance(spec, Transformer) and spec.shape == "prefix":
        notes.append("of a row the first half is the prefix")
    tree = summarize_model(spec, vocab_size, spec.context)
    return Drawing(f"{printable(name)}: {spec.title}", tree, spec.context, notes, list(_masks(recipe)), _signal(recipe))


def _masks(recipe: Recipe) -> Iterator[MaskPicture]:
    """Those of a row of text, or of two documents that are apart."""
    spec = recipe.model
    n = _row_length(spec) if isinstance(spec, Transformer) else ROW
    batch = Batch(torch.zeros(1, n, dtype=torch.long))
    if isinstance(spec, Transformer):
        if spec.shape == "prefix":
            batch = replace(batch, prefix_B=torch.tensor([default_prefix_length(n)]))
        if recipe.data.isolate_documents and spec.shape in ("decoder", "prefix"):
            batch = replace(batch, documents_BT=(torch.arange(n) >= n // 2).long()[None])
    return mask_pictures(recipe, replace(batch, source_BS=batch.tokens_BT))


def mask_pictures(recipe: Recipe, batch: Batch) -> Iterator[MaskPicture]:
    """Who attends to whom in a batch of one row."""
    n, spec, source = batch.tokens_BT.shape[1], recipe.model, batch.source_BS
    rows = {"": batch}
    if isinstance(spec, Transformer):
        if source is not None and spec.shape == "encoder-decoder":
            rows = {"encoder: ": Batch(source, keep_BT=batch.source_keep_BS), "decoder: ": batch}
        for (named, row), (layers, layer) in product(rows.items(), _kinds_of_layers(spec)):
            size = row.tokens_BT.shape[1]
            mask = make_layer_mask(spec, size, causal=spec.reads != "both" and named != "encoder: ", layer=layer)
            mask = replace(mask, prefix_B=row.prefix_B, keep_BS=row.keep_BT, documents_BS=row.documents_BT)
            yield _pooled(named + _words(mask, layers), mask.to_tensor(size, size, CPU)[0])
    elif not isinstance(spec, Recurrent) or spec.attention is None:
        return
    elif spec.shape == "decoder":
        present = spec.attention.present
        mask = Mask(causal=True, keep_BS=batch.keep_BT, documents_BS=batch.documents_BT)
        allowed_TT = earlier(mask, n, n, CPU, present)[0]
        yield _pooled("the states up to the own one" if present else "the states before the own one", allowed_TT)
    if source is not None and spec.shape == "encoder-decoder":
        allowed_TS = Mask(keep_BS=batch.source_keep_BS).to_tensor(n, source.shape[1], CPU)[0]
        yield _pooled("decoder to encoder: all of the source", allowed_TS)


def _row_length(spec: Transformer) -> int:
    """Long enough to see where a window ends, and two tokens beyond global ones."""
    if not isinstance(pattern := spec.pattern, WindowPattern):
        return min(spec.context, ROW)
    return min(spec.context, max(ROW, 5 * (pattern.size * pattern.dilation + pattern.global_tokens) // 2), LONGEST_ROW)


def _kinds_of_layers(spec: Transformer) -> list[tuple[str, int]]:
    """The names of layers with the same mask, none if it is that of all; and one of them."""
    full = sorted(set(spec.pattern.full_layers)) if isinstance(spec.pattern, WindowPattern) else []
    windowed = next((layer for layer in range(spec.n_layers) if layer not in full), None)
    if not full or windowed is None:
        return [("", 0)]
    listed = ", ".join(map(str, full[:8])) + (", ..." if len(full) > 8 else "")
    return [(f"layers {listed}", full[0]), ("all other layers", windowed)]


def _words(mask: Mask, layers: str) -> str:
    """A mask in words."""
    parts = ["causal" if mask.causal else "bidirectional"]
    if mask.prefix_B is not None:
        parts[0] = f"causal after a prefix of {int(mask.prefix_B)}"
    if mask.window is not None:
        parts.append(f"in a window of {mask.window}")
    if mask.window is not None and mask.dilation > 1:
        parts.append(f"every {mask.dilation} positions")
    if mask.window is not None and mask.n_global:
        parts.append(f"{mask.n_global} global")
    if mask.documents_BS is not None and (n := len(set(mask.documents_BS.flatten().tolist()))) > 1:
        parts.append(f"{n} documents in the row, apart")
    return (f"{layers}: " if layers else "") + ", ".join(parts)


def _pooled(title: str, allowed_QS: Tensor) -> MaskPicture:
    """A mask in at most `CELLS` cells each way."""
    cell = -(-max(allowed_QS.shape) // CELLS)
    pooled = F.avg_pool2d(allowed_QS.float()[None], cell, ceil_mode=True, count_include_pad=False)[0]
    return MaskPicture(title, pooled.tolist(), cell)


def _signal(recipe: Recipe) -> Signal:
    spec = recipe.model
    if isinstance(spec, Recurrent):
        return Signal("The order of tokens is the order of the steps.")
    if not isinstance(spec, Transformer):
        return Signal("The order of tokens within a context is that of an n-gram." if spec.counts else "There is none.")
    match spec.position:
        case positions.LearnedPosition(size=size, offset=offset):
            rows = size or spec.context + offset
            return Signal(f"A learned vector for each of {rows - offset:,} positions, added to the embeddings.")
        case positions.NoPosition():
            alone = "; a causal mask alone tells positions apart" if spec.reads != "both" else ""
            return Signal(f"None is given{alone}.")
        case positions.SinusoidalPosition():
            return _sinusoids(spec)
        case positions.AlibiPosition():
            return _alibi(spec)
        case positions.RelativePosition():
            return _relative(spec, spec.position)
        case positions.DisentangledPosition(max_distance=most):
            return Signal(
                f"Contents attend to {2 * most} relative positions, each a learned vector, and these to contents."
            )
        case positions.RotaryPosition():
            return _rotary(spec, spec.position)


def _sinusoids(spec: Transformer) -> Signal:
    """The vectors of some positions, in some of their components."""
    module = build_position(spec)
    width, n = spec.embedding_width or spec.d_model, min(spec.context, CELLS)
    assert module is not None
    vectors = module(torch.zeros(1, n, width), torch.arange(n)[None])[0]
    shown = [round(i * (width - 1) / (min(width, CELLS) - 1)) for i in range(min(width, CELLS))]
    return Signal(
        f"Sines and cosines are added to the embeddings; of {width} components {len(shown)} are shown.",
        ["position", *map(str, shown)],
        [[position, *vectors[position, shown].tolist()] for position in range(n)],
    )


def _alibi(spec: Transformer) -> Signal:
    slopes = alibi_slopes(spec.n_heads)
    distances = list(range(min(spec.context, CELLS)))
    lines = [
        Line(f"head {head}", [(distance, -slope * distance) for distance in distances], head)
        for head, slope in list(enumerate(slopes))[:8]
    ]
    sentence = "Each head subtracts its slope times the distance from the scores."
    chart = LineChart(lines, x="distance", y="added to the score", label=sentence)
    return Signal(sentence, ["head", "slope"], list(enumerate(slopes)), chart)


def _relative(spec: Transformer, position: positions.RelativePosition) -> Signal:
    both_sides = spec.reads != "past"
    rule = RelativePositions(1, position.buckets, position.max_distance, both_sides)
    most = min(spec.context - 1, position.max_distance + 1)
    away = torch.arange(-most, most + 1 if both_sides else 1)
    rows = list(zip(away.tolist(), rule.bucket(away).tolist(), strict=True))
    side = ", in a decoder all of them for keys before the query" if spec.shape == "encoder-decoder" else ""
    what = f"Each head adds a learned number to the scores, for each of {position.buckets} buckets of distances"
    chart = LineChart([Line("bucket", rows)], x="distance", y="bucket", label=f"{what}{side}.")
    return Signal(chart.label, ["key's distance from the query", "bucket"], rows, chart)


def _rotary(spec: Transformer, position: positions.RotaryPosition) -> Signal:
    """Angle and wavelength of each pair of components; also of windowed layers where they have others."""
    width = spec.head_width or spec.d_model // spec.n_heads
    rules = {"": RotaryPositions(position.theta, position.share, position.scaling)}
    if position.window_theta is not None:
        rules = {" in full layers": rules[""], " in windows": RotaryPositions(position.window_theta, position.share)}
    columns, values = ["pair"], []
    lines = []
    for colour, (where, rule) in enumerate(rules.items()):
        angles = rule.frequencies(width, CPU)[0].tolist()
        columns += [f"radians a position{where}", f"wavelength{where}", f"turns in the context{where}"]
        lengths = [2 * math.pi / angle for angle in angles]
        values.append([[a, w, spec.context / w] for a, w in zip(angles, lengths, strict=True)])
        lines.append(Line(f"wavelength{where}", [(i, math.log10(w)) for i, w in enumerate(lengths)], colour))
    sentence = "Pairs of components of queries and keys are rotated in proportion to the position."
    rows = [[i, *(one for part in parts for one in part)] for i, parts in enumerate(zip(*values, strict=True))]
    chart = LineChart(lines, x="pair", y="log10 of the wavelength in positions", label=sentence)
    return Signal(sentence, columns, rows, chart)


def tree_rows(drawing: Drawing) -> Iterator[tuple[str, str, int, float, float]]:
    """The tree as lines: its branches and names, shape, parameters, FLOPs per token, share of the parameters."""

    def visit(part: ModelPart, before: str, below: str) -> Iterator[tuple[str, str, int, float, float]]:
        times = f"{part.times} x " if part.times > 1 else ""
        share = part.parameters / max(1, drawing.tree.parameters)
        yield before + times + part.name, part.shape, part.parameters, part.flops / drawing.context, share
        for i, child in enumerate(part.children):
            last = i == len(part.children) - 1
            yield from visit(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))

    return visit(drawing.tree, "", "")


def as_lines(drawing: Drawing, width: int, *, ascii_only: bool = False) -> Iterator[str | Text]:
    """The drawing for a terminal, a file or a pipe; plots are as wide as `width`."""
    rows = [("part", "shape", "parameters", "FLOPs/token", "share")]
    rows += [
        (name, shape, f"{parameters:,}", shown(round(flops)), f"{share:.1%}")
        for name, shape, parameters, flops, share in tree_rows(drawing)
    ]
    yield from (drawing.title, "", *align_columns(rows, 2))
    yield _counted(drawing)
    yield from drawing.notes
    yield from mask_lines(drawing.masks, ascii_only)
    yield from ("", f"position: {drawing.signal.sentence}")
    yield from _signal_lines(drawing.signal, width, ascii_only)


def mask_lines(masks: Sequence[MaskPicture], ascii_only: bool) -> Iterator[str]:
    """Masks as shaded cells, each below what it is."""
    for mask in masks:
        yield from ("", f"attention, {mask.title}: queries down, keys across{_scale(mask)}")
        yield from shaded(mask.shares, ascii_only=ascii_only)


def _counted(drawing: Drawing) -> str:
    rows = f"FLOPs are those of matrix products in a row of {drawing.context:,} tokens"
    return f"{rows}; below N x are the numbers of one copy"


def _scale(mask: MaskPicture) -> str:
    return f"; a cell is {mask.cell} x {mask.cell} positions" if mask.cell > 1 else ""


def _signal_lines(signal: Signal, width: int, ascii_only: bool) -> Iterator[str | Text]:
    if chart := signal.chart:
        yield f"{chart.y}, by {chart.x}"
        yield from plot([(line.name, line.points) for line in chart.lines], width, ascii_only=ascii_only)
    elif signal.rows:
        yield "positions down, components across, from -1 to 1"
        yield from shaded([[(value + 1) / 2 for value in row[1:]] for row in signal.rows], ascii_only=ascii_only)


def as_page(drawing: Drawing) -> str:
    """The drawing as an HTML page that stands alone."""
    columns = ["part", "shape", "parameters", "FLOPs per token", "share of parameters, %"]
    rows: list[list[TableCell]] = [
        [name.translate(UNBROKEN), shape, parameters, round(flops), round(100 * share, 1)]
        for name, shape, parameters, flops, share in tree_rows(drawing)
    ]
    sections = [Section("Parts", table(columns, rows, caption=f"{_counted(drawing)}."))]
    sections += mask_sections(drawing.masks)
    sections.append(Section("Position", _signal_html(drawing.signal)))
    return page(drawing.title, sections, lead="; ".join(drawing.notes))


def mask_sections(masks: Sequence[MaskPicture]) -> Iterator[Section]:
    """Masks as sections of a page."""
    for i, mask in enumerate(masks):
        rows, columns = ([str(cell * mask.cell) for cell in range(n)] for n in (len(mask.shares), len(mask.shares[0])))
        label, labelled = f"Attention mask: {mask.title}", max(len(rows), len(columns)) <= ROW
        picture = HeatMap(mask.shares, rows, columns, label, 1.0, x="keys", y="queries", labelled=labelled)
        caption = f"{mask.title}. Rows are queries, columns the keys that they attend to{_scale(mask)}."
        title = f"Attention mask {i + 1}" if len(masks) > 1 else "Attention mask"
        yield Section(title, picture.figure(caption[0].upper() + caption[1:], "query"))


def _signal_html(signal: Signal) -> str:
    if signal.chart:
        return figure(signal.chart.for_page(), signal.sentence, table(signal.columns, signal.rows))
    if not signal.rows:
        return signal.sentence
    values = [row[1:] for row in signal.rows]
    rows, components = [str(row[0]) for row in signal.rows], list(signal.columns[1:])
    above_zero = [[value + 1 for value in row] for row in values]
    picture = HeatMap(above_zero, rows, components, signal.sentence, 2.0, 12, "components", "positions", False)
    return picture.figure(f"{signal.sentence} Blank is -1, dark is 1.", "position", values)
