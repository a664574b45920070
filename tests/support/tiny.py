"""Small models whose every weight matters, and their weights in the form of tests/reference/transformer.py."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import yaml
from _pytest.mark.structures import ParameterSet
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model import DecodeState, LanguageModel, NGramModel, build
from lmtool.model.layers.ngrams import find_ngram_embeddings
from lmtool.model.transformer import TransformerPrefixLm
from lmtool.recipe.spec.position import (
    AlibiPosition,
    DisentangledPosition,
    LearnedPosition,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
)
from lmtool.recipe.spec.recipe import Model
from lmtool.recipe.spec.transformer import Transformer, WindowPattern
from tests.reference import attention as plain_attention
from tests.reference import transformer as reference
from tests.support.cases import nightly_but

VOCAB = 13

NAMED: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load("""
decoders:
  gpt2: {activation: gelu-tanh}
  gpt1: {activation: gelu-tanh, norm: {kind: layer, place: post}}
  vaswani: &vaswani
    activation: relu
    norm: {kind: layer, place: post, eps: 1.0e-3}
    position: {kind: sinusoidal}
    scale_embedding: true
  modern:
    {activation: swiglu, norm: {kind: rms, place: pre, eps: 1.0e-6}, position: {kind: none}, bias: false,
     tie_embeddings: false, n_kv_heads: 2, d_ff: 12}
  multi-query: {n_kv_heads: 1, head_bias: true, position: {kind: learned, size: 40}}
