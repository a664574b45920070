"""What a model is given: training examples after `Objective.collate`, described by the tensors of their batch.

Shapes: B rows, T positions, N targets of a row.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from rich.text import Text
from torch import Tensor

from lmtool.batch import IGNORE, Batch
from lmtool.compute.device import CPU
from lmtool.data.corpus import Chunk
from lmtool.data.prepare import encode_chunks
from lmtool.data.store import StoreWriter
from lmtool.data.survey import Progress
from lmtool.inference.load import build_for_training
from lmtool.model.transformer import positions_in_text
from lmtool.objective import Objective, build_objective
from lmtool.objective.causal import BidirectionalObjective
from lmtool.objective.skipgram import SkipGramObjective
from lmtool.printable import align_columns
from lmtool.recipe.spec.objective import Classification, Masked, ReplacedTokens, Tagging, WindowCounts
from lmtool.recipe.spec.recipe import Recipe
from lmtool.report.drawing import MaskPicture, mask_lines, mask_pictures, mask_sections
from lmtool.report.page import Section, TableCell, page, table
from lmtool.run.order import sample_numbers_of_rank
from lmtool.tokenization.tokenizer import Tokenizer, replace_surrogates
from lmtool.training.data import TrainingData
from lmtool.training.plan import Plan
from lmtool.training.windows import Windows

MOST = 64
"""Positions of a row that are printed; a page has all."""

CellsByColumn = dict[str, list[TableCell]]


class Collated(NamedTuple):
    """A batch, and the same with the tokens that the model samples; what its ids mean."""

    batch: Batch
    read: Batch
    recipe: Recipe
    tokenizer: Tokenizer
    objective: Objective


class BatchTable(NamedTuple):
    """A row of a batch or its source, a line for each position. notes: of the row as a whole."""

    title: str
    columns: CellsByColumn
    notes: Sequence[str] = ()
    masks: Sequence[MaskPicture] = ()


def collate(plan: Plan, texts: Sequence[str], step: int, n_rows: int, report: Progress) -> Collated:
    """The first rows of the batch of a step, counted from 1, of the data of a plan.

    texts: documents to read in place of its training text. Raises the errors of reading data.
    """
    recipe, data, *_ = plan.read(report)
    tokenizer = data.prompt_format.tokenizer
    counts = torch.from_numpy(data.token_counts()) if recipe.model.reads == "words" else None
    objective = build_objective(recipe, tokenizer, counts)
    if isinstance(objective, SkipGramObjective) and isinstance(recipe.objective, WindowCounts):
        # pairs are counted in whole windows; the objective is for evaluation, in those that skip-gram has
        objective = replace(objective, spec=objective.spec.with_values({"fixed": True}))
    samples = sample_numbers_of_rank(step - 1, max(n_rows, recipe.training.batch_size))[:n_rows]
    if texts:
        with _windows(texts, recipe, data, objective) as windows:
            examples = windows.read(samples)
    else:
        examples = data.examples(objective).read(samples)
    batch = read = objective.collate(examples, (step - 1) / recipe.training.steps)
    if batch.draws_BT is not None:
        lm, _ = build_for_training(recipe, tokenizer, CPU, data.set_statistics, base=plan.base)
        read = objective.as_read(lm, batch)
    return Collated(batch, read, recipe, tokenizer, objective)


@contextmanager
def _windows(texts: Sequence[str], recipe: Recipe, data: TrainingData, objective: Objective) -> Iterator[Windows]:
    """Windows of texts, which are not kept: as long as the context, or as the texts where these are shorter."""
    tokenizer = data.prompt_format.tokenizer
    with tempfile.TemporaryDirectory() as folder:
        with StoreWriter(Path(folder) / "store", fingerprint="typed", vocab_size=tokenizer.vocab_size) as writer:
            for chunk in encode_chunks(iter([Chunk(list(map(replace_surrogates, texts)))]), tokenizer):
                writer.append(chunk)
            store = writer.finish()
        cuts = [objective.cut(n) for n in range(min(recipe.model.context, len(store) + 3), 0, -1)]
        cut = next((cut for cut in cuts if 1 < cut.length <= len(store) and cut.step < len(store)), cuts[0])
        marks = tokenizer.bos_id, tokenizer.eos_id
        yield Windows(store, cut, recipe.seed, None, marks, recipe.data.isolate_documents)


def describe(collated: Collated) -> Iterator[BatchTable]:
    """The rows of a batch; of word vectors all rows in one table, for they are single words."""
    batch, read, recipe, tokenizer, objective = collated
    if recipe.model.reads == "words" and batch.targets_BT is not None:
        yield BatchTable("words", _words(batch, tokenizer), [f"pairs in the loss: {objective.count(batch)}"])
        return
    for number in range(len(batch.tokens_BT)):
        row, title = batch.row(number), f"row {number + 1}"
        if row.source_BS is not None:
            yield BatchTable(f"{title}, source", _tokens(Batch(row.source_BS, keep_BT=row.source_keep_BS), tokenizer))
            title = f"{title}, target"
        columns = _tokens(row, tokenizer) | _targets(collated._replace(batch=row, read=read.row(number)))
        yield BatchTable(title, columns, list(_notes(row, recipe)), list(mask_pictures(recipe, row)))


def _words(batch: Batch, tokenizer: Tokenizer) -> CellsByColumn:
    """A line for each row: the words that are read, those that they predict, and the noise; or for each pair."""
    tokens_BN = batch.tokens_BT if batch.keep_BT is None else batch.tokens_BT.masked_fill(~batch.keep_BT, IGNORE)
    named = {"input": tokens_BN, "targets": batch.targets_BT, "noise words": batch.negatives_BK}
    columns: CellsByColumn = {}
    for name, rows in named.items():
        if rows is not None:
            lines = rows.tolist() if batch.values_BC is None else rows.flatten()[:, None].tolist()
            columns[name] = [" ".join(str(one) for one in _pieces(line, tokenizer) if one) for line in lines]
    return columns if batch.values_BC is None else columns | {"count": batch.values_BC.flatten().tolist()}


def _tokens(row: Batch, tokenizer: Tokenizer) -> CellsByColumn:
    """Of each position: its number in its text, id and piece, and what else the model is told of it."""
    ids = row.tokens_BT[0].tolist()
    columns = {"position": positions_in_text(row)[0].tolist(), "id": ids, "piece": _pieces(ids, tokenizer)}
    told = ("segment", row.segments_BT), ("document", row.documents_BT)
    columns |= {name: values[0].tolist() for name, values in told if values is not None}
    at_T, marks = torch.arange(len(ids)), dict[str, Tensor]()
    if row.prefix_B is not None:
        marks["prefix"] = at_T < row.prefix_B
    if row.keep_BT is not None and not row.keep_BT.all():
        marks["padding"] = ~row.keep_BT[0]
    if row.spans_B2 is not None:
        marks["answer"] = (at_T >= row.spans_B2[0, 0]) & (at_T <= row.spans_B2[0, 1])
    return columns | {name: [name if is_one else None for is_one in mark.tolist()] for name, mark in marks.items()}


def _targets(collated: Collated) -> CellsByColumn:
    """What is predicted at each position of a row, what is in its place, and what the model has sampled."""
    batch, read, recipe, tokenizer, objective = collated
    columns: CellsByColumn = {}
    if batch.targets_BT is not None:
        wanted = batch.targets_BT[0].tolist()
        columns["target"] = _pieces(wanted, tokenizer)
        if isinstance(recipe.objective, Masked):
            columns["input is"] = _fates(batch.tokens_BT[0].tolist(), wanted, "kept", "random", tokenizer.mask_id)
    if read.draws_BT is not None:
        draws_T = read.draws_BT[0]
        sampled = read.tokens_BT[0].masked_fill(draws_T < 0, IGNORE).tolist()
        columns["number drawn"] = [None if draw < 0 else round(draw, 3) for draw in draws_T.tolist()]
        columns["sampled"] = _pieces(sampled, tokenizer)
        if isinstance(recipe.objective, ReplacedTokens):
            columns["is"] = _fates(sampled, wanted, "original", "replaced")
    if isinstance(objective, BidirectionalObjective):
        columns["target backwards"] = _pieces(objective.targets_before(batch)[0].tolist(), tokenizer)
    if batch.places_BW is not None and batch.tags_BW is not None:
        tags = dict(zip(batch.places_BW[0].tolist(), batch.tags_BW[0].tolist(), strict=True))
        columns["tag"] = [_label(recipe, tags[t]) if t in tags else None for t in range(batch.tokens_BT.shape[1])]
    return columns


def _fates(ids: Sequence[int], wanted: Sequence[int], same: str, other: str, mask: int = IGNORE) -> list[TableCell]:
    """What is in the place of each token that is predicted: the same or another one, or the mask."""
    return [
        None if target == IGNORE else "mask" if token == mask else same if token == target else other
        for token, target in zip(ids, wanted, strict=True)
    ]


def _notes(row: Batch, recipe: Recipe) -> Iterator[str]:
    """What is predicted of a row as a whole, and how much of it counts."""
    if row.labels_B is not None and isinstance(recipe.objective, Masked):
        order = "the texts are in order" if recipe.objective.sentence_order else "the second text is the next"
        yield f"{order}: {'yes' if row.labels_B.item() else 'no'}"
    elif row.labels_B is not None:
        yield f"label: {_label(recipe, int(row.labels_B))}"
    if row.values_BC is not None:
        yield f"labels, a number for each: {row.values_BC[0].tolist()}"
    if row.targets_BT is not None:
        yield f"targets in the loss: {row.n_targets} of {row.targets_BT.numel()} positions"


def _pieces(ids: Sequence[int], tokenizer: Tokenizer) -> list[TableCell]:
    """The pieces of ids, as Python writes them; nothing for IGNORE."""
    return [None if token == IGNORE else repr(tokenizer.display_token(token)) for token in ids]


def _label(recipe: Recipe, index: int) -> str:
    names = recipe.objective.labels if isinstance(recipe.objective, Classification | Tagging) else ()
    return f"{index} ({names[index]})" if names else f"{index}"


def title_of(recipe: Recipe) -> str:
    """The model, its objective, and what is told of them."""
    return f"{recipe.model.title}, objective {recipe.objective.kind}: {recipe.description}"


def as_lines(collated: Collated, width: int, *, ascii_only: bool = False) -> Iterator[str | Text]:
    """The description for a terminal, a file or a pipe."""
    yield title_of(collated.recipe)
    for part in describe(collated):
        yield from ("", part.title, *part.notes)
        rows = [list(part.columns), *zip(*part.columns.values(), strict=True)]
        cells = [
            ["" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in rows[: MOST + 1]
        ]
        yield from align_columns(cells, len(part.columns))
        if len(rows) > MOST + 1:
            yield f"and {len(rows) - MOST - 1:,} more, which a page has: -o FILE.html"
        yield from mask_lines(part.masks, ascii_only)


def as_page(collated: Collated) -> str:
    """The description as an HTML page that stands alone."""
    sections = []
    for part in describe(collated):
        body = table(list(part.columns), zip(*part.columns.values(), strict=True), caption="; ".join(part.notes))
        sections += [Section(part.title.capitalize(), body), *mask_sections(part.masks)]
    return page("What the model is given", sections, lead=title_of(collated.recipe))
