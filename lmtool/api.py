"""The Python interface: does what the command line does, for notebooks and programs.

from lmtool import load, pretrain

lm = pretrain("book.txt", "tiny", settings={"training.minutes": 1})
print(lm.complete("Once upon a time"))
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.apps.search.entries import get_text_columns_to_index, read_entries
from lmtool.apps.search.index import Index, add_or_replace_texts
from lmtool.compute.device import InferenceName, configure_compute
from lmtool.compute.processes import world_size
from lmtool.data.python_rows import cache_labelled_rows, rows_to_dicts
from lmtool.data.stdin import temporary_text_files
from lmtool.data.survey import Progress, no_progress
from lmtool.errors import UsageError
from lmtool.evaluation.attention import TextAttention, compute_attention
from lmtool.evaluation.embedding import HiddenStates, PoolName, embed, hidden_states
from lmtool.evaluation.gradients import (
    GradientFlow,
    StateContraction,
    compute_gradient_flow_of_text,
    measure_state_contraction_on_text,
)
from lmtool.evaluation.scoring import ScoredText, score_texts
from lmtool.generation.chat import Conversation
from lmtool.generation.generate import TextGenerator, open_draft
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.params import DEFAULT_DRAFT_TOKENS, AnyParams
from lmtool.recipe.load import Setting, parse_settings
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.objective import HeadSpec, Seq2Seq
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import Data
from lmtool.report.dashboards import DashboardLoggers
from lmtool.runs.directory import Run
from lmtool.runs.listing import summarize_run
from lmtool.runs.load import LoadedModel, load_run
from lmtool.tasks.predict import (
    LabelPredictor,
    build_task_with_saved_calibration,
    get_text_columns,
    make_model_with_objective,
)
from lmtool.tasks.reading import LabelledRow
from lmtool.tasks.schema import Columns
from lmtool.tasks.task import Prediction
from lmtool.tokenization.chat import Message
from lmtool.training.events import RunStarted, Warn
from lmtool.training.finetuning import plan_finetuning
from lmtool.training.job import SessionOptions
from lmtool.training.plan import TrainingPlan, plan_pretraining
from lmtool.training.train import train


class TrainedModel(TextGenerator):
    """A trained model, made by `load`. All its methods raise errors of `lmtool.errors`, as the command line shows."""

    @property
    def recipe(self) -> Recipe:
        """The recipe that the model was trained with."""
        return self.loaded.recipe

    @property
    def figures(self) -> dict[str, Any]:
        """The run in figures, as `lmtool runs show --json` has them; in "results" all scores on a table, by task."""
        path = self.loaded.run_path
        return {**vars(summarize_run(path)), "results": Run.open(path).results_by_task}

    @cached_property
    def _unpacked(self) -> LoadedModel:
        """The same model in float32, without packed weights."""
        device = cast(DeviceName, self.loaded.device.type)
        return load_run(self.loaded.reference, configure_compute(device, "float32"))

    def attention(self, *texts: str, source: str | None = None, target: str | None = None) -> TextAttention:
        """The attention weights on a text, or on a source and its target, as `lmtool attention` shows them.

        Raises UsageError for a model without attention.
        """
        return compute_attention(self._unpacked, texts, source=source, target=target)

    def hidden_states(self, text: str) -> HiddenStates:
        """The states of the embeddings and of each layer, (T, D) each."""
        return hidden_states(self.loaded, text)

    def next_token(self, prompt: str) -> list[tuple[str, float]]:
        """Each token with its probability after a prompt, the most probable first, before temperature and filters.

        Raises UsageError for a model that does not generate from left to right.
        """
        self.check_generates()
        runner, tokenizer = ModelRunner(self.loaded.model), self.loaded.tokenizer
        window = runner.fit_prompt(self.loaded.prompt_format.make_prompt(prompt), "refuse", "prompt")
        with self.step_context():
            hidden_1TD, _ = runner.read_tokens([window.tokens], runner.create_initial_state([window]))
        p_V = runner.compute_logits(hidden_1TD[0, -1:], [window.text])[0].double().softmax(-1)[: tokenizer.vocab_size]
        return [(tokenizer.display_token(i), float(p_V[i])) for i in p_V.argsort(descending=True, stable=True).tolist()]

    def gradients(self, text: str, token: int | None = None) -> GradientFlow:
        """The norms of the gradient of one token's loss in the states before it, as `lmtool gradients` shows them."""
        return compute_gradient_flow_of_text(self._unpacked, text, token)

    def two_starts(self, text: str, seed: int = 0) -> StateContraction:
        """How two states that read the same text come together, as `lmtool gradients --starts` shows it."""
        return measure_state_contraction_on_text(self._unpacked, text, seed)

    def score(self, texts: str | Sequence[str], sources: str | Sequence[str] | None = None) -> list[ScoredText]:
        """The log-probability of each token of given texts. sources: one for each, for a model of sources and targets.

        A bidirectional model predicts each token from all others (Salazar et al. 2020).
        """
        return score_texts(self.loaded, _to_list(texts), None if sources is None else _to_list(sources))

    def embed(
        self, texts: str | Sequence[str], *, layer: int = -1, pool: PoolName = "own", truncate: bool = False
    ) -> NDArray[np.float32]:
        """A vector for each text, (N, D). layer, pool: as in `lmtool embed`; pooled as the model was trained to."""
        if pool == "none":
            fix = "pool each text: mean, max, first, last"
            raise UsageError("vectors of words are written by lmtool embed", fix=fix)
        embeddings = embed(self.loaded, _to_list(texts), layer, pool, truncate=truncate)
        return np.concatenate([embedding.vectors for embedding in embeddings])

    def index(self, path: str | Path, *files: str, id_column: str | None = None, **reading: Any) -> Index:
        """Add the texts of files to an index, a new one or not, as `lmtool search index` does, and open it.

        reading: keys of `data` by which tables are read, such as text_columns and encoding.
        """
        data = Data(**{"column": self.recipe.data.column, **reading})
        entries = read_entries(files, data, id_column, get_text_columns_to_index(self.recipe))
        add_or_replace_texts(Path(path), self.loaded, list(entries), no_progress)
        return Index(Path(path), self.loaded)

    def predict(self, rows: Any) -> list[Prediction]:
        """The label, number or text that a fine-tuned model predicts for each row.

        rows: texts, tuples of several, dicts by the names of the columns that the model was trained on, or a DataFrame
        of pandas or Polars with these columns. Of a tagger a row is a sentence, or a tuple of its words; of questions
        it is a question and its context. Raises UsageError for a dict without a column, and for a model that was not
        fine-tuned on a table.
        """
        loaded = self.loaded
        spec = loaded.recipe.objective
        if not isinstance(spec, HeadSpec | Seq2Seq):
            fix = "fine-tune it first: lmtool finetune TABLE"
            raise UsageError("this model was not fine-tuned on a table", fix=fix)
        rows = self._rows_to_texts(rows)
        if not rows:
            return []
        if isinstance(spec, HeadSpec):
            predictor = LabelPredictor.from_model(loaded)
            return predictor.predict(predictor.encode(rows))
        items = [LabelledRow((row,) if isinstance(row, str) else row, None, None, i) for i, row in enumerate(rows, 1)]
        names = loaded.recipe.data.text_columns or tuple(f"text{i + 1}" for i in range(len(items[0].texts)))
        task = build_task_with_saved_calibration(loaded, "", Columns(names), ())
        answers = task.predict_cells(make_model_with_objective(loaded), task.encode(items))
        return [Prediction(str(answer), {}) for answer, *_ in answers]

    def _rows_to_texts(self, rows: Any) -> list[str | tuple[str, ...]]:
        """Returns each row as a text, or as a tuple of its texts."""
        if not hasattr(rows, "columns") and not any(isinstance(row, Mapping) for row in rows):
            return [row if isinstance(row, str) else tuple(row) for row in rows]
        columns = get_text_columns(self.loaded)
        texts: list[str | tuple[str, ...]] = []
        for number, row in enumerate(rows_to_dicts(rows, has_labels=False), 1):
            if missing := [name for name in columns if name not in row]:
                fix = f"give the columns {', '.join(columns)}"
                raise UsageError(f"there is no column {missing[0]}", where=f"row {number}", fix=fix)
            texts.append(row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns))
        return texts

    def chat(self, messages: Sequence[Message], params: AnyParams | None = None) -> str:
        """The assistant's answer to messages of "role" and "content", by the model's chat template."""
        return "".join(Conversation(self, params).stream_reply(messages))


