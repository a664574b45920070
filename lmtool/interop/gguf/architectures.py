"""The architectures of GGUF files: names and shapes of their tensors, beside those of the same family in Transformers.

llama.cpp rotates neighbouring pairs in architecture `llama` and halves in all others, as Transformers does; so the rows
of query and key are interleaved in `llama`. What a file leaves out, such as the activation, is fixed in llama.cpp.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

from lmtool.interop.families import EVERY, FAMILIES
from lmtool.interop.families.decoder import Decoder
from lmtool.interop.families.layouts import SAME, Layout, Rescaled, Swapped, Transposed, by_head

POSITIONS = "position_embd.weight"


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


@dataclass(frozen=True)
class Sizes:
    """Hyperparameters that the shapes follow from. head_width: of one; rotary: how much of it is rotated."""

    n_layers: int
    context: int
    d_model: int
    d_ff: int
    n_heads: int
    n_kv_heads: int
    head_width: int
    rotary: int
    vocab_size: int

    def shape(self, kind: str, *, whole: bool) -> tuple[int, ...]:
        """That of the weight of a kind of module in a file. whole: norms of queries and keys are of all heads."""
        queries, keys, head = self.n_heads * self.head_width, self.n_kv_heads * self.head_width, self.head_width
        widths = {"D": self.d_model, "F": self.d_ff, "Q": queries, "K": keys, "H": head, "T": 3 * self.d_model}
        widths |= {"V": self.vocab_size, "C": self.context}
        if whole and kind in ("attn_q_norm", "attn_k_norm"):
            return self.shape(kind.removesuffix("_norm"), whole=whole)[:1]
        return tuple(widths[letter] for letter in _SHAPES.get(kind, "D"))


_SHAPES = {
    **{"token_embd": "VD", "output": "VD", "position_embd": "CD", "ffn_gate": "FD", "ffn_up": "FD", "ffn_down": "DF"},
    **{"attn_q": "QD", "attn_k": "KD", "attn_v": "KD", "attn_qkv": "TD", "attn_output": "DQ"},
    **{"attn_q_norm": "H", "attn_k_norm": "H"},
}
"""Shapes of the weights that are no vectors of the width of the model, by a letter for each dimension."""


SIZE_KEYS = {
    "n_layers": "block_count",
    "context": "context_length",
    "d_model": "embedding_length",
    "d_ff": "feed_forward_length",
    "n_heads": "attention.head_count",
}


@dataclass(frozen=True)
class Architecture:
    """How one architecture is written down in a file and in Transformers.

    model_types: of Transformers that are the same; a file becomes the first.
    implied: keys of a config.json that a file has not, with the values that llama.cpp computes with.
    biased: kinds of modules with a bias.
    options: further ones, when this key of its config.json is true.
    has: keys of its config.json that not all have.
    """

    name: str
    model_types: tuple[str, ...]
    implied: Mapping[str, tuple[object, ...]]
    biased: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has: Collection[str] = ("num_key_value_heads",)
    rope: Literal["none", "full", "partial"] = "full"

    @property
    def family(self) -> Decoder:
        """Its configuration and modules in Transformers."""
        family = FAMILIES[self.model_types[0]]
        assert isinstance(family, Decoder)
        return family

    @property
    def epsilon(self) -> tuple[str, str]:
        """The keys of the epsilon of norms in a file and in Transformers."""
        return f"attention.layer_norm{'_rms' * (self.family.norm['kind'] == 'rms')}_epsilon", self.family.eps

    @property
    def size_names(self) -> dict[str, str]:
        """The keys of sizes in Transformers; GPT-2 may omit its `n_inner`."""
        return {"d_ff": "n_inner", **{ours: name for ours, name in self.family.sizes.items() if ours in SIZE_KEYS}}

    def pairs(self, sizes: Sizes, *, tied: bool, options: Sequence[str]) -> Iterator[TensorPair]:
        """All tensors of a model."""
        family = self.family
        biased = {*self.biased, *(kind for option in options for kind in self.options[option])}
        layer = [name for names in family.parts.values() for name in names.split()]
        modules = [f"{family.prefix}{name}" for name in family.top.values()]
        modules += [] if tied else [family.output.removesuffix(".weight")]
        modules += [f"{family.prefix}{family.layer.format(n)}.{name}" for n in range(sizes.n_layers) for name in layer]
        arch = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == self.name)
        names = get_tensor_name_map(arch, sizes.n_layers)
        for published in modules:
            stored = names.get_name(published)
            assert stored is not None, published
            kind = stored.rpartition(".")[2]
            shape = sizes.shape(kind, whole=family.fixed.get("qk_norm") == "joint")
            layout = self._layout(kind, sizes)
            yield TensorPair(f"{stored}.weight", f"{published}.weight", shape, layout)
            if kind in biased:
                flat = SAME if isinstance(layout, Transposed) else layout
                yield TensorPair(f"{stored}.bias", f"{published}.bias", shape[:1], flat)

    def _layout(self, kind: str, sizes: Sizes) -> Layout:
        match self.name, kind:
            case (
                "llama",
                "attn_q" | "attn_k",
            ):  # rotary pairs are neighbours, which are halves of a head in Transformers
                return Swapped((sizes.n_heads if kind == "attn_q" else sizes.n_kv_heads, 2, -1), 1)
            case "gemma", _ if "norm" in kind:  # to which Transformers adds one
                return Rescaled(1.0, -1.0)
            case "gpt2", "attn_qkv" | "attn_output" | "ffn_up" | "ffn_down":
                return Transposed()
            case "gptneox", "attn_qkv":
                return by_head(sizes.n_heads)
        return SAME


_QKV = ("attn_q", "attn_k", "attn_v")
_ALL = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down", "output_norm")
_HEADS = ("num_key_value_heads", "head_dim")
_SILU = {"hidden_act": ("silu",)}
_UNBIASED = {"attention_bias": (False,)}

ARCHITECTURES = (
    Architecture(
        name="llama",
        model_types=("llama", "mistral"),
        implied={**_SILU, "pretraining_tp": (1,)},
        options={"attention_bias": (*_QKV, "attn_output"), "mlp_bias": ("ffn_gate", "ffn_up", "ffn_down")},
        has=_HEADS,
    ),
    Architecture(name="qwen2", model_types=("qwen2",), implied=_SILU, biased=_QKV),
    Architecture(name="qwen3", model_types=("qwen3",), implied={**_SILU, **_UNBIASED}, has=_HEADS),
    Architecture(
        name="gemma", model_types=("gemma",), implied={"hidden_act": ("gelu_pytorch_tanh",), **_UNBIASED}, has=_HEADS
    ),
    Architecture(name="olmo2", model_types=("olmo2",), implied={**_SILU, **_UNBIASED}),
    Architecture(
        name="gpt2",
        model_types=("gpt2",),
        implied={
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        biased=_ALL,
        has=(),
        rope="none",
    ),
    Architecture(
        name="gptneox",
        model_types=("gpt_neox",),
        implied={"hidden_act": ("gelu",), "attention_bias": (True,)},
        biased=_ALL,
        has=("use_parallel_residual",),
        rope="partial",
    ),
)

GGUF_FAMILIES = tuple(one for one in EVERY if any(one.model_type in known.model_types for known in ARCHITECTURES))
"""The families that these are, in the order of preference for export."""
