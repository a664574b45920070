"""The recipe language: one pydantic tree, in the order in which a paper's table would give it.

Every field has its final name, its type, its limits and one sentence that editors show. Checks that need two fields are
validators of the smallest spec that holds both. Nothing here imports torch or any other part of lmtool.
"""

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Fraction = Annotated[float, Field(ge=0, lt=1)]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]
Strings = Annotated[
    tuple[str, ...],
    Field(strict=False),
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
]
"""A list of texts; one text stands for a list of one."""


class Spec(BaseModel):
    """Base of all specs: immutable, strictly typed, finite, and closed to keys it does not know.

    A check of several fields raises one ValueError with a line for each mistake, which starts with the key it is about.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


# Model


class LearnedPosition(Spec):
    """One trained vector for each position (GPT, BERT)."""

    kind: Literal["learned"] = "learned"
    size: PositiveInt | None = None
    """Rows of the position table; the context by default."""


class SinusoidalPosition(Spec):
    """Fixed sines and cosines of geometrically spaced wavelengths (Vaswani et al. 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"


class NoPosition(Spec):
    """No position signal: only the causal mask tells order (Kazemnejad et al. 2023)."""

    kind: Literal["none"] = "none"


Position = Annotated[LearnedPosition | SinusoidalPosition | NoPosition, Field(discriminator="kind")]


class Norm(Spec):
    """Normalisation of the residual stream."""

    kind: Literal["layer", "rms"] = "layer"
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""
    place: Literal["pre", "post"] = "pre"
    """Before each sublayer (GPT-2) or after each residual sum (Vaswani et al. 2017)."""
    eps: PositiveFloat = 1e-5
    """Added to the variance."""


class Init(Spec):
    """Initial weights."""

    std: PositiveFloat = 0.02
    """Standard deviation of the normal distribution that matrices and embeddings are drawn from."""
    scale_residual: bool = True
    """Divide the std of each projection into the residual stream by the square root of their number (GPT-2)."""


class Transformer(Spec):
    """A Transformer (Vaswani et al. 2017)."""

    kind: Literal["transformer"]
    shape: Literal["decoder"] = "decoder"
    """Which positions see which: a decoder sees the past only (GPT)."""
    n_layers: PositiveInt
    """Layers, each of attention and a feed-forward network."""
    d_model: PositiveInt
    """Width of the residual stream."""
    n_heads: PositiveInt
    """Attention heads; their number divides d_model."""
    n_kv_heads: PositiveInt | None = None
    """Heads of keys and values, shared by groups of query heads (Ainslie et al. 2023); n_heads by default."""
    d_ff: PositiveInt | None = None
    """Width inside the feed-forward network; 4 d_model by default."""
    context: PositiveInt
    """Tokens seen at once."""
    vocab_size: PositiveInt | None = None
    """Rows of the embedding; the tokenizer's size by default. More than that leaves rows unused."""
    activation: Literal["relu", "gelu", "gelu-tanh", "swiglu"] = "gelu"
    """Nonlinearity of the feed-forward network: ReLU, exact GELU, its tanh approximation (GPT-2), or SwiGLU."""
    position: Position = LearnedPosition()
    """How the model knows the order of its tokens."""
    norm: Norm = Norm()
    """Normalisation and its place."""
    bias: bool = True
    """Biases in linear layers and norms."""
    tie_embeddings: bool = True
    """Use the embedding matrix as the output matrix (Press and Wolf 2017)."""
    head_bias: bool = False
    """A bias on the output logits."""
    scale_embedding: bool = False
    """Multiply embeddings by the square root of d_model (Vaswani et al. 2017)."""
    dropout: Fraction = 0.0
    """Dropout of embeddings, attention weights and the output of each sublayer."""
    ffn_dropout: Fraction = 0.0
    """Dropout inside the feed-forward network, after the nonlinearity."""
    init: Init = Init()
    """Initial weights."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        mistakes = []
        if self.d_model % self.n_heads:
            mistakes.append(f"n_heads {self.n_heads} does not divide d_model {self.d_model}")
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            mistakes.append(f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}")
        size = self.position.size if isinstance(self.position, LearnedPosition) else None
        if size is not None and self.context > size:
            mistakes.append(f"context {self.context} is longer than position.size {size}")
        if isinstance(self.position, SinusoidalPosition) and self.d_model % 2:
            mistakes.append(f"d_model {self.d_model} is odd; sinusoidal positions come in pairs")
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self


Model = Transformer


# Objective


class Causal(Spec):
    """Predict each token from those before it."""

    kind: Literal["causal"] = "causal"
    label_smoothing: Fraction = 0.0
    """Probability eps taken from the true token and spread over the others (Szegedy et al. 2016)."""


Objective = Causal


# Text


class TokenizerSpec(Spec):
    """What all trained tokenizers share."""

    sentinels: NonNegativeInt = 0
    """Extra special tokens that stand for removed spans (T5 has 100)."""
    sample_mb: PositiveInt = 100
    """At most this many megabytes of text, spread over the corpus, are read to train the tokenizer."""


class BpeTokenizer(TokenizerSpec):
    """Byte-level byte pair encoding: lossless for any text (Sennrich et al. 2016; Radford et al. 2019)."""

    kind: Literal["bpe"] = "bpe"
    vocab_size: Annotated[int, Field(ge=300)] = 4096
    """Entries, special tokens included."""


class WordPieceTokenizer(TokenizerSpec):
    """WordPiece with ## continuations (Devlin et al. 2019)."""

    kind: Literal["wordpiece"]
    vocab_size: Annotated[int, Field(ge=100)] = 8192
    """Entries, special tokens included."""
    lowercase: bool = False
    """Lower-case the text and strip accents first (BERT uncased)."""


class CharTokenizer(TokenizerSpec):
    """One token for each character that the training text has."""

    kind: Literal["char"]


class WordTokenizer(TokenizerSpec):
    """One token for each frequent word or punctuation mark; the rest is [UNK]."""

    kind: Literal["word"]
    vocab_size: Annotated[int, Field(ge=10)] = 16384
    """Entries, special tokens included."""
    lowercase: bool = False
    """Lower-case the text first."""


class TokenizerFile(Spec):
    """A tokenizer that exists already."""

    kind: Literal["file"]
    path: str
    """A tokenizer.json written by lmtool, or a folder or run that holds one."""


Tokenizer = Annotated[
    BpeTokenizer | WordPieceTokenizer | CharTokenizer | WordTokenizer | TokenizerFile,
    Field(discriminator="kind"),
]


class Data(Spec):
    """The text to train on."""

    train: Strings = ()
    """Files, folders, globs, or `hf:NAME` for a Hugging Face dataset; .txt, .jsonl, .csv, .parquet, each also .gz."""
    valid: Strings = ()
    """Validation text; when empty, it is split off the training text."""
    column: str = "text"
    """Column of .jsonl, .csv and .parquet files that holds the text."""
    documents: Literal["auto", "whole", "blank-line", "line"] = "auto"
    """How a .txt file divides into documents; auto splits at blank lines when every paragraph stands on one line."""
    split: Literal["auto", "document", "slice"] = "auto"
    """Hold out whole documents, or the final slice of one long text; auto slices when there is one document."""
    valid_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the documents, or of the characters, held out for validation."""
    isolate_documents: bool = False
    """Hide from each token the other documents packed into its row."""


# Training


class Training(Spec):
    """How long, in what portions, on what."""

    steps: PositiveInt
    """Optimizer steps in all."""
    batch_size: PositiveInt
    """Sequences in one optimizer step, over all devices."""
    micro_batch: PositiveInt | Literal["auto"] = "auto"
    """Sequences computed at once on one device; auto starts at the whole share and halves when memory runs out."""
    device: DeviceName = "auto"
    """Where to compute; auto takes the first of cuda, mps, cpu that is there."""
    precision: PrecisionName = "auto"
    """Type of matrix products; weights stay float32. auto takes bfloat16 where the processor multiplies it fast."""
    clip_norm: PositiveFloat | None = 1.0
    """Largest global norm of the gradient; null for no clipping (Pascanu et al. 2013)."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the model with torch.compile; auto does so for long runs on a GPU."""


class AdamMoments(Spec):
    """What Adam and AdamW share."""

    lr: PositiveFloat = 1e-3
    """Peak learning rate."""
    beta1: Fraction = 0.9
    """Decay of the first moment."""
    beta2: Fraction = 0.999
    """Decay of the second moment."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment."""


class Adam(AdamMoments):
    """Adam (Kingma and Ba 2015)."""

    kind: Literal["adam"]
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty on matrices, added to their gradient."""


class AdamW(AdamMoments):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled decay of matrices, times the learning rate."""


class Sgd(Spec):
    """Stochastic gradient descent, with momentum v = m v + lr g when `momentum` is above 0."""

    kind: Literal["sgd"]
    lr: PositiveFloat
    """Peak learning rate."""
    momentum: Fraction = 0.0
    """Share of the last update kept."""
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty on matrices."""


class Muon(Spec):
    """Muon for the matrices of the layers, AdamW for all else (Jordan et al. 2024)."""

    kind: Literal["muon"]
    lr: PositiveFloat = 0.02
    """Peak learning rate of the matrices."""
    momentum: Fraction = 0.95
    """Nesterov momentum of the matrices."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled decay of the matrices."""
    adamw: AdamW = AdamW()
    """For embeddings, heads, norms and biases."""


Optimizer = Annotated[Adam | AdamW | Sgd | Muon, Field(discriminator="kind")]


class Constant(Spec):
    """Linear warm-up, then the peak rate."""

    kind: Literal["constant"]
    warmup_steps: NonNegativeInt = 0
    """Steps from zero to the peak rate."""


class Linear(Spec):
    """Linear warm-up, then a straight line down (BERT)."""

    kind: Literal["linear"]
    warmup_steps: NonNegativeInt = 0
    """Steps from zero to the peak rate."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Rate at the last step, as a share of the peak."""


class Cosine(Spec):
    """Linear warm-up, then half a cosine down (Loshchilov and Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: NonNegativeInt = 0
    """Steps from zero to the peak rate."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Rate at the last step, as a share of the peak."""


class InverseSquareRoot(Spec):
    """lr d_model^-0.5 min(t^-0.5, t warmup^-1.5) (Vaswani et al. 2017, where lr is 1)."""

    kind: Literal["inverse-square-root"]
    warmup_steps: PositiveInt = 4000
    """Steps from zero to the highest rate."""


Schedule = Annotated[Constant | Linear | Cosine | InverseSquareRoot, Field(discriminator="kind")]


class Evaluation(Spec):
    """Validation while training."""

    every: PositiveInt = 250
    """Steps between validations; the last step always validates."""
    tokens: PositiveInt | None = 100_000
    """Validation tokens scored each time, the same ones every time; null for all."""
    patience: PositiveInt | None = None
    """Stop after this many validations without a new best; null never stops early."""
    prompts: Strings = ()
    """Texts to continue at each validation, to see what the model writes."""
    sample_tokens: PositiveInt = 64
    """Length of those samples."""

    @model_validator(mode="after")
    def _prompts_are_text(self) -> Self:
        try:
            "".join(self.prompts).encode()
        except UnicodeEncodeError as error:
            raise ValueError("prompts hold a character that UTF-8 cannot write") from error
        return self


class Checkpoint(Spec):
    """What is kept while training."""

    every: PositiveInt = 250
    """Steps between checkpoints; the last step always saves one."""
    keep_last: PositiveInt = 2
    """How many of the newest checkpoints stay; the best one stays besides."""


class Recipe(Spec):
    """Everything that decides a training run."""

    description: str = ""
    """One line for `lmtool recipes ls`."""
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 1
    """Seed of weights, order, dropout and samples."""
    model: Model
    """The network."""
    objective: Objective = Causal()
    """What it learns to predict."""
    tokenizer: Tokenizer = BpeTokenizer()
    """How text becomes tokens."""
    data: Data = Data()
    """The text."""
    training: Training
    """Length, batch and device."""
    optimizer: Optimizer = AdamW()
    """How weights follow gradients."""
    schedule: Schedule = Cosine()
    """How the learning rate changes over the steps."""
    evaluation: Evaluation = Evaluation()
    """Validation while training."""
    checkpoint: Checkpoint = Checkpoint()
    """What is kept while training."""
