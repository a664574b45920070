"""The whole recipe, and which of its parts fit together."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from lmtool.recipe.spec import training as settings
from lmtool.recipe.spec.base import Spec, find_surrogates_and_too_large_numbers
from lmtool.recipe.spec.objective import (
    AnyObjective,
    Causal,
    Classification,
    Embedding,
    HeadSpec,
    Masked,
    ReplacedTokens,
    RowSpec,
    Seq2Seq,
    SpanCorruption,
    WeightedCounts,
    supported_objectives,
    uses_language_model_head,
)
from lmtool.recipe.spec.recurrent import PretrainedStatesModelSpec, Recurrent
from lmtool.recipe.spec.text import AnyTokenizer, BpeTokenizer, CharTokenizer, Data, TokenizerFile, WordTokenizer
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
    training: settings.Training
    """Length, batch and device."""
    tuning: settings.Tuning = settings.Tuning()
    """Which weights are fine-tuned, and at which learning rates."""
    distillation: settings.Distillation = settings.Distillation()
    """A teacher, and how its pupil learns from it; none by default."""
    optimizer: settings.Optimizer = settings.AdamW()
    """The optimizer."""
    schedule: settings.Schedule = settings.Cosine()
    """The learning rate schedule."""
    evaluation: settings.Evaluation = settings.Evaluation()
    """Validation while training."""
    checkpoint: settings.Checkpointing = settings.Checkpointing()
    """Checkpoints during training."""
    logging: Annotated[tuple[settings.LoggerName, ...], Field(strict=False)] = ()
    """Other dashboards to log to, besides the run directory; each is an extra, such as lmtool[tensorboard]."""

    @property
    def data_without_unsupported_streaming(self) -> Data:
        """The data; never streamed by default where the rest of the recipe needs all of the text at once."""
        if self.data.stream != "auto" or not any(_streaming_mistakes(self)):
            return self.data
        return self.data.with_unvalidated_values({"stream": False})

    @model_validator(mode="before")
    @classmethod
    def _is_in_range(cls, content: object) -> object:
        if mistakes := [
            f"{'.'.join(map(str, path))} {what}" for path, what in find_surrogates_and_too_large_numbers(content)
        ]:
            raise ValueError("\n".join(mistakes).encode(errors="backslashreplace").decode())
        return content

    def mistakes(self) -> Iterator[str]:
        yield from _objective_mistakes(self)
        yield from _data_mistakes(self)
        yield from _training_mistakes(self)
        yield from _tuning_and_distillation_mistakes(self)
        yield from _fitted_head_mistakes(self)
        yield from _evaluation_mistakes(self)
        yield from _head_mistakes(self)


def _objective_mistakes(recipe: Recipe) -> Iterator[str]:
    """An objective that the model does not learn, and what it needs of model and tokenizer."""
    model, objective, tokenizer = recipe.model, recipe.objective, recipe.tokenizer
    learns = supported_objectives(model)
    if objective.kind not in learns:
        yield f"objective.kind {objective.kind} is not for a {model.title}, which learns {' or '.join(learns)}"
    match model, objective:
        case Transformer(), Masked():
            if objective.pair_objective and not model.next_sentence_head:
                yield f"model.next_sentence_head false leaves objective.{objective.pair_objective} without a head"
            if objective.pair_objective and model.n_segments < 2:
                yield f"model.n_segments is below 2, but objective.{objective.pair_objective} makes rows of two texts"
            if objective.span_boundary and not model.span_boundary_head:
                yield "model.span_boundary_head false leaves objective.span_boundary without a head"
            if objective.permutation and model.pattern.kind != "full":
                yield f"objective.permutation is for model.pattern.kind full, not for {model.pattern.kind}"
        case Transformer(), ReplacedTokens():
            try:
                make_generator_spec(model, objective)
            except ValidationError as error:
                why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
                yield f"objective.generator_size {objective.generator_size} does not fit: {why}"
        case Transformer(), Embedding() if max(objective.dims, default=0) > model.d_model:
            yield f"objective.dims {max(objective.dims)} is above model.d_model {model.d_model}, the width of vectors"
        case NGram(), Causal() if objective.scheduled_sampling:
            yield "objective.scheduled_sampling is for models trained by gradients, not for ngram models"
    match model:
        case Transformer(embedding_width=int(), tie_embeddings=True, head_transform=False):
            if uses_language_model_head(objective):
                yield "model.tie_embeddings needs model.head_transform, from d_model to embedding_width"
    if isinstance(tokenizer, BpeTokenizer) and tokenizer.dropout and objective.kind != "seq2seq":
        yield f"tokenizer.dropout is for objective seq2seq, not for objective {objective.kind}"
    of_characters = isinstance(tokenizer, CharTokenizer | TokenizerFile)
    if isinstance(model, Averaging) and model.word_buckets and not of_characters:
        yield f"model.word_buckets are for tokens that are characters, not for tokenizer.kind {tokenizer.kind}"
    if isinstance(objective, Masked) and objective.whole_words and isinstance(tokenizer, WordTokenizer):
        yield "objective.whole_words has no effect: the tokens of tokenizer.kind word are whole words; take false"
    if isinstance(objective, SpanCorruption) and not isinstance(tokenizer, TokenizerFile) and not tokenizer.sentinels:
        yield "tokenizer.sentinels 0 is too few for span corruption, which needs one for each span; take 100"


def _data_mistakes(recipe: Recipe) -> Iterator[str]:
    """Data that the model or the objective does not read."""
    model, objective, data = recipe.model, recipe.objective, recipe.data
    if data.mixture and isinstance(objective, RowSpec | WeightedCounts):
        yield f"data.mixture is for windows of text, which objective {objective.kind} does not read"
    if data.mixture and model.counts:
        yield f"data.mixture is for gradients; a model of kind {model.kind} reads a text once"
    if data.stream is True:
        yield from _streaming_mistakes(recipe)
    if data.valid_fraction == 0 and not isinstance(objective, Seq2Seq | Classification):
        yield "data.valid_fraction 0 is for tables, with objective seq2seq or classification"


def _streaming_mistakes(recipe: Recipe) -> Iterator[str]:
    """What needs all of a text at once."""
    objective = recipe.objective
    if isinstance(objective, RowSpec):
        yield f"data.stream is for text, and objective {objective.kind} for tables"
    elif recipe.model.counts or isinstance(objective, WeightedCounts):
        yield f"data.stream is for windows of text, and a model of kind {recipe.model.kind} counts all of it"
    if isinstance(objective, Masked) and objective.pair_objective:
        yield f"data.stream is for windows of text, and objective.{objective.pair_objective} draws from all documents"
    if recipe.training.carry_state:
        yield "data.stream shuffles windows, and training.carry_state reads them in order"
    if recipe.training.epochs is not None:
        yield "data.stream does not know how long an epoch is; take training.steps, tokens or minutes"


def _training_mistakes(recipe: Recipe) -> Iterator[str]:
    """Lengths and ways of computing that model, objective or data do not allow."""
    model, objective, data, training = recipe.model, recipe.objective, recipe.data, recipe.training
    for key, value in (("recompute", "layers"), ("shard", "full")):
        if getattr(training, key) == value and not isinstance(model, Transformer):
            yield f"training.{key} {value} is for a Transformer, not for a {model.title}"
    if model.counts:
        for key in ("epochs", "tokens", "minutes"):
            if getattr(training, key) is not None:
                yield f"training.{key} is for gradients; a model of kind {model.kind} reads a text once"
    elif isinstance(objective, RowSpec) and training.tokens is not None:
        yield "training.tokens is for text; on tables take training.epochs"
    if not training.carry_state:
        return
    if model.title != "recurrent decoder":
        yield f"training.carry_state is for a recurrent decoder, not for a {model.title}"
    if isinstance(model, Recurrent) and model.attention is not None:
        yield "training.carry_state would carry all past states of model.attention, more at each step"
    if isinstance(objective, RowSpec):
        yield f"training.carry_state carries the state along a text; objective {objective.kind} reads rows"
    if data.mixture:
        yield "training.carry_state carries the state along one text; data.mixture has several"
    if data.isolate_documents:
        yield "training.carry_state carries the state across documents; data.isolate_documents does not"


def _tuning_and_distillation_mistakes(recipe: Recipe) -> Iterator[str]:
    """What cannot be frozen or adapted, or learn from a teacher."""
    model, objective, tuning = recipe.model, recipe.objective, recipe.tuning
    if isinstance(model, NGram | SkipGram | Glove | Ppmi) and tuning != settings.Tuning():
        yield f"tuning is for models with layers, which {model.kind} models do not have"
    elif tuning.lora is not None and not isinstance(model, Transformer):
        yield f"tuning.lora adapts the matrices of a Transformer, which {model.kind} models do not have"
    elif tuning.lora is not None and isinstance(objective, ReplacedTokens):
        yield "tuning.lora would leave the generator and the detector of objective replaced-tokens untrained"
    if tuning.quantizes and recipe.training.compile is True:
        yield "tuning.lora.quantize is for training.compile false or auto: quantized matrices are not compiled"
    if tuning.freeze != "none" and isinstance(model, Averaging) and model.one_hot:
        yield f"tuning.freeze {tuning.freeze} has no effect on one_hot features, which are not learnt"
    if tuning.freeze == "body" and not isinstance(objective, HeadSpec):
        yield f"tuning.freeze body leaves nothing to train: objective {objective.kind} puts no head on it"
    if tuning.freeze == "body" and isinstance(objective, Classification) and objective.lm_weight:
        yield f"objective.lm_weight {objective.lm_weight} has no effect under tuning.freeze body"
    if recipe.distillation.teacher is None:
        return
    if model.counts:
        yield f"distillation.teacher is for models trained by gradients, not for {model.kind} models"
    elif objective.kind not in DISTILLABLE_OBJECTIVES:
        yield f"distillation.teacher is for objectives {', '.join(DISTILLABLE_OBJECTIVES)}, not for {objective.kind}"
    if isinstance(objective, Masked) and objective.permutation:
        yield "distillation.teacher reads rows of one stream, and objective.permutation makes two; omit one of them"
    if recipe.training.carry_state:
        yield "distillation.teacher reads each row by itself, and training.carry_state does not"
    if recipe.training.compile is True:
        yield "distillation.teacher is for training.compile false or auto: what a compiled model reads is not seen"


def _fitted_head_mistakes(recipe: Recipe) -> Iterator[str]:
    """What L-BFGS does not fit: all but a linear head on vectors of texts, which stay or are trained by contrast."""
    model, head, training = recipe.model, recipe.objective, recipe.training
    is_alone = isinstance(recipe.optimizer, settings.Lbfgs)
    if is_alone and not isinstance(head, Classification):
        yield f"optimizer.kind lbfgs fits a head of objective classification, not of objective {head.kind}"
    if not isinstance(head, Classification) or not (is_alone or head.contrastive):
        return
    key = "optimizer.kind lbfgs" if is_alone else "objective.contrastive"
    if head.dense != "none" or head.pool == "attention" or (head.pool == "max" and head.mixes_layers):
        yield f"{key} fits a linear head; take objective.dense none, and pool mean"
    if head.contrastive and head.mixes_layers:
        yield f"{key} trains the vectors of one layer; take objective.layers last"
    if recipe.distillation.teacher is not None:
        yield f"{key} does not learn from a distillation.teacher"
    if head.contrastive:
        yield from _contrastive_mistakes(recipe, head)
        return
    if isinstance(model, Averaging) and not model.one_hot:
        yield f"{key} fits a linear head, which has no layers of an averaging model below it"
    elif not isinstance(model, Averaging) and recipe.tuning.freeze != "body":
        yield f"{key} is for features that stay; take tuning.freeze body, or optimizer.kind adamw"
    for name in ("epochs", "minutes"):
        if getattr(training, name) is not None:
            yield f"training.{name} is for gradients; {key} fits a head in one step"
    if training.steps != 1:
        yield f"training.steps {training.steps} is for gradients; {key} fits a head in one step"


def _contrastive_mistakes(recipe: Recipe, head: Classification) -> Iterator[str]:
    """What vectors of texts that are trained by contrast do not go with."""
    if isinstance(recipe.model, Averaging):
        yield "objective.contrastive trains the states of a body, and model.kind averaging has none"
        return
    if recipe.tuning.freeze == "body" or isinstance(recipe.optimizer, settings.Lbfgs):
        yield "objective.contrastive trains a body, which stays with tuning.freeze body or optimizer.kind lbfgs"
    if head.task in ("multi", "number"):
        yield f"objective.contrastive is for rows of one class each, not for objective.task {head.task}"
    if head.lm_weight:
        yield "objective.contrastive has no language-model loss beside it; take objective.lm_weight 0"


DISTILLABLE_OBJECTIVES = ("causal", "masked", "span-corruption", "prefix", "seq2seq", "classification")
"""Kinds of objectives that a teacher can help with."""


def _evaluation_mistakes(recipe: Recipe) -> Iterator[str]:
    """Measurements that the model or the objective does not allow."""
    model, objective, evaluation = recipe.model, recipe.objective, recipe.evaluation
    if evaluation.baseline is True and isinstance(model, Transformer) and not model.causal_mask:
        yield "evaluation.baseline compares losses, which mean nothing without model.causal_mask"
    if model.counts or not isinstance(objective, Causal):
        causal = "causal language models that are trained by gradients"
        if evaluation.baseline is True and not isinstance(objective, HeadSpec):
            yield f"evaluation.baseline compares {causal}, not a {model.title} with objective {objective.kind}"
        if evaluation.gradient_norms:
            yield f"evaluation.gradient_norms are of {causal}, not of a {model.title} with objective {objective.kind}"
    if evaluation.prompts and model.reads == "words":
        yield f"evaluation.prompts are for generative models, which {model.kind} models are not"
    if evaluation.prompts and isinstance(objective, Masked) and objective.permutation:
        yield "evaluation.prompts are for generative models; objective.permutation trains without masks to fill"
    if evaluation.prompts and model.reads == "both" and not isinstance(objective, Masked):
        masks = f"a {model.title} fills masks, which objective {objective.kind} does not train"
        yield f"evaluation.prompts are for generative models; {masks}"
    metrics = ("loss", "auto") if isinstance(objective, Seq2Seq) else ("loss",)
    if evaluation.metric not in metrics and not isinstance(objective, HeadSpec | Embedding):
        heads = f"is for objective classification, not for objective {objective.kind}"
        yield f"evaluation.metric {evaluation.metric} {heads}; take loss"


def _head_mistakes(recipe: Recipe) -> Iterator[str]:
    """Settings of a head that its body does not support, and features of another model without a head."""
    model, head = recipe.model, recipe.objective
    has_features = isinstance(model, PretrainedStatesModelSpec) and model.features is not None
    if not isinstance(head, Classification):
        if has_features:
            yield f"model.features are for objective classification, not for objective {head.kind}"
        return
    if has_features and head.lm_weight:
        yield f"objective.lm_weight {head.lm_weight} is for models that do not read ahead, as model.features do"
    if head.lm_weight and (not isinstance(model, Transformer | Recurrent) or model.shape != "decoder"):
        yield f"objective.lm_weight {head.lm_weight} is for decoders, which predict the next token"
    if head.lm_weight and head.layers != "last":
        yield f"objective.lm_weight needs the states of the last layer, not objective.layers {head.layers}"
    if head.single_score and (head.task not in ("auto", "class") or len(head.labels) not in (0, 2)):
        yield "objective.single_score is for two classes"
    if head.single_score and isinstance(model, Averaging) and model.log_ratios:
        yield "objective.single_score has no log ratio of each class, which model.log_ratios sets"
    if head.dense_norm and not isinstance(model, Transformer):
        yield f"objective.dense_norm is as model.norm, which a {model.title} does not have"
    if head.dense_norm and isinstance(model, Transformer) and model.norm.kind == "none":
        yield "objective.dense_norm is as model.norm, which has kind none"
    if isinstance(model, Averaging):
        if head.pool != "auto":
            yield f"objective.pool {head.pool} has no effect: an averaging model already takes the mean"
        if head.layers != "last":
            yield f"objective.layers {head.layers} has no effect: an averaging model has none below its mean"
        if head.dense != "none" or head.dense_norm:
            yield "objective.dense has no effect: an averaging model has model.n_layers"
        if model.one_hot and head.dropout:
            yield "objective.dropout is for vectors; with model.one_hot take 0, and model.word_dropout"


def make_generator_spec(model: Transformer, objective: ReplacedTokens) -> Transformer:
    """The generator of replaced tokens for a model: narrower, with heads as wide and layers as many."""
    share = objective.generator_size
    smaller = {
        "d_model": max(1, round(share * model.d_model)),
        "n_heads": max(1, round(share * model.n_heads)),
        "head_width": None if model.mixer == "plain-attention" else model.head_width or model.d_model // model.n_heads,
        "n_kv_heads": None,
        "d_ff": max(1, round(share * model.inner_width)) if model.inner_width else 0,
        "embedding_width": (model.embedding_width or model.d_model) if objective.share_embeddings else None,
        "tie_embeddings": True,
        "head_transform": True,
        "head_bias": True,
        "next_sentence_head": False,
        "span_boundary_head": False,
    }
    return Transformer.model_validate(model.model_dump() | smaller)
