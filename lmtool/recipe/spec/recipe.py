"""The whole recipe, and which of its parts fit together."""

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from lmtool.recipe.spec.base import Spec, unfit
from lmtool.recipe.spec.objective import (
    AnyObjective,
    Causal,
    Classification,
    Embedding,
    HeadSpec,
    Masked,
    QuestionAnswering,
    ReplacedTokens,
    Seq2Seq,
    SpanCorruption,
    Tagging,
    WeightedCounts,
)
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.text import AnyTokenizer, BpeTokenizer, Data, TokenizerFile
from lmtool.recipe.spec.training import (
    AdamW,
    Checkpointing,
    Cosine,
    Distillation,
    Evaluation,
    LoggerName,
    Optimizer,
    Schedule,
    Training,
    Tuning,
)
from lmtool.recipe.spec.transformer import Transformer
from lmtool.recipe.spec.words import Averaging, Glove, NGram, Ppmi, SkipGram

Model = Annotated[Transformer | Recurrent | NGram | SkipGram | Glove | Ppmi | Averaging, Field(discriminator="kind")]


class Recipe(Spec):
    """Everything that determines a training run."""

    description: str = ""
    """One line for `lmtool recipes ls`."""
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 1
    """Seed of weights, order, dropout and samples."""
    model: Model
    """The network."""
    objective: AnyObjective = Causal()
    """The training objective."""
    tokenizer: AnyTokenizer = BpeTokenizer()
    """The tokenizer."""
    data: Data = Data()
    """The training and validation text."""
    training: Training
    """Length, batch and device."""
    tuning: Tuning = Tuning()
    """Which weights are fine-tuned, and at which learning rates."""
    distillation: Distillation = Distillation()
    """A teacher, and how its pupil learns from it; none by default."""
    optimizer: Optimizer = AdamW()
    """The optimizer."""
    schedule: Schedule = Cosine()
    """The learning rate schedule."""
    evaluation: Evaluation = Evaluation()
    """Validation while training."""
    checkpoint: Checkpointing = Checkpointing()
    """Checkpoints during training."""
    logging: Annotated[tuple[LoggerName, ...], Field(strict=False)] = ()
    """Other dashboards to log to, besides the run directory; each is an extra, such as lmtool[tensorboard]."""

    @property
    def text(self) -> Data:
        """The data; never streamed by default where the rest of the recipe needs all of the text at once."""
        if self.data.stream != "auto" or not any(_streaming_mistakes(self)):
            return self.data
        return self.data.model_copy(update={"stream": False})

    @model_validator(mode="before")
    @classmethod
    def _is_in_range(cls, content: object) -> object:
        if mistakes := [f"{'.'.join(map(str, path))} {what}" for path, what in unfit(content)]:
            raise ValueError("\n".join(mistakes).encode(errors="backslashreplace").decode())
        return content

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        mistakes = []
        learns = objectives_of(self.model)
        if self.objective.kind not in learns:
            mistakes.append(
                f"objective.kind {self.objective.kind} is not for a {self.model.title}, which learns "
                f"{' or '.join(learns)}"
            )
        if isinstance(self.objective, Masked) and isinstance(self.model, Transformer) and self.objective.next_sentence:
            if not self.model.next_sentence_head:
                mistakes.append("model.next_sentence_head false leaves objective.next_sentence without a head")
            if self.model.n_segments < 2:
                mistakes.append("model.n_segments is below 2, but objective.next_sentence makes rows of two texts")
        if isinstance(self.objective, ReplacedTokens) and isinstance(self.model, Transformer):
            try:
                generator_of(self.model, self.objective)
            except ValidationError as error:
                why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
                mistakes.append(f"objective.generator_size {self.objective.generator_size} does not fit: {why}")
        if isinstance(self.model, NGram) and isinstance(self.objective, Causal) and self.objective.scheduled_sampling:
            mistakes.append("objective.scheduled_sampling is for models trained by gradients, not for ngram models")
        if isinstance(self.model, Transformer) and _predicts_tokens(self.objective):
            narrow = self.model.embedding_width is not None
            if narrow and self.model.tie_embeddings and not self.model.head_transform:
                mistakes.append("model.tie_embeddings needs model.head_transform, from d_model to embedding_width")
        if self.training.carry_state and self.model.title != "recurrent decoder":
            mistakes.append(f"training.carry_state is for a recurrent decoder, not for a {self.model.title}")
        if self.training.carry_state and isinstance(self.model, Recurrent) and self.model.attention is not None:
            mistakes.append("training.carry_state would carry all past states of model.attention, more at each step")
        if self.training.carry_state and isinstance(self.objective, HeadSpec | Seq2Seq):
            kind = self.objective.kind
            mistakes.append(f"training.carry_state carries the state along a text; objective {kind} reads rows")
        if self.training.carry_state and self.data.mixture:
            mistakes.append("training.carry_state carries the state along one text; data.mixture has several")
        if self.data.mixture and isinstance(self.objective, HeadSpec | Seq2Seq | WeightedCounts):
            mistakes.append(f"data.mixture is for windows of text, which objective {self.objective.kind} does not read")
        if self.data.mixture and self.model.counts:
            mistakes.append(f"data.mixture is for gradients; a model of kind {self.model.kind} reads a text once")
        if self.training.carry_state and self.data.isolate_documents:
            mistakes.append("training.carry_state carries the state across documents; data.isolate_documents does not")
        if self.data.stream is True:
            mistakes += _streaming_mistakes(self)
        if self.training.recompute == "layers" and not isinstance(self.model, Transformer):
            mistakes.append(f"training.recompute layers is for a Transformer, not for a {self.model.title}")
        if self.training.shard == "full" and not isinstance(self.model, Transformer):
            mistakes.append(f"training.shard full is for a Transformer, not for a {self.model.title}")
        mistakes += _tuning_mistakes(self.model, self.objective, self.tuning)
        if self.distillation.teacher is not None:
            mistakes += _teaching_mistakes(self.model, self.objective, self.training)
        mistakes += _feature_mistakes(self.model, self.objective)
        mistakes += _length_mistakes(self.model, self.objective, self.training)
        if self.data.valid_fraction == 0 and not isinstance(self.objective, Seq2Seq):
            mistakes.append("data.valid_fraction 0 is for tables of target texts, with objective seq2seq")
        reveals = isinstance(self.model, Transformer) and not self.model.causal_mask
        if self.evaluation.baseline and reveals:
            mistakes.append("evaluation.baseline compares losses, which are no measure without model.causal_mask")
        if self.evaluation.baseline and (self.model.counts or not isinstance(self.objective, Causal)):
            mistakes.append(
                "evaluation.baseline compares causal language models that are trained by gradients, not a "
                f"{self.model.title} with objective {self.objective.kind}"
            )
        if self.evaluation.gradient_norms and (self.model.counts or not isinstance(self.objective, Causal)):
            mistakes.append(
                "evaluation.gradient_norms are of causal language models that are trained by gradients, not of a "
                f"{self.model.title} with objective {self.objective.kind}"
            )
        if self.evaluation.prompts and self.model.reads == "words":
            mistakes.append(f"evaluation.prompts are for generative models, which {self.model.kind} models are not")
        if self.evaluation.prompts and self.model.reads == "both" and not isinstance(self.objective, Masked):
            mistakes.append(
                f"evaluation.prompts are for generative models; a {self.model.title} fills masks, which objective "
                f"{self.objective.kind} does not train"
            )
        settles = self.evaluation.metric == "auto" and isinstance(self.objective, Seq2Seq)
        if self.evaluation.metric != "loss" and not settles and not isinstance(self.objective, HeadSpec):
            mistakes.append(
                f"evaluation.metric {self.evaluation.metric} is for objective classification, not for objective "
                f"{self.objective.kind}; take loss"
            )
        if isinstance(self.objective, Classification):
            mistakes += _head_mistakes(self.model, self.objective)
        if isinstance(self.tokenizer, BpeTokenizer) and self.tokenizer.dropout and self.objective.kind != "seq2seq":
            mistakes.append(f"tokenizer.dropout is for objective seq2seq, not for objective {self.objective.kind}")
        sentinels = 0 if isinstance(self.tokenizer, TokenizerFile) else self.tokenizer.sentinels
        if isinstance(self.objective, SpanCorruption) and not sentinels and self.tokenizer.kind != "file":
            mistakes.append(
                "tokenizer.sentinels 0 is too few for span corruption, which needs one for each span; take 100"
            )
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self


