"""Draws the model of a recipe: its tree of parts, its attention masks for a short row, its position signal."""

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
from lmtool.errors import RecipeError
from lmtool.model.layers.memory_attention import past_mask
from lmtool.model.layers.positions import RelativePositions, RotaryPositions, alibi_slopes, build_position_embedding
from lmtool.model.size import UNCOUNTABLE, count_parameters
from lmtool.printable import align_columns, printable
from lmtool.recipe.spec import position as positions
from lmtool.recipe.spec.objective import HeadSpec
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.transformer import Transformer, WindowPattern
from lmtool.report.charts import HeatMap, Line, LineChart
from lmtool.report.numbers import format_number
from lmtool.report.page import Section, TableCell, figure, page, table
from lmtool.report.terminal import plot_lines, shade_matrix
from lmtool.tokenization.tokenizer import resolve_recipe_embedding_rows
from lmtool.training.cost.summary import ModelPart, default_prefix_length, make_layer_mask, summarize_model

ASSUMED_ASCII_VOCAB_SIZE = 128
"""Vocabulary size, the characters of ASCII, where it depends on the text."""

MASK_TOKENS = 16
"""Length of a row whose mask is drawn, unless a window needs more."""

MAX_MASK_TOKENS = 4096

MAX_CELLS = 32
"""Most cells of a picture in each direction."""

UNBREAKABLE = str.maketrans(" -", "\u00a0\u2011")
"""Translation to spaces and hyphens at which no line is broken."""

CPU_DEVICE = torch.device("cpu")


class DownsampledMask(NamedTuple):
    """An attention mask: rows are queries, columns are keys.

    shares: share of the pairs in each cell that the mask allows. cell: width and height of a cell in positions.
    """

    title: str
    shares: list[list[float]]
    cell: int = 1


class PositionDescription(NamedTuple):
    """How a model learns the order of its tokens: a sentence, and numbers if there are any.

    rows: begin with a position, distance, head or pair.
    chart: plots each column over the first one; without a chart the rows are drawn as shades.
    """

    sentence: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[float]] = ()
    chart: LineChart | None = None


class ModelDrawingData(NamedTuple):
    """The model of a recipe. context: length of the row that FLOPs are counted for. notes: assumptions."""

    title: str
    tree: ModelPart
    context: int
    notes: list[str]
    masks: list[DownsampledMask]
    signal: PositionDescription


def draw_model(recipe: Recipe, name: str) -> ModelDrawingData:
    """Draws the model of a recipe. Raises RecipeError for one that no machine holds, and as `Tokenizer.load` does."""
    notes = []
    vocab_size, spec = resolve_recipe_embedding_rows(recipe), recipe.model
    if vocab_size is None:
        vocab_size = ASSUMED_ASCII_VOCAB_SIZE
        notes.append(f"the vocabulary depends on the text; {vocab_size} are assumed, -s model.vocab_size=N changes it")
    if count_parameters(spec, vocab_size) == UNCOUNTABLE:
        raise RecipeError([f"{name}: the model has a tensor of more bytes than can be counted"])
    if isinstance(recipe.objective, HeadSpec):
        notes.append("the labels depend on the table, so the head for them is not in the tree")
    if spec.counts:
        notes.append("a table of counts, whose size depends on the text, and there are no weights")
    if isinstance(spec, Transformer) and spec.shape == "prefix":
        notes.append("of a row the first half is the prefix")
    title, tree = f"{printable(name)}: {spec.title}", summarize_model(spec, vocab_size, spec.context)
    masks = list(draw_masks(recipe, _make_example_row(recipe)))
    return ModelDrawingData(title, tree, spec.context, notes, masks, _describe_positions(recipe))


