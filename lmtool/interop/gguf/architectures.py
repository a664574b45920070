"""The architectures of GGUF files: names, order and shapes of their tensors, there and in Transformers.

llama.cpp rotates neighbouring pairs in architecture `llama` and halves in all others, as Transformers does; so the rows
of query and key are interleaved in `llama`. What a file leaves out, such as the activation, is fixed in llama.cpp.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from lmtool.interop.families.layouts import SAME, ByHead, Layout, Same, Transposed

POSITIONS = "position_embd.weight"


@dataclass(frozen=True)
class Interleaved(Same):
    """Rows of query or key whose rotary pairs are neighbours, in a file; in Transformers, the halves of a head."""

    n_heads: int

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        one = super().join(theirs)
        return one.reshape(self.n_heads, 2, -1, *one.shape[1:]).transpose(1, 2).reshape(one.shape)

    def split(self, ours: Tensor) -> list[Tensor]:
        return [ours.reshape(self.n_heads, -1, 2, *ours.shape[1:]).transpose(1, 2).reshape(ours.shape)]


class PlusOne(Same):
    """A weight that Transformers adds one to (Gemma's norms)."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return super().join(theirs) + 1

    def split(self, ours: Tensor) -> list[Tensor]:
        return [ours - 1]


@dataclass(frozen=True)
class TensorPair:
    """A tensor by its names in a file and in Transformers. `layout` joins theirs, Transformers', into the file's.

    shape: in the file, outermost dimension first.
    """

    stored: str
    published: str
    shape: tuple[int, ...]
    layout: Layout = SAME

    @property
    def published_shape(self) -> tuple[int, ...]:
        return self.shape[::-1] if isinstance(self.layout, Transposed) else self.shape


class TensorRow(NamedTuple):
    """A kind of tensor: in a file, in Transformers, and a letter of `Sizes.widths` for each dimension in the file."""

    stored: str
    published: str
    shape: str


@dataclass(frozen=True)
class Sizes:
    """Hyperparameters that the shapes follow from. head: width of one; rotary: how much of it is rotated."""

    layers: int
    context: int
    d: int
    ff: int
    heads: int
    kv_heads: int
    head: int
    rotary: int
    vocab: int

    @property
    def widths(self) -> dict[str, int]:
        query, key = self.heads * self.head, self.kv_heads * self.head
        rest = {"H": self.head, "T": 3 * self.d, "V": self.vocab, "C": self.context}
        return {"D": self.d, "F": self.ff, "Q": query, "K": key, **rest}


SIZE_KEYS = {
    "layers": "block_count",
    "context": "context_length",
    "d": "embedding_length",
    "ff": "feed_forward_length",
    "heads": "attention.head_count",
}
SIZE_NAMES = {
    "layers": "num_hidden_layers",
    "context": "max_position_embeddings",
    "d": "hidden_size",
    "ff": "intermediate_size",
    "heads": "num_attention_heads",
}


def _same_layout(stored: str, sizes: Sizes) -> Layout:
    return SAME


_HEAD = TensorRow("output.weight", "lm_head.weight", "VD")


@dataclass(frozen=True)
class Architecture:
    """How one architecture is written down in a file and in Transformers.

    model_types: of Transformers that are the same; a file becomes the first.
    implied: keys of a config.json that a file has not, with the values that llama.cpp computes with.
    body: where the layers are in Transformers.
    options: tensors that a model has when this key of its config.json is true.
    has: keys of its config.json that not all have.
    tied: what a config.json without `tie_word_embeddings` means.
    """

    name: str
    model_types: tuple[str, ...]
    implied: Mapping[str, tuple[object, ...]]
    outer: tuple[TensorRow, ...]
    layer: tuple[TensorRow, ...]
    body: str = "model.layers."
    head: TensorRow = _HEAD
    layout: Callable[[str, Sizes], Layout] = _same_layout
    epsilon: tuple[str, str] = ("attention.layer_norm_rms_epsilon", "rms_norm_eps")
    names: Mapping[str, str] = field(default_factory=lambda: SIZE_NAMES)
    options: Mapping[str, tuple[TensorRow, ...]] = field(default_factory=dict)
    has: frozenset[str] = frozenset({"num_key_value_heads"})
    rope: Literal["none", "full", "partial"] = "full"
    tied: bool = False

    def pairs(self, sizes: Sizes, *, tied: bool, options: Sequence[str]) -> list[TensorPair]:
        """All tensors of a model."""
        widths = sizes.widths

        def pair(row: TensorRow, stored: str = "", published: str = "") -> TensorPair:
            shape = tuple(widths[letter] for letter in row.shape)
            return TensorPair(stored + row.stored, published + row.published, shape, self.layout(row.stored, sizes))

        rows = [*self.layer, *(row for option in options for row in self.options[option])]
        inner = [pair(row, f"blk.{n}.", f"{self.body}{n}.") for n in range(sizes.layers) for row in rows]
        return [*map(pair, self.outer), *([] if tied else [pair(self.head)]), *inner]


_OUTER = (
    TensorRow("token_embd.weight", "model.embed_tokens.weight", "VD"),
    TensorRow("output_norm.weight", "model.norm.weight", "D"),
)
_GATED = (
    TensorRow("attn_q.weight", "self_attn.q_proj.weight", "QD"),
    TensorRow("attn_k.weight", "self_attn.k_proj.weight", "KD"),
    TensorRow("attn_v.weight", "self_attn.v_proj.weight", "KD"),
    TensorRow("attn_output.weight", "self_attn.o_proj.weight", "DQ"),
    TensorRow("ffn_gate.weight", "mlp.gate_proj.weight", "FD"),
    TensorRow("ffn_up.weight", "mlp.up_proj.weight", "FD"),
    TensorRow("ffn_down.weight", "mlp.down_proj.weight", "DF"),
)
_PRE_NORMS = (
    TensorRow("attn_norm.weight", "input_layernorm.weight", "D"),
    TensorRow("ffn_norm.weight", "post_attention_layernorm.weight", "D"),
)
_QKV_BIAS = (
    TensorRow("attn_q.bias", "self_attn.q_proj.bias", "Q"),
    TensorRow("attn_k.bias", "self_attn.k_proj.bias", "K"),
    TensorRow("attn_v.bias", "self_attn.v_proj.bias", "K"),
)


def _llama_layout(stored: str, sizes: Sizes) -> Layout:
    match stored.split(".")[0]:
        case "attn_q":
            return Interleaved(sizes.heads)
        case "attn_k":
            return Interleaved(sizes.kv_heads)
    return SAME


def _gemma_layout(stored: str, sizes: Sizes) -> Layout:
    return PlusOne() if "norm" in stored else SAME


def _gpt2_layout(stored: str, sizes: Sizes) -> Layout:
    matrices = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
    return Transposed() if stored in matrices else SAME


def _neox_layout(stored: str, sizes: Sizes) -> Layout:
    return ByHead(sizes.heads) if stored.startswith("attn_qkv") else SAME


_SILU = {"hidden_act": ("silu",)}
_UNBIASED = {"attention_bias": (False,)}

ARCHITECTURES = (
    Architecture(
        name="llama",
        model_types=("llama", "mistral"),
        implied={**_SILU, "pretraining_tp": (1,)},
        outer=_OUTER,
        layer=(*_PRE_NORMS, *_GATED),
        layout=_llama_layout,
        options={
            "attention_bias": (*_QKV_BIAS, TensorRow("attn_output.bias", "self_attn.o_proj.bias", "D")),
            "mlp_bias": (
                TensorRow("ffn_gate.bias", "mlp.gate_proj.bias", "F"),
                TensorRow("ffn_up.bias", "mlp.up_proj.bias", "F"),
                TensorRow("ffn_down.bias", "mlp.down_proj.bias", "D"),
            ),
        },
        has=frozenset({"num_key_value_heads", "head_dim"}),
    ),
    Architecture(
        name="qwen2",
        model_types=("qwen2",),
        implied=_SILU,
        outer=_OUTER,
        layer=(*_PRE_NORMS, *_GATED, *_QKV_BIAS),
    ),
    Architecture(
        name="qwen3",
        model_types=("qwen3",),
        implied={**_SILU, **_UNBIASED},
        outer=_OUTER,
        layer=(
            *_PRE_NORMS,
            *_GATED,
            TensorRow("attn_q_norm.weight", "self_attn.q_norm.weight", "H"),
            TensorRow("attn_k_norm.weight", "self_attn.k_norm.weight", "H"),
        ),
        has=frozenset({"num_key_value_heads", "head_dim"}),
    ),
    Architecture(
        name="gemma",
        model_types=("gemma",),
        implied={"hidden_act": ("gelu_pytorch_tanh",), **_UNBIASED},
        outer=_OUTER,
        layer=(*_PRE_NORMS, *_GATED),
        layout=_gemma_layout,
        has=frozenset({"num_key_value_heads", "head_dim"}),
        tied=True,
    ),
    Architecture(
        name="olmo2",
        model_types=("olmo2",),
        implied={**_SILU, **_UNBIASED},
        outer=_OUTER,
        layer=(
            *_GATED,
            TensorRow("attn_q_norm.weight", "self_attn.q_norm.weight", "Q"),
            TensorRow("attn_k_norm.weight", "self_attn.k_norm.weight", "K"),
            TensorRow("post_attention_norm.weight", "post_attention_layernorm.weight", "D"),
            TensorRow("post_ffw_norm.weight", "post_feedforward_layernorm.weight", "D"),
        ),
    ),
    Architecture(
        name="gpt2",
        model_types=("gpt2",),
        implied={
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        outer=(
            TensorRow("token_embd.weight", "transformer.wte.weight", "VD"),
            TensorRow(POSITIONS, "transformer.wpe.weight", "CD"),
            TensorRow("output_norm.weight", "transformer.ln_f.weight", "D"),
            TensorRow("output_norm.bias", "transformer.ln_f.bias", "D"),
        ),
        layer=(
            TensorRow("attn_norm.weight", "ln_1.weight", "D"),
            TensorRow("attn_norm.bias", "ln_1.bias", "D"),
            TensorRow("attn_qkv.weight", "attn.c_attn.weight", "TD"),
            TensorRow("attn_qkv.bias", "attn.c_attn.bias", "T"),
            TensorRow("attn_output.weight", "attn.c_proj.weight", "DD"),
            TensorRow("attn_output.bias", "attn.c_proj.bias", "D"),
            TensorRow("ffn_norm.weight", "ln_2.weight", "D"),
            TensorRow("ffn_norm.bias", "ln_2.bias", "D"),
            TensorRow("ffn_up.weight", "mlp.c_fc.weight", "FD"),
            TensorRow("ffn_up.bias", "mlp.c_fc.bias", "F"),
            TensorRow("ffn_down.weight", "mlp.c_proj.weight", "DF"),
            TensorRow("ffn_down.bias", "mlp.c_proj.bias", "D"),
        ),
        body="transformer.h.",
        layout=_gpt2_layout,
        epsilon=("attention.layer_norm_epsilon", "layer_norm_epsilon"),
        names={"layers": "n_layer", "context": "n_positions", "d": "n_embd", "ff": "n_inner", "heads": "n_head"},
        has=frozenset(),
        rope="none",
        tied=True,
    ),
    Architecture(
        name="gptneox",
        model_types=("gpt_neox",),
        implied={"hidden_act": ("gelu",), "attention_bias": (True,)},
        outer=(
            TensorRow("token_embd.weight", "gpt_neox.embed_in.weight", "VD"),
            TensorRow("output_norm.weight", "gpt_neox.final_layer_norm.weight", "D"),
            TensorRow("output_norm.bias", "gpt_neox.final_layer_norm.bias", "D"),
        ),
        layer=(
            TensorRow("attn_norm.weight", "input_layernorm.weight", "D"),
            TensorRow("attn_norm.bias", "input_layernorm.bias", "D"),
            TensorRow("ffn_norm.weight", "post_attention_layernorm.weight", "D"),
            TensorRow("ffn_norm.bias", "post_attention_layernorm.bias", "D"),
            TensorRow("attn_qkv.weight", "attention.query_key_value.weight", "TD"),
            TensorRow("attn_qkv.bias", "attention.query_key_value.bias", "T"),
            TensorRow("attn_output.weight", "attention.dense.weight", "DD"),
            TensorRow("attn_output.bias", "attention.dense.bias", "D"),
            TensorRow("ffn_up.weight", "mlp.dense_h_to_4h.weight", "FD"),
            TensorRow("ffn_up.bias", "mlp.dense_h_to_4h.bias", "F"),
            TensorRow("ffn_down.weight", "mlp.dense_4h_to_h.weight", "DF"),
            TensorRow("ffn_down.bias", "mlp.dense_4h_to_h.bias", "D"),
        ),
        body="gpt_neox.layers.",
        head=TensorRow("output.weight", "embed_out.weight", "VD"),
        layout=_neox_layout,
        epsilon=("attention.layer_norm_epsilon", "layer_norm_eps"),
        has=frozenset({"use_parallel_residual"}),
        rope="partial",
    ),
)