def _streaming_mistakes(recipe: Recipe) -> Iterator[str]:
    """What needs all of a text at once."""
    objective = recipe.objective
    if isinstance(objective, HeadSpec | Seq2Seq):
        yield f"data.stream is for text, and objective {objective.kind} for tables"
    elif recipe.model.counts or isinstance(objective, WeightedCounts):
        yield f"data.stream is for windows of text, and a model of kind {recipe.model.kind} counts all of it"
    if isinstance(objective, Masked) and objective.next_sentence:
        yield "data.stream is for windows of text, and objective.next_sentence draws from all documents"
    if recipe.training.carry_state:
        yield "data.stream shuffles windows, and training.carry_state reads them in order"
    if recipe.training.epochs is not None:
        yield "data.stream does not know how long an epoch is; take training.steps, tokens or minutes"


TAUGHT = ("causal", "masked", "span-corruption", "prefix", "seq2seq", "classification")
"""Kinds of objectives that a teacher can help with."""


def _teaching_mistakes(model: Model, objective: AnyObjective, training: Training) -> Iterator[str]:
    """What a student cannot have."""
    if model.counts:
        yield f"distillation.teacher is for models trained by gradients, not for {model.kind} models"
    elif objective.kind not in TAUGHT:
        yield f"distillation.teacher is for objectives {', '.join(TAUGHT)}, not for {objective.kind}"
    if training.carry_state:
        yield "distillation.teacher reads each row by itself, and training.carry_state does not"
    if training.compile is True:
        yield "distillation.teacher is for training.compile false or auto: what a compiled model reads is not seen"


