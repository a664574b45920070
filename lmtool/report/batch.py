"""Describes what a model reads: training examples after `Objective.collate`, by the tensors of their batch.

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
from lmtool.data.corpus import MultiDocumentChunk
from lmtool.data.order import sample_numbers_for_rank
from lmtool.data.prepare import encode_chunks_in_parallel
from lmtool.data.store import StoreWriter
from lmtool.data.survey import Progress
from lmtool.model.transformer import text_positions
from lmtool.objective import Objective, build_objective
from lmtool.objective.causal import BidirectionalObjective
from lmtool.objective.skipgram import SkipGramObjective
from lmtool.printable import align_columns
from lmtool.recipe.spec.objective import Classification, Masked, ReplacedTokens, Tagging, WindowCounts
from lmtool.recipe.spec.recipe import Recipe
from lmtool.report.drawing import DownsampledMask, draw_masks, format_masks, render_mask_sections
from lmtool.report.page import Section, TableCell, page, table
from lmtool.runs.load import build_for_training
from lmtool.tokenization.tokenizer import Tokenizer, replace_surrogates
from lmtool.training.data import TrainingData
from lmtool.training.plan import TrainingPlan
from lmtool.training.windows import Windows

MAX_PRINTED_POSITIONS = 64
"""Positions of a row that a terminal shows; a page shows all."""

CellsByColumn = dict[str, list[TableCell]]


class CollatedBatch(NamedTuple):
    """A batch with what explains its ids. sampled_batch: the same with the tokens that the model samples."""

    batch: Batch
    sampled_batch: Batch
    recipe: Recipe
    tokenizer: Tokenizer
    objective: Objective


class BatchTable(NamedTuple):
    """A row of a batch or its source, with a line for each position. notes: about the row as a whole."""

    title: str
    columns: CellsByColumn
    notes: Sequence[str] = ()
    masks: Sequence[DownsampledMask] = ()


def collate_batch_of_step(
    plan: TrainingPlan, texts: Sequence[str], step: int, n_rows: int, report: Progress
) -> CollatedBatch:
    """Collates the first rows of the batch of a step, counted from 1, of the data of a plan.

    texts: documents to read in place of the training text. Raises the errors of reading data.
    """
    recipe, data, *_ = plan.read_data_teacher_and_features(report)
    tokenizer = data.prompt_format.tokenizer
    counts = torch.from_numpy(data.count_training_tokens_per_id()) if recipe.model.reads == "words" else None
    objective = build_objective(recipe, tokenizer, counts)
    if isinstance(objective, SkipGramObjective) and isinstance(recipe.objective, WindowCounts):
        # pairs are counted in whole windows; the objective is for evaluation, in those that skip-gram has
        objective = replace(objective, spec=objective.spec.with_unvalidated_values({"fixed": True}))
    samples = sample_numbers_for_rank(step - 1, max(n_rows, recipe.training.batch_size))[:n_rows]
    if texts:
        with _temporary_windows(texts, recipe, data, objective) as windows:
            examples = windows.read(samples)
    else:
        examples = data.make_training_examples(objective).read(samples)
    batch = read = objective.collate(examples, (step - 1) / recipe.training.steps)
    if batch.draws_BT is not None:
        lm, _ = build_for_training(recipe, tokenizer, CPU, data.initialize_from_data_, base=plan.base)
        read = objective.sample_inputs(lm, batch)
    return CollatedBatch(batch, read, recipe, tokenizer, objective)


@contextmanager
def _temporary_windows(
    texts: Sequence[str], recipe: Recipe, data: TrainingData, objective: Objective
) -> Iterator[Windows]:
    """Yields windows of texts as long as the context, or as the texts if these are shorter. Keeps no files."""
    tokenizer = data.prompt_format.tokenizer
    with tempfile.TemporaryDirectory() as folder:
        with StoreWriter(Path(folder) / "store", fingerprint="typed", vocab_size=tokenizer.vocab_size) as writer:
            for chunk in encode_chunks_in_parallel(
                iter([MultiDocumentChunk(list(map(replace_surrogates, texts)))]), tokenizer
            ):
                writer.append(chunk)
            store = writer.finish()
        cuts = [objective.choose_text_cut(n) for n in range(min(recipe.model.context, len(store) + 3), 0, -1)]
        cut = next((cut for cut in cuts if 1 < cut.length <= len(store) and cut.stride < len(store)), cuts[0])
        marks = tokenizer.bos_id, tokenizer.eos_id
        yield Windows(store, cut, recipe.seed, None, marks, recipe.data.isolate_documents)


def tabulate_batch_rows(collated: CollatedBatch) -> Iterator[BatchTable]:
    """Yields a table for each row of a batch; for word vectors, whose rows are single words, one table of all rows."""
    batch, read, recipe, tokenizer, objective = collated
    if recipe.model.reads == "words" and batch.targets_BT is not None:
        note = f"pairs in the loss: {objective.count_targets(batch)}"
        yield BatchTable("words", _list_word_vector_columns(batch, tokenizer), [note])
        return
    for number in range(len(batch.tokens_BT)):
        row, title = batch.row(number), f"row {number + 1}"
        if row.source_BS is not None:
            source = Batch(row.source_BS, keep_BT=row.source_keep_BS)
            yield BatchTable(f"{title}, source", _list_token_columns(source, tokenizer))
            title = f"{title}, target"
        targets = _list_target_columns(collated._replace(batch=row, sampled_batch=read.row(number)))
        columns = _list_token_columns(row, tokenizer) | targets
        yield BatchTable(title, columns, list(_describe_row_targets(row, recipe)), list(draw_masks(recipe, row)))


def _list_word_vector_columns(batch: Batch, tokenizer: Tokenizer) -> CellsByColumn:
    """Lists for each row, or each counted pair, the words that are read, those that they predict, and the noise."""
    tokens_BN = batch.tokens_BT if batch.keep_BT is None else batch.tokens_BT.masked_fill(~batch.keep_BT, IGNORE)
    words = {"input": tokens_BN, "targets": batch.targets_BT, "noise words": batch.negatives_BK}
    columns: CellsByColumn = {}
    for name, rows in words.items():
        if rows is not None:
            lines = rows.tolist() if batch.values_BC is None else rows.flatten()[:, None].tolist()
            columns[name] = [" ".join(str(one) for one in _display_tokens(line, tokenizer) if one) for line in lines]
    return columns if batch.values_BC is None else columns | {"count": batch.values_BC.flatten().tolist()}


def _list_token_columns(row: Batch, tokenizer: Tokenizer) -> CellsByColumn:
    """Lists for each position its number in its text, id and piece, and its segment, document, prefix or padding."""
    ids = row.tokens_BT[0].tolist()
    columns = {"position": text_positions(row)[0].tolist(), "id": ids, "piece": _display_tokens(ids, tokenizer)}
    groups = ("segment", row.segments_BT), ("document", row.documents_BT)
    columns |= {name: values[0].tolist() for name, values in groups if values is not None}
    at_T, marks = torch.arange(len(ids)), dict[str, Tensor]()
    if row.prefix_B is not None:
        marks["prefix"] = at_T < row.prefix_B
    if row.keep_BT is not None and not row.keep_BT.all():
        marks["padding"] = ~row.keep_BT[0]
    if row.spans_B2 is not None:
        marks["answer"] = (at_T >= row.spans_B2[0, 0]) & (at_T <= row.spans_B2[0, 1])
    return columns | {name: [name if is_one else None for is_one in mark.tolist()] for name, mark in marks.items()}


def _list_target_columns(collated_row: CollatedBatch) -> CellsByColumn:
    """Lists for each position of a row its target, what the input has in its place, and what the model sampled."""
    batch, read, recipe, tokenizer, objective = collated_row
    columns: CellsByColumn = {}
    if batch.targets_BT is not None:
        inputs, targets = batch.tokens_BT[0].tolist(), batch.targets_BT[0].tolist()
        columns["target"] = _display_tokens(targets, tokenizer)
        if isinstance(recipe.objective, Masked):
            columns["input is"] = _name_replacements(inputs, targets, "kept", "random", tokenizer.mask_id)
    if read.draws_BT is not None:
        draws_T = read.draws_BT[0]
        sampled = read.tokens_BT[0].masked_fill(draws_T < 0, IGNORE).tolist()
        columns["number drawn"] = [None if draw < 0 else round(draw, 3) for draw in draws_T.tolist()]
        columns["sampled"] = _display_tokens(sampled, tokenizer)
        if isinstance(recipe.objective, ReplacedTokens):
            columns["is"] = _name_replacements(sampled, targets, "original", "replaced")
    if isinstance(objective, BidirectionalObjective):
        columns["target backwards"] = _display_tokens(objective.backward_targets(batch)[0].tolist(), tokenizer)
    if batch.places_BW is not None and batch.tags_BW is not None:
        tags = dict(zip(batch.places_BW[0].tolist(), batch.tags_BW[0].tolist(), strict=True))
        positions = range(batch.tokens_BT.shape[1])
        columns["tag"] = [_format_label(recipe, tags[t]) if t in tags else None for t in positions]
    return columns


def _name_replacements(
    ids: Sequence[int], targets: Sequence[int], name_if_same: str, name_if_other: str, mask_id: int = IGNORE
) -> list[TableCell]:
    """Names what is in the place of each token that is predicted: "mask", the same token, or another one."""
    return [
        None if target == IGNORE else "mask" if token == mask_id else name_if_same if token == target else name_if_other
        for token, target in zip(ids, targets, strict=True)
    ]


def _describe_row_targets(row: Batch, recipe: Recipe) -> Iterator[str]:
    """Yields what is predicted of a row as a whole, and how many positions count in the loss."""
    if row.labels_B is not None and isinstance(recipe.objective, Masked):
        order = "the texts are in order" if recipe.objective.sentence_order else "the second text is the next"
        yield f"{order}: {'yes' if row.labels_B.item() else 'no'}"
    elif row.labels_B is not None:
        yield f"label: {_format_label(recipe, int(row.labels_B))}"
    if row.values_BC is not None:
        yield f"labels, a number for each: {row.values_BC[0].tolist()}"
    if row.targets_BT is not None:
        yield f"targets in the loss: {row.n_targets} of {row.targets_BT.numel()} positions"


def _display_tokens(ids: Sequence[int], tokenizer: Tokenizer) -> list[TableCell]:
    """Returns the texts of ids as Python literals; None for IGNORE."""
    return [None if token == IGNORE else repr(tokenizer.display_token(token)) for token in ids]


def _format_label(recipe: Recipe, index: int) -> str:
    names = recipe.objective.labels if isinstance(recipe.objective, Classification | Tagging) else ()
    return f"{index} ({names[index]})" if names else f"{index}"


def format_title(recipe: Recipe) -> str:
    """Returns the title of the model, its objective, and the description of the recipe."""
    return f"{recipe.model.title}, objective {recipe.objective.kind}: {recipe.description}"


def format_batch_lines(collated: CollatedBatch, *, ascii_only: bool = False) -> Iterator[str | Text]:
    """Formats the tables of a batch as lines of text."""
    yield format_title(collated.recipe)
    for part in tabulate_batch_rows(collated):
        yield from ("", part.title, *part.notes)
        rows = [list(part.columns), *zip(*part.columns.values(), strict=True)]
        cells = [
            ["" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in rows[: MAX_PRINTED_POSITIONS + 1]
        ]
        yield from align_columns(cells, len(part.columns))
        if len(rows) > MAX_PRINTED_POSITIONS + 1:
            yield f"and {len(rows) - MAX_PRINTED_POSITIONS - 1:,} more, which a page has: -o FILE.html"
        yield from format_masks(part.masks, ascii_only)


def render_batch_page(collated: CollatedBatch) -> str:
    """Renders the tables of a batch as a complete HTML page."""
    sections = []
    for part in tabulate_batch_rows(collated):
        body = table(list(part.columns), zip(*part.columns.values(), strict=True), caption="; ".join(part.notes))
        sections += [Section(part.title.capitalize(), body), *render_mask_sections(part.masks)]
    return page("What the model is given", sections, lead=format_title(collated.recipe))