def load(
    run: str = "last",
    *,
    device: DeviceName = "auto",
    precision: InferenceName = "float32",
    draft: str | None = None,
    draft_tokens: int = DEFAULT_DRAFT_TOKENS,
) -> TrainedModel:
    """The best checkpoint of a run, ready for use.

    run: the name or directory of a run or checkpoint, `last`, hf:ORG/NAME[@REVISION], a Hugging Face directory, or a
    .gguf file. Raises CheckpointError when it is none of them.
    draft: a smaller run with the same tokenizer, or "ngram", that proposes `draft_tokens` tokens at once when text is
    generated. Raises UsageError when it cannot.
    """
    lm = TrainedModel.open(run, device=device, precision=precision)
    if draft is not None:
        lm.draft = open_draft(draft, draft_tokens, lm.loaded)
    return lm


Files = str | Path | Sequence[str | Path]

Values = Mapping[str, object]
"""Keys of a recipe, dotted, and their values, as after `-s`."""

NO_SETTINGS: Values = {}


def pretrain(
    text: Files, recipe: str | None = None, *, settings: Values = NO_SETTINGS, source: str | None = None, out: str = ""
) -> TrainedModel:
    """Train a model on text, as `lmtool pretrain` does, and load its best checkpoint.

    text: files as for the command; a string of several lines is a text itself, which is not kept. source: the run that
    goes on, as --from. out: the run directory; a new one in runs/ when empty. Raises the errors of the command; its
    warnings are those of Python.
    """
    given = [str(path) for path in ([text] if isinstance(text, str | Path) else text)]
    paths, texts = ([one for one in given if ("\n" in one) is is_text] for is_text in (False, True))
    with temporary_text_files(paths, texts) as files:
        parsed = _parse_settings(files, settings)
        return _train_and_load(lambda report: plan_pretraining(source, recipe, parsed, report), out)