def generator_of(model: Transformer, objective: ReplacedTokens) -> Transformer:
    """The generator of replaced tokens for a model: narrower, with heads as wide and layers as many."""
    share = objective.generator_size
    smaller = {
        "d_model": max(1, round(share * model.d_model)),
        "n_heads": max(1, round(share * model.n_heads)),
        "head_width": model.head_width or model.d_model // model.n_heads,
        "n_kv_heads": None,
        "d_ff": max(1, round(share * model.inner_width)) if model.inner_width else 0,
        "embedding_width": (model.embedding_width or model.d_model) if objective.share_embeddings else None,
        "tie_embeddings": True,
        "head_transform": True,
        "head_bias": True,
        "next_sentence_head": False,
    }
    return Transformer.model_validate(model.model_dump() | smaller)


def _length_mistakes(model: Model, objective: AnyObjective, training: Training) -> list[str]:
    """Lengths that a run cannot have."""
    if model.counts:
        given = [key for key in ("epochs", "tokens", "minutes") if getattr(training, key) is not None]
        return [f"training.{key} is for gradients; a model of kind {model.kind} reads a text once" for key in given]
    if isinstance(objective, HeadSpec | Seq2Seq):
        return ["training.tokens is for text; on tables take training.epochs"] if training.tokens is not None else []
    return []


