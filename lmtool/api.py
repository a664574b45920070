"""The Python face: what the command line does with a trained model, for notebooks and programs.

from lmtool import load

lm = load("last")
print(lm.complete("Once upon a time"))
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lmtool.compute.device import InferenceName
from lmtool.decoding.settings import DRAFT_TOKENS, Settings
from lmtool.errors import UsageError
from lmtool.inference.chatting import Conversation
from lmtool.inference.embedding import PoolName, embed
from lmtool.inference.generator import Drafter, TextGenerator
from lmtool.inference.scoring import Scored, score
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.objective import Classification, HeadSpec, Seq2Seq, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tables.columns import Columns
from lmtool.tables.predict import Prediction, task_of
from lmtool.tables.reading import LabelledText
from lmtool.tables.tasks.classification import HeadTask
from lmtool.tables.tasks.task import AnsweringModel
from lmtool.tokenization.chat import Message
from lmtool.tokenization.tokenizer import find_words


class TrainedModel(TextGenerator):
    """A trained model, made by `load`. All its methods raise errors of `lmtool.errors`, as the command line shows."""

    @property
    def recipe(self) -> Recipe:
        """The recipe that the model was trained with."""
        return self.loaded.recipe

    def score(self, texts: str | Sequence[str], sources: str | Sequence[str] | None = None) -> list[Scored]:
        """The log-probability of each token of given texts. sources: one for each, for a model of sources and targets.

        A bidirectional model predicts each token from all others (Salazar et al. 2020).
        """
        return score(self.loaded, _listed(texts), None if sources is None else _listed(sources))

    def embed(
        self, texts: str | Sequence[str], *, layer: int = -1, pool: PoolName = "own", truncate: bool = False
    ) -> NDArray[np.float32]:
        """A vector for each text, (N, D). layer, pool: as in `lmtool embed`; pooled as the model was trained to."""
        if pool == "none":
            fix = "pool each text: mean, max, first, last"
            raise UsageError("vectors of words are written by lmtool embed", fix=fix)
        embedded = embed(self.loaded, _listed(texts), layer, pool, truncate=truncate)
        return np.concatenate([one.vectors for one in embedded])

    def predict(self, rows: Sequence[str | tuple[str, ...]]) -> list[Prediction]:
        """The label, number or text that a fine-tuned model predicts for each row: a text, or a tuple of several.

        Of a tagger a row is a sentence, or a tuple of its words; of questions it is a question and its context.
        """
        loaded = self.loaded
        spec = loaded.recipe.objective
        if not isinstance(spec, HeadSpec | Seq2Seq):
            fix = "fine-tune it first: lmtool finetune TABLE"
            raise UsageError("this model was not fine-tuned on a table", fix=fix)
        if not rows:
            return []
        texts = [_texts_of(row, isinstance(spec, Tagging)) for row in rows]
        items = [LabelledText(text, None, None, number) for number, text in enumerate(texts, 1)]
        names = loaded.recipe.data.text_columns or tuple(f"text{i + 1}" for i in range(len(items[0].texts)))
        task = task_of(loaded, "", Columns(names), ())
        model = AnsweringModel(loaded.model, loaded.objective, loaded.compute)
        encoded = task.encode(items)
        if not isinstance(task, HeadTask):
            answers = (cells[0] for cells in task.answer(model, encoded))
            return [Prediction(tuple(answer) if isinstance(answer, list) else str(answer), {}) for answer in answers]
        scores_RC, _ = task.scores(model, encoded)
        return [_prediction(cast(Classification, spec), p_C) for p_C in task.probabilities(scores_RC)]

    def chat(self, messages: Sequence[Message], settings: Settings | None = None) -> str:
        """The assistant's answer to messages of "role" and "content", by the model's chat template."""
        return "".join(Conversation(self, settings).answer(messages))


def load(
    run: str = "last",
    *,
    device: DeviceName = "auto",
    precision: InferenceName = "float32",
    draft: str | None = None,
    draft_tokens: int = DRAFT_TOKENS,
) -> TrainedModel:
    """The best checkpoint of a run, ready for use.

    run: the name or directory of a run or checkpoint, `last`, hf:ORG/NAME[@REVISION], a Hugging Face directory, or a
    .gguf file. Raises CheckpointError when it is none of them.
    draft: a smaller run with the same tokenizer, or "ngram", that proposes `draft_tokens` tokens at once when text is
    generated. Raises UsageError when it cannot.
    """
    lm = TrainedModel.open(run, device=device, precision=precision)
    if draft is not None:
        lm.drafter = Drafter.open(draft, draft_tokens, lm.loaded)
    return lm


def _texts_of(row: str | tuple[str, ...], is_tagged: bool) -> tuple[str, ...]:
    if not isinstance(row, str):
        return row
    return tuple(row[start:stop] for start, stop in find_words(row)) if is_tagged else (row,)


def _listed(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _prediction(spec: Classification, p_C: NDArray[np.float64]) -> Prediction:
    if spec.task == "number":
        return Prediction(float(p_C[0]), {})
    probabilities = dict(zip(spec.labels, p_C.tolist(), strict=True))
    if spec.task == "multi":
        return Prediction(tuple(name for name, p in probabilities.items() if p > 0.5), probabilities)
    return Prediction(max(probabilities, key=lambda name: probabilities[name]), probabilities)