def finetune(
    table: Any, recipe: str | None = None, *, settings: Values = NO_SETTINGS, source: str | None = None, out: str = ""
) -> TrainedModel:
    """Train a model on a labelled table, as `lmtool finetune` does, and load its best checkpoint; see `pretrain`.

    table: a file or hf:NAME as for the command; or rows: a DataFrame of pandas or Polars, dicts by column name, or
    tuples of one text or several and a label. Rows are kept in the cache. source: the run, or published model, that is
    fine-tuned. Its scores are in `figures`.
    """
    path = str(table) if isinstance(table, str | Path) else cache_labelled_rows(table)
    parsed = _parse_settings([path], settings)
    return _train_and_load(lambda report: plan_finetuning(source, recipe, parsed, report), out)


def _parse_settings(train_files: list[str], settings: Values) -> list[Setting]:
    assignments = [f"{key}={json.dumps(value, default=str)}" for key, value in settings.items()]
    return parse_settings(assignments, [Setting("data.train", train_files, "the first argument")])


def _train_and_load(make_plan: Callable[[Progress], TrainingPlan], out: str) -> TrainedModel:
    if world_size() > 1:
        raise UsageError("a program trains in one process", fix="use lmtool pretrain or finetune with torchrun")
    folder = Path(out) if out else None
    options = SessionOptions(["lmtool", "from", "Python"], no_progress, lambda: False, folder)
    run = ""
    with closing(DashboardLoggers()) as loggers:
        for event in train(make_plan(no_progress), options):
            if isinstance(event, RunStarted):
                run = str(event.path)
            for warning in (*loggers.log_event(event), *([event.text] if isinstance(event, Warn) else ())):
                warnings.warn(warning, stacklevel=3)
    return load(run)


def _to_list(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