def _make_example_row(recipe: Recipe) -> Batch:
    """Returns a row of one text, or of two isolated documents, long enough to show where a window ends."""
    spec, n = recipe.model, MASK_TOKENS
    if isinstance(spec, Transformer):
        if isinstance(pattern := spec.pattern, WindowPattern):
            n = max(n, 5 * (pattern.size * pattern.dilation + pattern.global_tokens) // 2)
        n = min(n, spec.context, MAX_MASK_TOKENS)
    tokens_BT = torch.zeros(1, n, dtype=torch.long)
    batch = Batch(tokens_BT, source_BS=tokens_BT)
    if isinstance(spec, Transformer) and spec.shape == "prefix":
        batch = replace(batch, prefix_B=torch.tensor([default_prefix_length(n)]))
    if isinstance(spec, Transformer) and recipe.data.isolate_documents and spec.shape in ("decoder", "prefix"):
        batch = replace(batch, documents_BT=(torch.arange(n) >= n // 2).long()[None])
    return batch


def draw_masks(recipe: Recipe, batch: Batch) -> Iterator[DownsampledMask]:
    """Draws the attention masks of a batch of one row."""
    n, spec, source = batch.tokens_BT.shape[1], recipe.model, batch.source_BS
    rows = {"": batch}
    if isinstance(spec, Transformer):
        if source is not None and spec.shape == "encoder-decoder":
            rows = {"encoder: ": Batch(source, keep_BT=batch.source_keep_BS), "decoder: ": batch}
        full = sorted(set(spec.pattern.full_layers)) if isinstance(spec.pattern, WindowPattern) else []
        windowed = next((layer for layer in range(spec.n_layers) if layer not in full), None)
        layer_by_group = {"": 0}  # one of the layers that share a mask
        if full and windowed is not None:
            listed = ", ".join(map(str, full[:8])) + (", ..." if len(full) > 8 else "")
            layer_by_group = {f"layers {listed}": full[0], "all other layers": windowed}
        for (named, row), (layers, layer) in product(rows.items(), layer_by_group.items()):
            size = row.tokens_BT.shape[1]
            mask = make_layer_mask(spec, size, causal=spec.reads != "both" and named != "encoder: ", layer=layer)
            mask = replace(mask, prefix_B=row.prefix_B, keep_BS=row.keep_BT, documents_BS=row.documents_BT)
            yield _downsample_mask(named + _describe_mask(mask, layers), mask.to_tensor(size, size, CPU_DEVICE)[0])
    elif not isinstance(spec, Recurrent) or spec.attention is None:
        return
    elif spec.shape == "decoder":
        present = spec.attention.present
        mask = Mask(causal=True, keep_BS=batch.keep_BT, documents_BS=batch.documents_BT)
        allowed_TT = past_mask(mask, n, n, CPU_DEVICE, present)[0]
        yield _downsample_mask(
            "the states up to the own one" if present else "the states before the own one", allowed_TT
        )
    if source is not None and spec.shape == "encoder-decoder":
        allowed_TS = Mask(keep_BS=batch.source_keep_BS).to_tensor(n, source.shape[1], CPU_DEVICE)[0]
        yield _downsample_mask("decoder to encoder: all of the source", allowed_TS)


def _describe_mask(mask: Mask, layers: str) -> str:
    """Describes a mask of these layers in words."""
    parts = ["causal" if mask.causal else "bidirectional"]
    if mask.prefix_B is not None:
        parts[0] = f"causal after a prefix of {int(mask.prefix_B)}"
    if mask.window is not None:
        parts.append(f"in a window of {mask.window}")
        parts += [f"every {mask.dilation} positions"] if mask.dilation > 1 else []
        parts += [f"{mask.n_global} global"] if mask.n_global else []
    if mask.documents_BS is not None and (n := len(set(mask.documents_BS.flatten().tolist()))) > 1:
        parts.append(f"{n} documents in the row, apart")
    return (f"{layers}: " if layers else "") + ", ".join(parts)


def _downsample_mask(title: str, allowed_QS: Tensor) -> DownsampledMask:
    """Reduces a mask to at most MAX_CELLS cells in each direction."""
    cell = -(-max(allowed_QS.shape) // MAX_CELLS)
    pooled = F.avg_pool2d(allowed_QS.float()[None], cell, ceil_mode=True, count_include_pad=False)[0]
    return DownsampledMask(title, pooled.tolist(), cell)


def _describe_positions(recipe: Recipe) -> PositionDescription:
    spec = recipe.model
    if isinstance(spec, Recurrent):
        return PositionDescription("The order of tokens is the order of the steps.")
    if not isinstance(spec, Transformer):
        ngrams = "The order of tokens within a context is that of an n-gram."
        return PositionDescription(ngrams if spec.counts else "There is none.")
    match spec.position:
        case positions.LearnedPosition(size=size, offset=offset):
            rows = size or spec.context + offset
            return PositionDescription(
                f"A learned vector for each of {rows - offset:,} positions, added to the embeddings."
            )
        case positions.NoPosition():
            alone = "; a causal mask alone tells positions apart" if spec.reads != "both" else ""
            return PositionDescription(f"None is given{alone}.")
        case positions.SinusoidalPosition():
            return _tabulate_sinusoids(spec)
        case positions.AlibiPosition():
            return _describe_alibi(spec)
        case positions.RelativePosition():
            return _describe_relative_positions(spec, spec.position)
        case positions.DisentangledPosition(max_distance=distance):
            vectors = f"{2 * distance} relative positions, each a learned vector"
            return PositionDescription(f"Contents attend to {vectors}, and these to contents.")
        case positions.RotaryPosition():
            return _describe_rotary_positions(spec, spec.position)


def _tabulate_sinusoids(spec: Transformer) -> PositionDescription:
    """Shows some components of the vectors of the first positions."""
    module = build_position_embedding(spec)
    width, n = spec.embedding_width or spec.d_model, min(spec.context, MAX_CELLS)
    assert module is not None
    vectors = module(torch.zeros(1, n, width), torch.arange(n)[None])[0]
    shown = [round(i * (width - 1) / (min(width, MAX_CELLS) - 1)) for i in range(min(width, MAX_CELLS))]
    return PositionDescription(
        f"Sines and cosines are added to the embeddings; of {width} components {len(shown)} are shown.",
        ["position", *map(str, shown)],
        [[position, *vectors[position, shown].tolist()] for position in range(n)],
    )


def _describe_alibi(spec: Transformer) -> PositionDescription:
    slopes = alibi_slopes(spec.n_heads)
    distances = list(range(min(spec.context, MAX_CELLS)))
    lines = [
        Line(f"head {head}", [(distance, -slope * distance) for distance in distances], head)
        for head, slope in list(enumerate(slopes))[:8]
    ]
    sentence = "Each head subtracts its slope times the distance from the scores."
    chart = LineChart(lines, x="distance", y="added to the score", label=sentence)
    return PositionDescription(sentence, ["head", "slope"], list(enumerate(slopes)), chart)


def _describe_relative_positions(spec: Transformer, position: positions.RelativePosition) -> PositionDescription:
    both_sides = spec.reads != "past"
    rule = RelativePositions(1, position.buckets, position.max_distance, both_sides)
    max_distance = min(spec.context - 1, position.max_distance + 1)
    distances = torch.arange(-max_distance, max_distance + 1 if both_sides else 1)
    rows = list(zip(distances.tolist(), rule.relative_position_bucket(distances).tolist(), strict=True))
    side = ", in a decoder all of them for keys before the query" if spec.shape == "encoder-decoder" else ""
    what = f"Each head adds a learned number to the scores, for each of {position.buckets} buckets of distances"
    chart = LineChart([Line("bucket", rows)], x="distance", y="bucket", label=f"{what}{side}.")
    return PositionDescription(chart.label, ["key's distance from the query", "bucket"], rows, chart)


def _describe_rotary_positions(spec: Transformer, position: positions.RotaryPosition) -> PositionDescription:
    """Shows angle and wavelength of each pair of components, also for windowed layers if theirs differ."""
    width = spec.head_width or spec.d_model // spec.n_heads
    rules = {"": RotaryPositions(position.theta, position.share, position.scaling)}
    if position.window_theta is not None:
        rules = {" in full layers": rules[""], " in windows": RotaryPositions(position.window_theta, position.share)}
    columns, values, lines = ["pair"], [], []
    for colour, (where, rule) in enumerate(rules.items()):
        frequencies, _ = rule.scaled_frequencies(width, CPU_DEVICE)
        angles = frequencies.tolist()
        columns += [f"radians a position{where}", f"wavelength{where}", f"turns in the context{where}"]
        lengths = [2 * math.pi / angle for angle in angles]
        values.append([[a, w, spec.context / w] for a, w in zip(angles, lengths, strict=True)])
        lines.append(Line(f"wavelength{where}", [(i, math.log10(w)) for i, w in enumerate(lengths)], colour))
    sentence = "Pairs of components of queries and keys are rotated in proportion to the position."
    rows = [[i, *(one for part in parts for one in part)] for i, parts in enumerate(zip(*values, strict=True))]
    chart = LineChart(lines, x="pair", y="log10 of the wavelength in positions", label=sentence)
    return PositionDescription(sentence, columns, rows, chart)


class ModelTreeRow(NamedTuple):
    """A part of a model. name: behind the branches of the tree. share: of all parameters."""

    name: str
    shape: str
    parameters: int
    flops_per_token: float
    share: float


def list_tree_rows(drawing: ModelDrawingData) -> Iterator[ModelTreeRow]:
    """Yields the parts of the tree, each before its own parts."""

    def visit(part: ModelPart, before: str, below: str) -> Iterator[ModelTreeRow]:
        times = f"{part.times} x " if part.times > 1 else ""
        share = part.parameters / max(1, drawing.tree.parameters)
        name, flops_per_token = before + times + part.name, part.flops / drawing.context
        yield ModelTreeRow(name, part.shape, part.parameters, flops_per_token, share)
        for i, child in enumerate(part.children):
            last = i == len(part.children) - 1
            yield from visit(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))

    return visit(drawing.tree, "", "")


def format_model_lines(drawing: ModelDrawingData, width: int, *, ascii_only: bool = False) -> Iterator[str | Text]:
    """Formats the drawing as lines of text; plots are as wide as `width`."""
    rows = [("part", "shape", "parameters", "FLOPs/token", "share")]
    rows += [
        (name, shape, f"{parameters:,}", format_number(round(flops)), f"{share:.1%}")
        for name, shape, parameters, flops, share in list_tree_rows(drawing)
    ]
    yield from (drawing.title, "", *align_columns(rows, 2))
    yield _describe_flops(drawing)
    yield from drawing.notes
    yield from format_masks(drawing.masks, ascii_only)
    yield from ("", f"position: {drawing.signal.sentence}")
    if chart := drawing.signal.chart:
        yield f"{chart.y}, by {chart.x}"
        yield from plot_lines([(line.name, line.points) for line in chart.lines], width, ascii_only=ascii_only)
    elif signal_rows := drawing.signal.rows:
        yield "positions down, components across, from -1 to 1"
        yield from shade_matrix([[(value + 1) / 2 for value in row[1:]] for row in signal_rows], ascii_only=ascii_only)


def format_masks(masks: Sequence[DownsampledMask], ascii_only: bool) -> Iterator[str]:
    """Formats masks as shaded cells below their titles."""
    for mask in masks:
        yield from ("", f"attention, {mask.title}: queries down, keys across{_describe_cell(mask)}")
        yield from shade_matrix(mask.shares, ascii_only=ascii_only)


def _describe_flops(drawing: ModelDrawingData) -> str:
    rows = f"FLOPs are those of matrix products in a row of {drawing.context:,} tokens"
    return f"{rows}; below N x are the numbers of one copy"


def _describe_cell(mask: DownsampledMask) -> str:
    return f"; a cell is {mask.cell} x {mask.cell} positions" if mask.cell > 1 else ""


def render_model_page(drawing: ModelDrawingData) -> str:
    """Renders the drawing as a complete HTML page."""
    columns = ["part", "shape", "parameters", "FLOPs per token", "share of parameters, %"]
    rows: list[list[TableCell]] = [
        [name.translate(UNBREAKABLE), shape, parameters, round(flops), round(100 * share, 1)]
        for name, shape, parameters, flops, share in list_tree_rows(drawing)
    ]
    sections = [Section("Parts", table(columns, rows, caption=f"{_describe_flops(drawing)}."))]
    sections += render_mask_sections(drawing.masks)
    sections.append(Section("Position", _render_positions(drawing.signal)))
    return page(drawing.title, sections, lead="; ".join(drawing.notes))


def render_mask_sections(masks: Sequence[DownsampledMask]) -> Iterator[Section]:
    """Renders masks as sections of a page."""
    for i, mask in enumerate(masks):
        rows, columns = ([str(cell * mask.cell) for cell in range(n)] for n in (len(mask.shares), len(mask.shares[0])))
        label, labelled = f"Attention mask: {mask.title}", max(len(rows), len(columns)) <= MASK_TOKENS
        picture = HeatMap(mask.shares, rows, columns, label, 1.0, x="keys", y="queries", show_names=labelled)
        caption = f"{mask.title}. Rows are queries, columns the keys that they attend to{_describe_cell(mask)}."
        title = f"Attention mask {i + 1}" if len(masks) > 1 else "Attention mask"
        yield Section(title, picture.figure(caption[0].upper() + caption[1:], "query"))


def _render_positions(signal: PositionDescription) -> str:
    if signal.chart:
        return figure(signal.chart.page_svg(), signal.sentence, table(signal.columns, signal.rows))
    if not signal.rows:
        return signal.sentence
    values = [row[1:] for row in signal.rows]
    rows, components = [str(row[0]) for row in signal.rows], list(signal.columns[1:])
    above_zero = [[value + 1 for value in row] for row in values]
    picture = HeatMap(above_zero, rows, components, signal.sentence, 2.0, 12, "components", "positions", False)
    return picture.figure(f"{signal.sentence} Blank is -1, dark is 1.", "position", values)
