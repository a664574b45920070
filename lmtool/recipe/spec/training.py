"""Training: its length, tuning, distillation, optimizer, schedule, evaluation and checkpoints."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from lmtool.recipe.spec.base import DeviceName, Fraction, LearningRate, PrecisionName, Spec, Strings


class Training(Spec):
    """Length, batch size and device of training."""

    steps: PositiveInt
    """Total optimizer steps."""
    epochs: PositiveFloat | None = None
    """Epochs over the training data, which then determine the steps."""
    min_steps: PositiveInt | None = None
    """With epochs: the fewest steps, so that a small table is read more often."""
    tokens: PositiveInt | None = None
    """Tokens of text to train on, which then determine the steps."""
    minutes: PositiveFloat | None = None
    """Wall-clock time of a run, which then determines the steps, by the speed that is measured at the start; of epochs,
    tokens and minutes the one that ends first."""
    batch_size: Annotated[int, Field(gt=0, le=2**24)]
    """Sequences in one optimizer step, over all devices."""
    micro_batch: PositiveInt | Literal["auto"] = "auto"
    """Sequences per micro-batch on one device; auto starts at the whole share and halves when out of memory."""
    device: DeviceName = "auto"
    """Device; auto takes the first of cuda, mps, cpu that is available."""
    precision: PrecisionName = "auto"
    """Precision of matrix products; weights stay float32. auto takes bfloat16 where the device has fast bfloat16."""
    clip_norm: PositiveFloat | None = 1.0
    """Maximum global gradient norm; null for no clipping (Pascanu et al. 2013)."""
    micro_tokens: PositiveInt | None = None
    """Positions per micro-batch on one device, padding included, with rows bucketed by length, so that a batch of long
    rows takes no more memory than one of short rows; null for no limit besides micro_batch."""
    carry_state: bool = False
    """Carry the state of a recurrent decoder over from the previous step in each row, without its gradient."""
    recompute: Literal["none", "layers", "auto"] = "auto"
    """Activations of a Transformer: none keeps all for the backward pass; layers keeps the input of each layer and
    computes the rest again (Chen et al. 2016); auto does so once memory has run out, before micro_batch halves."""
    shard: Literal["none", "full", "auto"] = "auto"
    """How several processes hold a Transformer: none, each all of it (DDP); full, each its share of all weights,
    gradients and moments (FSDP2; Zhao et al. 2023); auto, full where they do not fit into the memory of one."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the model with torch.compile; auto does so for long runs on a GPU."""

    @property
    def has_budget(self) -> bool:
        """Whether the steps follow from something else."""
        return not (self.epochs is self.tokens is self.minutes is None)

    def rows_per_process(self, n_processes: int) -> int:
        """The micro-batch of each process; `auto` begins with its whole share of the batch."""
        share = self.batch_size // n_processes
        return share if self.micro_batch == "auto" else min(self.micro_batch, share)


class Lora(Spec):
    """Low-rank adapters: W x + (alpha / rank) B A x, with trained A and B and frozen W (Hu et al. 2022)."""

    rank: PositiveInt = 8
    """Rows of each A, and columns of each B."""
    alpha: PositiveFloat = 16.0
    """The product is scaled by alpha / rank."""
    targets: Annotated[
        tuple[Literal["query", "key", "value", "output", "feed-forward"], ...], Field(strict=False, min_length=1)
    ] = ("query", "value")
    """Matrices of each layer that get adapters."""
    dropout: Fraction = 0.0
    """Dropout of the adapters' input."""
    quantize: Literal["none", "int8", "int4"] = "none"
    """Keep frozen matrices of the layers in 8 or 4 bits, a quarter or a sixth of the memory (Dettmers et al. 2023)."""