transformers:
  alibi: {position: {kind: alibi}}
  rotary: {position: {kind: rotary, theta: 50.0}, n_kv_heads: 2}
  relative: {position: {kind: relative, buckets: 5, max_distance: 9}}
  disentangled: {position: {kind: disentangled, max_distance: 3}, qk_norm: head}
  window: {pattern: {kind: window, size: 3}}
  global window: {pattern: {kind: window, size: 2, dilation: 2, global_tokens: 2}, position: {kind: sinusoidal}}
  full layers among windows:
    pattern: {kind: window, size: 2, full_layers: [1]}
    position: &window-theta {kind: rotary, theta: 200.0, window_theta: 20.0}
    qk_norm: head
    head_width: 6
    n_kv_heads: 2
  bare: {position: {kind: none}, norm: {kind: none}, residual: false, d_ff: 0, n_heads: 1}
  no residual: {residual: false, norm: {place: post}, position: {kind: sinusoidal}}
  from the layer: {residual_from: layer, norm: {place: post}, position: {kind: alibi}}
  from the layer, pre-norm: {residual_from: layer, position: {kind: rotary}}
  plain attention: {mixer: plain-attention, n_heads: 2, position: {kind: alibi}, score: dot}
  plain attention, rotary: {mixer: plain-attention, position: {kind: rotary}}
  plain attention, one head: {mixer: plain-attention, n_heads: 1, norm: {kind: none}}
  plain attention, bilinear: {mixer: plain-attention, score: bilinear, norm: {place: post}}
  shared layers: {share_layers: true, n_layers: 3, position: {kind: alibi}}
  primer: {activation: relu-squared, position: {kind: rotary}}
  x0: {x0: true, norm: {kind: rms, embedding: true}, position: {kind: rotary}}
  x0 of shared layers: {x0: true, share_layers: true, parallel: true}
  encoder with x0: {shape: encoder, x0: true, residual_from: layer, norm: {place: post}}
  encoder-decoder with x0: {shape: encoder-decoder, x0: true, embedding_width: 6, tie_embeddings: false}
  gated heads: {attention_gate: headwise, n_kv_heads: 2, position: {kind: rotary}}
  gated elements: {attention_gate: elementwise, value_width: 3, parallel: true}
  encoder-decoder with gated heads: {shape: encoder-decoder, attention_gate: headwise}
  smear: {smear: true, position: {kind: rotary}, norm: {kind: rms, embedding: true}}
  smear and n-grams: {smear: true, scale_embedding: true, ngram_embedding: {entries: 60}}
  neox: {position: {kind: rotary, share: 0.5}, parallel: true, tie_embeddings: false}
  gemma:
    {position: {kind: rotary}, head_width: 2, norm: {kind: rms, unit_offset: true}, activation: geglu,
     scale_embedding: true, bias: false, qkv_bias: true}
  stablelm:
    {position: {kind: rotary, share: 0.5}, norm: {bias: true}, activation: swiglu, bias: false, tie_embeddings: false}
  olmo2:
    {position: {kind: rotary, scaling: {kind: linear, factor: 2.5}}, norm: {kind: rms, place: output}, qk_norm: joint,
     n_kv_heads: 2, bias: false}
  llama3:
    position: {kind: rotary, scaling: {kind: llama3, factor: 4.0, original_context: 40, low_frequency: 0.5}}
    activation: silu
  yarn:
    position:
      {kind: rotary, theta: 100.0, scaling: {kind: yarn, factor: 4.0, original_context: 40, fast_turns: 5.0}}
    head_width: 8
  n-grams: {ngram_embedding: {entries: 60, longest: 4}, position: {kind: rotary}}
  wide values: {head_width: 2, value_width: 6, n_kv_heads: 2, position: {kind: rotary}}
  bilinear: {score: bilinear}
  reduced-rank: {score: reduced-rank, rank: 2}
  additive: {score: additive, position: {kind: relative, buckets: 4, max_distance: 6}}
  wide additive: {score: additive, score_width: 7}
  bert: &bert
    shape: encoder
    norm: {kind: layer, place: post, eps: 1.0e-12, embedding: true}
    n_segments: 2
    head_transform: true
    head_bias: true
    next_sentence_head: true
  roberta: {<<: *bert, n_segments: 0, next_sentence_head: false, position: {kind: learned, size: 30, offset: 2}}
  electra: {<<: *bert, embedding_width: 6, next_sentence_head: false}
  albert: {<<: *bert, embedding_width: 6, share_layers: true}
  narrow embeddings: {embedding_width: 10, tie_embeddings: false, position: {kind: sinusoidal}}
  modernbert:
    {shape: encoder, pattern: {kind: window, size: 3, full_layers: [0]}, position: *window-theta,
     norm: {embedding: true, first: false}, activation: geglu-exact, head_transform: true, head_bias: true, bias: false}
  longformer:
    shape: encoder
    norm: {place: post, embedding: true}
    pattern: {kind: window, size: 2, global_tokens: 1}
    position: {kind: learned, size: 40}
  pre-norm encoder: {shape: encoder, position: {kind: rotary}, activation: swiglu, bias: false}
  encoder from the layer: {shape: encoder, residual_from: layer, norm: {place: output}}
  deberta: {<<: *bert, position: {kind: disentangled, max_distance: 2}, next_sentence_head: false}
  encoder with alibi: {shape: encoder, position: {kind: alibi}, n_heads: 2}
  "2017": &2017 {<<: *vaswani, shape: encoder-decoder}
  marian: {<<: *2017, activation: silu, position: {kind: sinusoidal, layout: halves}, head_bias: true}
  bart:
    {shape: encoder-decoder, norm: {place: post, embedding: true}, position: {kind: learned, size: 30, offset: 2},
     separate_inputs: true, head_bias: true}
  2017 of attention alone: {<<: *2017, d_ff: 0, norm: {kind: none}}
  2017 of shared layers: {<<: *2017, share_layers: true}
  2017 pre-norm: {<<: *2017, norm: {place: pre}, n_kv_heads: 2, tie_embeddings: false}
  t5: &t5
    shape: encoder-decoder
    activation: relu
    position: {kind: relative, buckets: 6, max_distance: 12}
    score: dot
    norm: {kind: rms, eps: 1.0e-6}
    bias: false
    scale_head: true
  t5 1.1: {<<: *t5, activation: geglu, tie_embeddings: false, scale_head: false, d_ff: 10, head_width: 6}
  encoder-decoder with rotary windows:
    {shape: encoder-decoder, position: {kind: rotary}, pattern: {kind: window, size: 3}, norm: {embedding: true}}
  encoder-decoder, narrow values: {shape: encoder-decoder, value_width: 3}
  encoder-decoder, additive: {shape: encoder-decoder, score: additive}
  encoder-decoder, plain attention: {shape: encoder-decoder, mixer: plain-attention}
  disentangled encoder-decoder:
    {shape: encoder-decoder, position: {kind: disentangled, max_distance: 4}, mixer: plain-attention}
  prefix: {shape: prefix}
  prefix, post-norm: {shape: prefix, norm: {kind: rms, place: post}, n_kv_heads: 2}
  prefix with relative positions: {shape: prefix, position: {kind: relative, buckets: 8}}
  prefix with windows: {shape: prefix, position: {kind: alibi}, pattern: {kind: window, size: 4, global_tokens: 1}}