def _head_mistakes(model: Model, head: Classification) -> list[str]:
    """Settings of a head that its body does not support."""
    mistakes = []
    if head.lm_weight and (not isinstance(model, Transformer | Recurrent) or model.shape != "decoder"):
        mistakes.append(f"objective.lm_weight {head.lm_weight} is for decoders, which predict the next token")
    if head.lm_weight and head.layers != "last":
        mistakes.append(f"objective.lm_weight needs the states of the last layer, not objective.layers {head.layers}")
    if head.single_score and (head.task not in ("auto", "class") or len(head.labels) not in (0, 2)):
        mistakes.append("objective.single_score is for two classes")
    if head.single_score and isinstance(model, Averaging) and model.log_ratios:
        mistakes.append("objective.single_score has no log ratio of each class, which model.log_ratios sets")
    if head.dense_norm and not isinstance(model, Transformer):
        mistakes.append(f"objective.dense_norm is as model.norm, which a {model.title} does not have")
    if head.dense_norm and isinstance(model, Transformer) and model.norm.kind == "none":
        mistakes.append("objective.dense_norm is as model.norm, which has kind none")
    if isinstance(model, Averaging):
        if head.pool != "auto":
            mistakes.append(f"objective.pool {head.pool} has no effect: an averaging model already takes the mean")
        if head.layers != "last":
            mistakes.append(f"objective.layers {head.layers} has no effect: an averaging model has none below its mean")
        if head.dense != "none" or head.dense_norm:
            mistakes.append("objective.dense has no effect: an averaging model has model.n_layers")
        if model.one_hot and head.dropout:
            mistakes.append("objective.dropout is for vectors; with model.one_hot take 0, and model.word_dropout")
    return mistakes


def _predicts_tokens(objective: AnyObjective) -> bool:
    """Whether the model's own logits are used."""
    if isinstance(objective, Classification):
        return objective.lm_weight > 0
    return not isinstance(objective, Tagging | QuestionAnswering | Embedding | ReplacedTokens)


def _feature_mistakes(model: Model, objective: AnyObjective) -> list[str]:
    if not isinstance(model, Recurrent | Averaging) or model.features is None:
        return []
    if not isinstance(objective, Classification):
        return [f"model.features are for objective classification, not for objective {objective.kind}"]
    if objective.lm_weight:
        return [f"objective.lm_weight {objective.lm_weight} is for models that do not read ahead, as model.features do"]
    return []


def _tuning_mistakes(model: Model, objective: AnyObjective, tuning: Tuning) -> list[str]:
    mistakes = []
    if isinstance(model, NGram | SkipGram | Glove | Ppmi) and tuning != Tuning():
        mistakes.append(f"tuning is for models with layers, which {model.kind} models do not have")
    elif tuning.lora is not None and not isinstance(model, Transformer):
        mistakes.append(f"tuning.lora adapts the matrices of a Transformer, which {model.kind} models do not have")
    elif tuning.lora is not None and isinstance(objective, ReplacedTokens):
        mistakes.append("tuning.lora would leave the generator and the detector of objective replaced-tokens untrained")
    if tuning.freeze == "body" and not isinstance(objective, HeadSpec):
        mistakes.append(f"tuning.freeze body leaves nothing to train: objective {objective.kind} puts no head on it")
    if tuning.freeze == "body" and isinstance(objective, Classification) and objective.lm_weight:
        mistakes.append(f"objective.lm_weight {objective.lm_weight} has no effect under tuning.freeze body")
    return mistakes


def objectives_of(model: Model) -> tuple[str, ...]:
    """The kinds of objective that a model supports, the default one first."""
    match model:
        case Transformer(shape="decoder", causal_mask=False):
            return ("causal", "classification")
        case Transformer(shape="decoder") | Recurrent(shape="decoder"):
            return ("causal", "classification", "tagging", "question-answering", "seq2seq")
        case NGram():
            return ("causal",)
        case Transformer(shape="encoder"):
            return ("masked", "replaced-tokens", "classification", "tagging", "question-answering", "embedding")
        case Transformer(shape="prefix"):
            return ("prefix", "seq2seq", "span-corruption")
        case Transformer() | Recurrent(shape="encoder-decoder"):
            return ("seq2seq", "span-corruption", "prefix")
        case Recurrent():
            return ("bidirectional", "classification", "tagging", "question-answering")
        case SkipGram():
            return ("skip-gram", "cbow")
        case Glove():
            return ("glove",)
        case Ppmi():
            return ("cooccurrence",)
        case Averaging():
            return ("classification",)