class Tuning(Spec):
    """Which weights of a trained model are fine-tuned, and at which learning rates."""

    freeze: Literal["none", "embeddings", "body"] = "none"
    """Embeddings: train all but the embeddings of tokens, positions and segments. Body: train only the head."""
    unfreeze_every: PositiveInt | None = None
    """Gradual unfreezing: train only the top at first, and unfreeze one more layer below after each so many steps, the
    embeddings last (Howard and Ruder 2018); null for all from the start."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Ratio of each layer's learning rate to that of the layer above (Howard and Ruder 2018; Clark et al. 2020)."""
    lora: Lora | None = None
    """Train and save only adapters and the head."""

    @property
    def quantizes(self) -> bool:
        """Whether frozen matrices are quantized."""
        return self.lora is not None and self.lora.quantize != "none"

    def mistakes(self) -> Iterator[str]:
        if self.unfreeze_every is not None and self.freeze == "body":
            yield "unfreeze_every would end what freeze body asks for"
        if self.layer_decay < 1 and self.freeze == "body":
            yield f"layer_decay {self.layer_decay} is for layers, which are all frozen under freeze body"
        if self.lora is not None and self.freeze == "body":
            yield "lora adapts the layers, which freeze body leaves frozen"
        if self.lora is not None and self.freeze == "embeddings":
            yield "lora freezes all but adapters and head, so freeze embeddings has no effect"


class Distillation(Spec):
    """Learn the probabilities of a trained model beside the targets (Hinton et al. 2015; Sanh et al. 2019)."""

    teacher: str | None = None
    """The run to learn from, with the same objective; the student has its tokenizer. None by default."""
    temperature: PositiveFloat = 2.0
    """Temperature of both models' probabilities: above 1, the small ones count more."""
    weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Weight of the teacher's probabilities; that of the targets is what is left of 1."""
    cosine: NonNegativeFloat = 0.0
    """Weight of 1 - cos of the last hidden states of both, which are of equal width then (DistilBERT)."""


class AdamBase(Spec):
    """Base of Adam and AdamW."""

    lr: LearningRate = 1e-3
    """Peak learning rate."""
    beta1: Fraction = 0.9
    """Decay of the first moment."""
    beta2: Fraction = 0.999
    """Decay of the second moment."""
    eps: PositiveFloat = 1e-8
    """Epsilon added to the root of the second moment."""

    def count_states(self, matrices: int, rest: int) -> int:
        """Number of optimizer states for so many parameters, in the matrices of layers and in all others."""
        return 2 * (matrices + rest)


class Adam(AdamBase):
    """Adam (Kingma and Ba 2015)."""

    kind: Literal["adam"]
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty on matrices, added to their gradient."""


class AdamW(AdamBase):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled decay of matrices, times the learning rate."""


class Sgd(Spec):
    """Stochastic gradient descent, with momentum v = m v + lr g when `momentum` is above 0."""

    kind: Literal["sgd"]
    lr: LearningRate
    """Peak learning rate."""
    momentum: Fraction = 0.0
    """Momentum coefficient."""
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty on matrices."""

    def count_states(self, matrices: int, rest: int) -> int:
        return matrices + rest if self.momentum else 0


class Muon(Spec):
    """Muon for the matrices of the layers, AdamW for all else (Jordan et al. 2024)."""

    kind: Literal["muon"]
    lr: LearningRate = 0.02
    """Peak learning rate of the matrices."""
    momentum: Fraction = 0.95
    """Nesterov momentum of the matrices."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled decay of the matrices."""
    adamw: AdamW = AdamW()
    """For embeddings, heads, norms and biases."""

    def count_states(self, matrices: int, rest: int) -> int:
        return matrices + self.adamw.count_states(0, rest)


class Lbfgs(Spec):
    """L-BFGS (Liu and Nocedal 1989): a linear head on features that stay, fitted to convergence in one step."""

    kind: Literal["lbfgs"]
    l2: PositiveFloat | None = None
    """L2 penalty: l2 / 2 times the squared distance of the weights from 0, or from naive Bayes where the head begins as
    that, added to the sum of the losses of the rows, whose features have a mean square of 1. Null chooses it by
    cross-validation."""

    @property
    def lr(self) -> float:
        """No rate: a line search sets the length of each iteration."""
        return 1.0

    def count_states(self, matrices: int, rest: int) -> int:
        return 0