others:
  elman: {<<: &recurrent {kind: recurrent, n_layers: 2, d_model: 8, context: 24}, cell: rnn}
  elman of sigmoids: {<<: *recurrent, cell: rnn, nonlinearity: sigmoid}
  gru: {<<: *recurrent, cell: gru, tie_embeddings: false}
  lstm: *recurrent
  elman with a memory: {<<: *recurrent, cell: rnn, attention: {score: dot}}
  gru with a memory: {<<: *recurrent, cell: gru, attention: {score: additive}, tie_embeddings: false}
  lstm with a memory: {<<: *recurrent, attention: {score: bilinear}}
  gru with a mean of memories: {<<: *recurrent, cell: gru, attention: {select: mean}}
  lstm with a mean of all states: {<<: *recurrent, attention: {select: mean, present: true}}
  elman with a choice of all states:
    {<<: *recurrent, cell: rnn, attention: {select: hard, score: additive, score_width: 3, present: true}}
  lstm encoder-decoder: &seq2seq {<<: *recurrent, shape: encoder-decoder}
  elman encoder-decoder: {<<: *seq2seq, cell: rnn}
  gru encoder-decoder: {<<: *seq2seq, cell: gru, bidirectional_encoder: true}
  elman luong: {<<: *seq2seq, cell: rnn, attention: {score: additive}, tie_embeddings: false}
  gru luong: {<<: *seq2seq, cell: gru, attention: {score: dot}, bidirectional_encoder: true}
  luong: {<<: *seq2seq, attention: {score: bilinear}}
  elman bahdanau: {<<: *seq2seq, cell: rnn, attention: {score: additive, feed: input}}
  bahdanau: {<<: *seq2seq, cell: gru, attention: {score: additive, feed: input}, bidirectional_encoder: true}
  lstm bahdanau: {<<: *seq2seq, attention: {score: reduced-rank, rank: 3, feed: input}}
  elmo: {<<: *recurrent, shape: bidirectional}
  elmo of grus: {<<: *recurrent, shape: bidirectional, cell: gru}
  3-gram: {kind: ngram, order: 3}
  1-gram: {kind: ngram, order: 1}
  skip-gram: {kind: skipgram, d_model: 6}
  glove: {kind: glove, d_model: 6}