Optimizer = Annotated[Adam | AdamW | Sgd | Muon | Lbfgs, Field(discriminator="kind")]


class Constant(Spec):
    """Linear warm-up, then the peak rate."""

    kind: Literal["constant"]
    warmup_steps: NonNegativeInt = 0
    """Steps from zero to the peak rate."""


class Linear(Spec):
    """Linear warm-up, then linear decay (BERT), with or without a plateau between them (warmup-stable-decay, WSD; Hu et
    al. 2024)."""

    kind: Literal["linear"]
    warmup_steps: NonNegativeInt = 0
    """Steps from zero to the peak rate."""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the steps after the warm-up in which the rate decays, the last ones; before them it is the peak."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Where the decay ends, one step after the last, as a fraction of the peak."""


class Cosine(Spec):
    """Linear warm-up, then cosine decay (Loshchilov and Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: NonNegativeInt = 0
    """Steps from zero to the peak rate."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Where the decay ends, one step after the last, as a fraction of the peak."""


class InverseSquareRoot(Spec):
    """lr d_model^-0.5 min(t^-0.5, t warmup^-1.5) (Vaswani et al. 2017, where lr is 1)."""

    kind: Literal["inverse-square-root"]
    warmup_steps: PositiveInt = 4000
    """Steps from zero to the peak rate."""


Schedule = Annotated[Constant | Linear | Cosine | InverseSquareRoot, Field(discriminator="kind")]


class Evaluation(Spec):
    """Validation while training."""

    every: PositiveInt = 250
    """Steps between validations; the last step always validates."""
    epochs: PositiveFloat | None = None
    """Epochs over a table between validations, which then determine `every`; at most 20 validations in all."""
    tokens: PositiveInt | None = 100_000
    """Validation tokens scored each time, the same ones every time; null for all."""
    metric: Literal["auto", "loss", "accuracy", "macro-f1", "correlation", "f1", "exact", "spearman", "ndcg"] = "loss"
    """Metric that selects the best checkpoint, the loss among equal ones; others are for tables. f1 is of entities
    for tagging, and of words for question-answering, as exact is of whole answers. Auto, for tables, is accuracy where
    each row has one class or words have plain tags, f1 for entities and answers, for vectors of texts spearman, ndcg or
    accuracy by what a row is, and else loss."""
    baseline: bool | Literal["auto"] = "auto"
    """Compare with simple models: causal language models at the end with a 5-gram model of the same text, in bits per
    byte; models of labelled tables with the most frequent label and with counted words. Auto compares those of tables
    alone."""
    interpolate: bool = True
    """Keep the 5-gram model of `baseline` in the run, and interpolate with it in generate, eval and serve, if that
    predicts the validation text by at least 1 % fewer bits (Jelinek and Mercer 1980)."""
    gradient_norms: bool = False
    """Log, at each validation, the norm of the gradient of a loss in the states up to 64 steps before it; for causal
    language models trained by gradients."""
    num_beams: Annotated[int, Field(gt=0, le=4096)] = 1
    """Beam width of the final evaluation on tables, for objective seq2seq; 1 is greedy."""
    patience: PositiveInt | None = None
    """Early stopping after this many validations without a new best; null for none."""
    prompts: Strings | None = None
    """Prompts to continue at each validation, as samples of the model. Null takes the beginning of the validation text,
    where the model continues texts; [] writes no samples."""
    sample_tokens: PositiveInt = 64
    """Length of those samples."""


class Checkpointing(Spec):
    """Checkpoints during training."""

    every: PositiveInt = 250
    """Steps between checkpoints; the last step always saves one."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints to keep; the best one is kept too."""
    keep_optimizer: bool = False
    """Keep the optimizer state of a finished run, so that more steps are bitwise those of an unbroken training."""
    background: bool = False
    """Write checkpoints while training goes on, from a copy of weights and moments in CPU memory."""


LoggerName = Literal["tensorboard", "wandb", "mlflow"]