""")
DECODERS = NAMED["decoders"]
"""One Transformer decoder of each kind of part, by name."""
TRANSFORMERS = DECODERS | NAMED["transformers"]
"""One Transformer of each kind of part and shape, by name."""
FAMILIES: dict[str, dict[str, Any]] = {
    **TRANSFORMERS,
    **NAMED["others"],
}
"""One model of each family, by name."""
VASWANI, T5, BERT = (TRANSFORMERS[name] for name in ("2017", "t5", "bert"))
RECURRENT, SEQ2SEQ = FAMILIES["lstm"], FAMILIES["lstm encoder-decoder"]
BOTH_SIDES = [name for name, of in FAMILIES.items() if of.get("shape") == "encoder"]
ONE_SIDE = [name for name in FAMILIES if name not in BOTH_SIDES]
"""Causal families."""
CACHED = [name for name in ONE_SIDE if name not in ("skip-gram", "glove")]
"""Families with a decoding state; models of word vectors have no next token."""


def spec(**changes: Any) -> Transformer:
    """Two layers, 4 heads of width 4, context 24."""
    return Transformer.model_validate(
        {"kind": "transformer", "n_layers": 2, "d_model": 16, "n_heads": 4, "context": 24} | changes
    )


def model(seed: int = 0, dtype: torch.dtype = torch.float64, vocab_size: int = VOCAB, **changes: Any) -> LanguageModel:
    """A model in evaluation mode with large random weights, biases and gains, so that errors are visible.

    An n-gram model has counted a random text, as have embeddings of n-grams.
    """
    built = build(any_spec(**changes), vocab_size).to(dtype).eval()
    for ngrams in find_ngram_embeddings(built):
        ngrams.select_ngrams_(tokens(400, seed=seed, vocab_size=vocab_size))
    if isinstance(built, NGramModel):
        text = tokens(1, 400, seed=seed, vocab_size=vocab_size)
        built.partial_fit_([Batch(text[:, :-1], text[:, 1:])], 400)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in built.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.4 * drawn if parameter.ndim > 1 else 0.5 + drawn)
    return built


def any_spec(**changes: Any) -> Model:
    """A spec of the kind in the changes, or else a Transformer from `spec`."""
    if "kind" not in changes:
        return spec(**changes)
    named: Model = TypeAdapter(Model).validate_python(changes)
    return named


def tokens(*shape: int, seed: int = 0, vocab_size: int = VOCAB) -> Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def sources(n_rows: int, seed: int = 0) -> list[list[int]]:
    """A text of 1 to 5 tokens for each row."""
    return [tokens(1 + (3 * row + seed) % 5, seed=1000 + 10 * seed + row).tolist() for row in range(n_rows)]


def padded(texts: Sequence[Sequence[int]], longest: int = 0) -> tuple[Tensor, Tensor | None]:
    """Right-padded rows, and the padding mask unless there is no padding."""
    longest = max(longest, *map(len, texts))
    rows = torch.tensor([[*text, *[7] * (longest - len(text))] for text in texts], dtype=torch.int64)
    keep = torch.arange(longest) < torch.tensor([[len(text)] for text in texts])
    return rows, None if keep.all() else keep


def read(built: LanguageModel, tokens_BT: Tensor, texts: Sequence[Sequence[int]] | None = None, **more: Any) -> Tensor:
    """Hidden states (B, T, D) of the tokens in one forward pass; models with a source get `texts` as source.

    more: other fields of the batch.
    """
    device = device_of(built)
    if built.reads != "source":
        hidden: Tensor = built(Batch(tokens_BT, **more).to(device)).hidden_BTD
        return hidden
    texts = sources(len(tokens_BT)) if texts is None else texts
    source_BS, keep_BS = padded(texts)
    if not isinstance(built, TransformerPrefixLm):
        hidden = built(Batch(tokens_BT, source_BS=source_BS, source_keep_BS=keep_BS, **more).to(device)).hidden_BTD
        return hidden
    # a row is the prefix, the tokens, and padding
    T = tokens_BT.shape[1]
    keep_BT = more.pop("keep_BT", torch.ones_like(tokens_BT, dtype=torch.bool))
    rows = [[*text, *own] for text, own in zip(texts, tokens_BT.tolist(), strict=True)]
    kept = [[*[True] * len(text), *own] for text, own in zip(texts, keep_BT.tolist(), strict=True)]
    rows_BT, text_BT = padded(rows)
    if text_BT is not None or not keep_BT.all():
        more["keep_BT"] = padded(kept, rows_BT.shape[1])[0] == 1
    prefix_B = torch.tensor([len(text) for text in texts])
    hidden = built(Batch(rows_BT, prefix_B=prefix_B, **more).to(device)).hidden_BTD
    return torch.stack([row[n : n + T] for row, n in zip(hidden, prefix_B.tolist(), strict=True)])


def start(built: LanguageModel, n_rows: int, texts: Sequence[Sequence[int]] | None = None) -> DecodeState:
    """The initial state of this many rows, after their sources."""
    source_BS, keep_BS = padded(sources(n_rows) if texts is None else texts)
    batch = Batch(tokens(n_rows, 1), source_BS=source_BS, source_keep_BS=keep_BS)
    return built.initial_state(batch.to(device_of(built)))


def device_of(built: LanguageModel) -> torch.device:
    device: torch.device = next(iter(built.state_dict().values())).device
    return device


def as_reference(built: LanguageModel, of: Transformer) -> reference.Model:
    """The weights of `built` copied into the plain model."""
    return _Weights(built, of).model()


class _Weights:
    """Weights of a Transformer by the names of its parameters."""

    def __init__(self, built: LanguageModel, of: Transformer) -> None:
        self.named: dict[str, NDArray[np.float64]] = {name: array(p) for name, p in built.named_parameters()}
        self.built, self.of = built, of
        self.head_width = of.head_width or of.d_model // of.n_heads
        self.n_kv_heads = of.n_kv_heads or of.n_heads

    def model(self, inputs: str = "inputs") -> reference.Model:
        """inputs: the name of what embeds the tokens."""
        of, stacks = self.of, self.of.shape == "encoder-decoder"
        embedding = self.named["inputs.tokens.weight"]
        return reference.Model(
            embedding=embedding,
            tower=self.tower("decoder", across=True) if stacks else self.tower("stack"),
            encoder=self.tower("encoder") if stacks else None,
            head=reference.Head(
                matrix=embedding if of.tie_embeddings else self.named["head.own"],
                bias=self.named.get("head.bias"),
                scale=of.d_model**-0.5 if of.scale_head else 1.0,
                dense=self.affine("head.dense") if of.head_transform else None,
                norm=self.norm("head.norm") if of.head_transform else None,
                activation=of.activation,
            ),
            positions=self.positions(inputs),
            sinusoidal=isinstance(of.position, SinusoidalPosition),
            halves=isinstance(of.position, SinusoidalPosition) and of.position.layout == "halves",
            segments=self.named.get(f"{inputs}.segments.weight"),
            embedding_norm=self.norm(f"{inputs}.norm") if of.norm.embedding else None,
            project=self.affine(f"{inputs}.project") if of.embedding_width else None,
            target=self.model("target_inputs") if of.separate_inputs and inputs == "inputs" else None,
            embedding_scale=(of.embedding_width or of.d_model) ** 0.5 if of.scale_embedding else 1.0,
            ngrams=self.ngrams(),
            smear=(self.affine("smear.gate"), float(self.named["smear.scale"][0])) if of.smear else None,
            pooler=self.affine("pooler") if of.next_sentence_head else None,
            next_sentence=self.affine("next_sentence") if of.next_sentence_head else None,
        )

    def ngrams(self) -> dict[tuple[int, ...], NDArray[np.float64]]:
        """The vector of each n-gram, whose tokens are the digits of its key, each one more than the token."""
        found = {}
        for part in find_ngram_embeddings(self.built):
            for row, key in enumerate(part.keys_K.tolist()):
                digits: list[int] = []
                base = self.built.vocab_size + 1
                while key and key < base**part.max_n:
                    key, digit = divmod(key, base)
                    digits.insert(0, digit - 1)
                if digits:
                    found[tuple(digits)] = self.named["ngrams.weight"][row]
        return found

    def positions(self, inputs: str) -> NDArray[np.float64] | None:
        if isinstance(self.of.position, LearnedPosition):
            return self.named[f"{inputs}.position.table.weight"][self.of.position.offset :]
        return self.named.get(f"{inputs}.position.table.weight")

    def affine(self, name: str, start: int = 0, stop: int | None = None) -> reference.Affine:
        bias = self.named.get(f"{name}.bias")
        return reference.Affine(self.named[f"{name}.weight"][start:stop].T, None if bias is None else bias[start:stop])

    def norm(self, name: str) -> reference.Norm:
        if f"{name}.weight" not in self.named:
            return reference.Norm("none", np.ones(1), None, 0.0)
        gain, bias = self.named[f"{name}.weight"], self.named.get(f"{name}.bias")
        return reference.Norm(self.of.norm.kind, gain + self.of.norm.unit_offset, bias, self.of.norm.eps)

    def tower(self, name: str, across: bool = False) -> reference.Tower:
        of = self.of
        layers = []
        per_layer = 1 + across + (of.d_ff != 0)
        for layer in range(of.n_layers):
            first = 0 if of.share_layers else layer * per_layer
            parts = [f"{name}.sublayers.{first + i}" for i in range(per_layer)]
            layers.append(
                reference.Layer(
                    attention=self.attention(parts[0], "qkv"),
                    across=self.attention(parts[1], "kv") if across else None,
                    network=None if of.d_ff == 0 else self.network(parts[-1]),
                    scales=self.scales(parts[0]),
                )
            )
        return reference.Tower(
            layers=layers,
            n_heads=of.n_heads,
            n_kv_heads=self.n_kv_heads,
            activation=of.activation,
            place=of.norm.place,
            scale=self.head_width**-0.5 if of.score == "scaled-dot" else 1.0,
            final_norm=None if of.norm.place == "post" else self.norm(f"{name}.norm"),
            addend=lambda head, query, key: self.addend(name, head, key - query),
            turn=partial(self.turn, window=isinstance(of.pattern, WindowPattern)),
            parallel=of.parallel,
            residual=of.residual,
            from_layer=of.residual_from == "layer",
            window=self.window,
            everywhere=of.pattern.full_layers if isinstance(of.pattern, WindowPattern) else (),
            turn_everywhere=partial(self.turn, window=False),
        )

    def attention(self, name: str, joined: str) -> reference.Attention:
        """Queries come before keys and values in one matrix, or have their own (cross-attention), or there are none."""
        if joined == "qkv" and self.of.mixer == "plain-attention":
            same, norm = reference.Affine(np.eye(self.of.d_model)), self.norm(f"{name}.norm")
            return reference.Attention(same, same, same, same, norm, score=self.score(name))
        width, kv_width = self.head_width * self.of.n_heads, self.head_width * self.n_kv_heads
        matrix, first = f"{name}.mixer.{joined}", width if joined == "qkv" else 0
        of_itself = joined == "qkv" and self.of.qk_norm != "none"
        return reference.Attention(
            query=self.affine(matrix, 0, width) if joined == "qkv" else self.affine(f"{name}.mixer.q"),
            key=self.affine(matrix, first, first + kv_width),
            value=self.affine(matrix, first + kv_width),
            out=self.affine(f"{name}.mixer.out"),
            norm=self.norm(f"{name}.norm"),
            gate=self.affine(f"{name}.mixer.gate") if f"{name}.mixer.gate.weight" in self.named else None,
            norms=(self.rms(f"{name}.mixer.q_norm"), self.rms(f"{name}.mixer.k_norm")) if of_itself else None,
            score=self.score(name),
        )

    def score(self, name: str) -> Any:
        own = [weights for key, weights in self.named.items() if key.startswith(f"{name}.mixer.score.")]
        if not own:
            return None
        if not isinstance(self.of.position, DisentangledPosition):
            return lambda head, q, k, i, j: plain_attention.score(self.of.score, q, k, [part[head] for part in own])
        table = self.named[f"{name.partition('.')[0]}.position.table.weight"]
        keys, queries = (table @ self.named[f"{name}.mixer.score.{part}_NDH"] for part in ("key", "query"))
        return lambda head, q, k, i, j: plain_attention.disentangled(q, k, i, j, keys[head], queries[head])

    def scales(self, name: str) -> tuple[float, float]:
        own, of_embeddings = (self.named.get(f"{name}.{part}", [n]) for part, n in (("x_scale", 1), ("x0_scale", 0)))
        return float(own[0]), float(of_embeddings[0])

    def rms(self, name: str) -> reference.Norm:
        return reference.Norm("rms", self.named[f"{name}.weight"], None, self.of.norm.eps)

    def network(self, name: str) -> reference.Network:
        d_ff, gated = self.of.d_ff or 4 * self.of.d_model, self.of.activation in ("swiglu", "geglu", "geglu-exact")
        up = f"{name}.mixer.up"
        return reference.Network(
            gate=self.affine(up, 0, d_ff) if gated else None,
            up=self.affine(up, d_ff if gated else 0),
            down=self.affine(f"{name}.mixer.out"),
            norm=self.norm(f"{name}.norm"),
        )

    def addend(self, stack: str, head: int, away: int) -> float:
        match self.of.position:
            case AlibiPosition():
                return -plain_attention.alibi_slope(head, self.of.n_heads) * abs(away)
            case RelativePosition(buckets=buckets, max_distance=farthest):
                both_sides = stack == "encoder" or self.of.shape in ("encoder", "prefix")
                bucket = plain_attention.relative_bucket(away, buckets, farthest, both_sides)
                return float(self.named[f"{stack}.position.table.weight"][bucket, head])
        return 0.0

    def turn(self, vector: NDArray[np.float64], position: int, window: bool) -> NDArray[np.float64]:
        of = self.of.position
        if not isinstance(of, RotaryPosition):
            return vector
        n = int(len(vector) * of.share)
        theta, scaling = of.theta, of.scaling.model_dump()
        if window and of.window_theta is not None:
            theta, scaling = of.window_theta, {}
        frequencies, factor = plain_attention.scaled_frequencies(
            [theta ** (-2 * i / n) for i in range(n // 2)], scaling
        )
        turned = factor * plain_attention.rotated(vector[:n], position, frequencies)
        return np.concatenate([turned, vector[n:]])

    def window(self, query: int, key: int) -> bool:
        pattern = self.of.pattern
        if not isinstance(pattern, WindowPattern):
            return True
        return plain_attention.in_window(query, key, pattern.size, pattern.dilation, pattern.global_tokens)


def array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().double().numpy()


KINDS = (
    *("gpt2", "modern", "alibi", "relative", "disentangled", "full layers among windows", "n-grams"),
    *("plain attention, bilinear", "bert", "longformer", "2017", "t5", "prefix with windows", "lstm"),
    *("olmo2", "x0", "gated heads", "smear", "gru with a memory", "luong", "bahdanau", "elmo", "3-gram", "skip-gram"),
)
"""Families that differ in kind: each shape, position, mixer, mask and gate once. The others combine their parts."""


def of_each_kind(families: Iterable[str]) -> list[str]:
    """Those of `KINDS`, and those that tests/test_extending.py adds."""
    return [name for name in families if name in KINDS or name.startswith("example")]


def mark_all_but_kinds_nightly(families: Iterable[str]) -> list[ParameterSet]:
    """Families as cases of a test, of which those of `KINDS` run always, and the others by night."""
    names = list(families)
    return nightly_but(names, *of_each_kind(names))
