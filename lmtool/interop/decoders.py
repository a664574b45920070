"""Decoders of Transformers: GPT-2, Llama and its relatives, GPT-NeoX (Pythia), BLOOM and MPT.

A family is what its class declares: the keys of its sizes, the part of the recipe that all its models share, and its
names of the weights. `Decoder` reads and writes these; methods do what differs from model to model.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lmtool.interop.family import (
    SAME,
    ByHead,
    Config,
    Described,
    Family,
    Inexpressible,
    Joined,
    Layout,
    Published,
    Transposed,
    Weight,
)
from lmtool.interop.labels import read_task, write_task
from lmtool.interop.meaning import check_same
from lmtool.interop.rotary import read_rotary, write_rotary
from lmtool.recipe.spec import AnyObjective, Causal, Classification, LearnedPosition, Transformer, WindowPattern

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_accurate": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Their names of activations; the first one of each of ours is the one to write."""

GATED = {"silu": "swiglu", "gelu": "geglu-exact", "gelu-tanh": "geglu"}
"""Activations by that of their gate."""

GATES = {theirs: GATED[ours] for theirs, ours in ACTIVATIONS.items() if ours in GATED}

SEVERAL_PARTS = {"is_encoder_decoder": (False,), "add_cross_attention": (False,), "tie_encoder_decoder": (False,)}

HEAD: dict[str, tuple[object, ...]] = {
    "layers": ("last",),
    "pool": ("last", "auto"),
    "dense": ("none", "auto"),
    "dense_norm": (False,),
    "bias": (False, None),
}
"""What a *ForSequenceClassification of a decoder computes: scores of the last position."""


class Decoder(Family):
    """What all decoders have in common.

    name: of the classes. causal: what follows it in that of the language model. sizes: their keys of sizes in the
    recipe. eps: their key of the epsilon of norms. defaults: values of keys that files omit, as in the class of the
    configuration. others: other names of keys. expected: the only values of keys that a recipe expresses. ignored: keys
    that change no logits. dropouts: keys of all dropouts. fixed: what all its models have in the recipe, `norm` apart.
    head_width_is_free: whether the heads may be wider or narrower than d_model together.

    top: their names of parts, below `prefix`. layers: the name of the list of layers, below `prefix`. layer: their
    names of parts of a layer, in which attention and network are the two sublayers.
    """

    name: ClassVar[str]
    causal: ClassVar[str] = "ForCausalLM"
    sizes: ClassVar[Mapping[str, str]]
    eps: ClassVar[str] = "layer_norm_epsilon"
    defaults: ClassVar[Mapping[str, Any]] = {}
    others: ClassVar[Mapping[str, str]] = {}
    expected: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    ignored: ClassVar[tuple[str, ...]] = ()
    dropouts: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[Mapping[str, Any]] = {}
    norm: ClassVar[Mapping[str, Any]] = {"kind": "layer"}
    head_width_is_free: ClassVar[bool] = False

    top: ClassVar[Mapping[str, str]]
    layers: ClassVar[str]
    layer: ClassVar[Mapping[str, tuple[str, ...]]]

    def describe(self, config: Config, names: Collection[str]) -> Described:
        model = self._read(config, len(names))
        if "score.weight" not in names:
            return Described(model, {"kind": "causal"})
        # there is no matrix to predict tokens with
        model["tie_embeddings"] = True
        head = {"pool": "last", "dense": "none", "bias": False, "dropout": 0.0}
        return Described(model, {"kind": "classification", **read_task(config), **head})

    def publish(self, model: Transformer, objective: AnyObjective) -> Published:
        if model.shape != "decoder":
            raise Inexpressible("shape", f"{model.shape}, and {self.model_type} is a decoder")
        config: dict[str, Any] = {}
        kind = self.causal
        if isinstance(objective, Classification):
            kind = "ForSequenceClassification"
            config |= self._write_head(objective)
        elif not isinstance(objective, Causal):
            raise Inexpressible("objective.kind", f"{objective.kind}, which {self.model_type} has no head for")
        config |= self._write(model)
        # nothing is lost: what is read again computes the same
        again = Transformer.model_validate(self._read(Config(config, ""), model.n_layers))
        check_same(model, again, self.model_type, head=isinstance(objective, Causal))
        return Published(self.name + kind, {"model_type": self.model_type, **config})

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        classifies = isinstance(objective, Classification)
        body = "body." if classifies else ""
        found = [
            Weight(
                f"{body}{part}.{kind}",
                tuple(f"{self.prefix}{name}.{kind}" for name in theirs),
                self._layout(part, kind, len(theirs), model),
            )
            for part, theirs in self._parts(model)
            for kind in (("weight", "bias") if self._has_bias(part, model) else ("weight",))
        ]
        if classifies:
            found.append(Weight("head.weight", ("score.weight",)))
        elif not model.tie_embeddings:
            found.append(Weight("head.own", ("lm_head.weight",)))
        return found

    def _read(self, config: Config, most_layers: int) -> dict[str, Any]:
        """`model` of the recipe, of not more layers than this."""
        for other, name in self.others.items():
            config.rename(other, name)
        config.assume({"tie_word_embeddings": True, **self.defaults})
        for key, allowed in (SEVERAL_PARTS | dict(self.expected)).items():
            config.expect(key, *allowed)
        config.ignore("is_decoder", "cross_attention_hidden_size", *self.ignored, *self.dropouts)
        sizes = {ours: config.take(theirs, int) for ours, theirs in self.sizes.items()}
        if sizes["n_layers"] > most_layers:
            raise config.refusal(f"{self.sizes['n_layers']} is {sizes['n_layers']}, more than there are tensors")
        return {
            "kind": "transformer",
            "shape": "decoder",
            **sizes,
            **self.fixed,
            "norm": {**self.norm, "eps": config.take(self.eps, float)},
            "tie_embeddings": config.take("tie_word_embeddings", bool),
            "dropout": self._dropout(config),
            **self._read_more(config, sizes),
        }

    def _write(self, model: Transformer) -> dict[str, Any]:
        """The configuration. Raises Inexpressible."""
        if model.vocab_size is None:
            raise Inexpressible("vocab_size", "not given, and the tokenizer's is not known here")
        if not self.head_width_is_free and model.head_width and model.head_width * model.n_heads != model.d_model:
            raise Inexpressible("head_width", f"{model.head_width}, and {self.model_type} has d_model / n_heads")
        values = {"d_ff": 4 * model.d_model, **model.model_dump(exclude_none=True)}
        return {
            **{theirs: values[ours] for ours, theirs in self.sizes.items()},
            **dict.fromkeys(self.dropouts, model.dropout),
            self.eps: model.norm.eps,
            "tie_word_embeddings": model.tie_embeddings,
            **self._write_more(model),
        }

    def _read_more(self, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
        """What this family does not declare. sizes: those of the recipe."""
        return {}

    def _write_more(self, model: Transformer) -> dict[str, Any]:
        return {}

    def _write_activation(self, model: Transformer, choices: Mapping[str, str]) -> str:
        for theirs, ours in choices.items():
            if ours == model.activation:
                return theirs
        raise Inexpressible("activation", f"{model.activation}, and {self.model_type} has {', '.join(choices)}")

    def _write_head(self, objective: Classification) -> dict[str, Any]:
        for key, allowed in HEAD.items():
            if getattr(objective, key) not in allowed:
                raise Inexpressible(f"objective.{key}", f"{getattr(objective, key)}, and Transformers has {allowed[0]}")
        return write_task(objective)

    def _dropout(self, config: Config) -> float:
        """That of all places, when it is the same in all."""
        rates = {config.optional(key, float) or 0.0 for key in self.dropouts}
        return rates.pop() if len(rates) == 1 else 0.0

    def _parts(self, model: Transformer) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Our names of all parts of the body with weights, and theirs."""
        for ours, name in self.top.items():
            yield ours, (name,)
        for i in range(model.n_layers):
            sublayers = {"attention": f"stack.sublayers.{2 * i}", "network": f"stack.sublayers.{2 * i + 1}"}
            for ours, names in self.layer.items():
                sublayer, _, part = ours.partition(".")
                yield f"{sublayers[sublayer]}.{part}", tuple(f"{self.layers}.{i}.{name}" for name in names)

    @staticmethod
    def _has_bias(part: str, model: Transformer) -> bool:
        match part.rpartition(".")[2]:
            case "norm":
                return model.bias and model.norm.kind == "layer"
            case "qkv":
                return model.bias if model.qkv_bias is None else model.qkv_bias
            case "up" | "out":
                return model.bias
        return False

    def _layout(self, part: str, kind: str, n: int, model: Transformer) -> Layout:
        """How a tensor of a part is made of n of theirs."""
        if n == 1:
            return SAME
        if part.endswith(".up"):
            return Joined(((model.d_ff or 4 * model.d_model),) * n)
        width = model.head_width or model.d_model // model.n_heads
        n_kv_heads = model.n_kv_heads or model.n_heads
        return Joined((width * model.n_heads, width * n_kv_heads, width * n_kv_heads))


class Gpt2(Decoder):
    """GPT-2 (Radford et al. 2019)."""

    model_type = "gpt2"
    prefix = "transformer."
    redundant = (r"transformer\.h\.\d+\.attn\.(masked_)?bias", r"lm_head\.weight")
    name = "GPT2"
    causal = "LMHeadModel"
    sizes: ClassVar = {
        "vocab_size": "vocab_size",
        "n_layers": "n_layer",
        "d_model": "n_embd",
        "n_heads": "n_head",
        "context": "n_positions",
    }
    defaults: ClassVar = {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1),
    }
    others: ClassVar = {
        "num_hidden_layers": "n_layer",
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    }
    expected: ClassVar = {"scale_attn_by_inverse_layer_idx": (False,)}
    ignored = (
        *("n_ctx", "reorder_and_upcast_attn"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
    )
    dropouts = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    fixed: ClassVar = {"position": {"kind": "learned"}}

    top: ClassVar = {"inputs.tokens": "wte", "inputs.position.table": "wpe", "stack.norm": "ln_f"}
    layers = "h"
    layer: ClassVar = {
        "attention.norm": ("ln_1",),
        "attention.mixer.qkv": ("attn.c_attn",),
        "attention.mixer.out": ("attn.c_proj",),
        "network.norm": ("ln_2",),
        "network.mixer.up": ("mlp.c_fc",),
        "network.mixer.out": ("mlp.c_proj",),
    }

    def _read_more(self, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {
            "d_ff": config.take("n_inner", int, 4 * sizes["d_model"]),
            "activation": config.pick("activation_function", ACTIVATIONS),
            "score": "scaled-dot" if config.take("scale_attn_weights", bool) else "dot",
        }

    def _write_more(self, model: Transformer) -> dict[str, Any]:
        rows = model.position.size if isinstance(model.position, LearnedPosition) else None
        return {
            "n_positions": rows or model.context,
            "n_inner": model.d_ff,
            "activation_function": self._write_activation(model, ACTIVATIONS),
            "scale_attn_weights": model.score != "dot",
        }

    def _layout(self, part: str, kind: str, n: int, model: Transformer) -> Layout:
        return Transposed() if ".mixer." in part and kind == "weight" else SAME


class LlamaLike(Decoder):
    """Base of Llama and its relatives: rotary positions, gated networks, RMSNorm, grouped heads of any width.

    biased: the keys of biases, all or none of which a recipe expresses. activations: ours by theirs.
    """

    prefix = "model."
    redundant = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq", r"lm_head\.weight")
    sizes: ClassVar = {
        "vocab_size": "vocab_size",
        "n_layers": "num_hidden_layers",
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "d_ff": "intermediate_size",
        "context": "max_position_embeddings",
    }
    eps = "rms_norm_eps"
    defaults: ClassVar = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
    expected: ClassVar = {"attention_bias": (False,)}
    ignored: ClassVar[tuple[str, ...]] = ("attention_dropout",)
    norm: ClassVar = {"kind": "rms"}
    head_width_is_free = True
    biased: ClassVar[tuple[str, ...]] = ()
    activations: ClassVar[Mapping[str, str]] = GATES

    top: ClassVar = {"inputs.tokens": "embed_tokens", "stack.norm": "norm"}
    layers = "layers"
    layer: ClassVar = {
        "attention.norm": ("input_layernorm",),
        "attention.mixer.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.mixer.out": ("self_attn.o_proj",),
        "network.norm": ("post_attention_layernorm",),
        "network.mixer.up": ("mlp.gate_proj", "mlp.up_proj"),
        "network.mixer.out": ("mlp.down_proj",),
    }

    def _read_more(self, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
        biases = {key: config.take(key, bool, False) for key in self.biased}
        if len(set(biases.values())) > 1:
            told = " and ".join(f"{key} {value}" for key, value in biases.items())
            raise config.refusal(f"no recipe can express {told}")
        width, n_kv_heads = config.optional("head_dim", int), config.optional("num_key_value_heads", int)
        position = read_rotary(config, sizes["context"], config.take("rope_theta", float, 10_000.0))
        if position["share"] != 1:
            raise config.refusal(f"partial_rotary_factor {position['share']} is not for {self.model_type}")
        return {
            "head_width": None if width is not None and width * sizes["n_heads"] == sizes["d_model"] else width,
            "n_kv_heads": None if n_kv_heads == sizes["n_heads"] else n_kv_heads,
            "activation": config.pick("hidden_act", self.activations),
            "position": position,
            "pattern": self._read_pattern(config, sizes["n_layers"]),
            "bias": any(biases.values()),
        }

    def _write_more(self, model: Transformer) -> dict[str, Any]:
        position, rotary = write_rotary(model, self.model_type)
        if position.share != 1:
            raise Inexpressible("position.share", f"{position.share}, and {self.model_type} has 1.0")
        return {
            "head_dim": model.head_width or model.d_model // model.n_heads,
            "num_key_value_heads": model.n_kv_heads or model.n_heads,
            "hidden_act": self._write_activation(model, self.activations),
            **rotary,
            **self._write_pattern(model),
            **dict.fromkeys(self.biased, model.bias),
        }

    def _read_pattern(self, config: Config, n_layers: int) -> dict[str, Any]:
        return {"kind": "full"}

    def _write_pattern(self, model: Transformer) -> dict[str, Any]:
        return {}


class Llama(LlamaLike):
    """Llama (Touvron et al. 2023; Grattafiori et al. 2024), TinyLlama, SmolLM."""

    model_type = "llama"
    name = "Llama"
    expected: ClassVar = {"rope_interleaved": (False,)}
    ignored = (*LlamaLike.ignored, "pretraining_tp", "is_llama_config")
    biased = ("attention_bias", "mlp_bias")

    def _write_more(self, model: Transformer) -> dict[str, Any]:
        if model.d_model % model.n_heads:
            raise Inexpressible("n_heads", f"{model.n_heads}, which in {self.model_type} must divide d_model")
        return super()._write_more(model)


class Mistral(LlamaLike):
    """Mistral (Jiang et al. 2023): sliding windows in all layers."""

    model_type = "mistral"
    name = "Mistral"
    defaults: ClassVar = {**LlamaLike.defaults, "num_key_value_heads": 8, "sliding_window": 4096}

    def _read_pattern(self, config: Config, n_layers: int) -> dict[str, Any]:
        size = config.optional("sliding_window", int)
        return {"kind": "full"} if size is None else {"kind": "window", "size": size}

    def _write_pattern(self, model: Transformer) -> dict[str, Any]:
        return {"sliding_window": model.pattern.size if isinstance(model.pattern, WindowPattern) else None}


class Qwen2(LlamaLike):
    """Qwen2 and Qwen2.5 (Yang et al. 2024): biases of queries, keys and values; sliding windows in some layers."""

    model_type = "qwen2"
    name = "Qwen2"
    defaults: ClassVar = {**LlamaLike.defaults, "num_key_value_heads": 32, "sliding_window": 4096}
    expected: ClassVar = {"use_mrope": (False,)}
    fixed: ClassVar = {"qkv_bias": True}

    def _read_pattern(self, config: Config, n_layers: int) -> dict[str, Any]:
        size, first = config.optional("sliding_window", int), config.take("max_window_layers", int, 28)
        if not config.take("use_sliding_window", bool, False):
            size = None
        kinds = config.optional("layer_types", list)
        full: Sequence[int]
        if kinds is None:
            full = range(n_layers if size is None else min(first, n_layers))
        else:
            full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
            others = [kind for kind in kinds if kind != "full_attention"]
            if len(kinds) != n_layers or any(kind != "sliding_attention" for kind in others):
                raise config.refusal("layer_types does not name full_attention or sliding_attention for each layer")
            if others and size is None:
                raise config.refusal("layer_types has sliding_attention without a sliding_window")
        if len(full) == n_layers:
            return {"kind": "full"}
        return {"kind": "window", "size": size, "full_layers": list(full)}

    def _write_pattern(self, model: Transformer) -> dict[str, Any]:
        windows = model.pattern if isinstance(model.pattern, WindowPattern) else None
        full = range(model.n_layers) if windows is None else windows.full_layers
        kinds = ["full_attention" if i in full else "sliding_attention" for i in range(model.n_layers)]
        return {
            "use_sliding_window": windows is not None,
            "sliding_window": None if windows is None else windows.size,
            # before layer_types, the first of these layers with a window
            "max_window_layers": [*kinds, "sliding_attention"].index("sliding_attention"),
            "layer_types": kinds,
        }


class Qwen3(Qwen2):
    """Qwen3 (Yang et al. 2025): no biases, but norms of queries and keys."""

    model_type = "qwen3"
    name = "Qwen3"
    defaults: ClassVar = {**Qwen2.defaults, "head_dim": 128}
    expected: ClassVar = LlamaLike.expected
    fixed: ClassVar = {"qk_norm": "head"}
    layer: ClassVar = {
        **LlamaLike.layer,
        "attention.mixer.q_norm": ("self_attn.q_norm",),
        "attention.mixer.k_norm": ("self_attn.k_norm",),
    }


class Gemma(LlamaLike):
    """Gemma (Gemma Team 2024)."""

    model_type = "gemma"
    name = "Gemma"
    defaults: ClassVar = {
        "hidden_act": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 16,
        "head_dim": 256,
    }
    expected: ClassVar = {
        **LlamaLike.expected,
        "hidden_activation": ("gelu_pytorch_tanh",),
        "use_bidirectional_attention": (False,),
    }
    # its first files say gelu, and mean the approximation
    activations: ClassVar = {"gelu_pytorch_tanh": "geglu", "gelu": "geglu"}
    norm: ClassVar = {"kind": "rms", "unit_offset": True}
    fixed: ClassVar = {"scale_embedding": True}


class Olmo2(LlamaLike):
    """OLMo 2 (OLMo Team 2025): norms of the outputs of sublayers, and of all queries and keys jointly."""

    model_type = "olmo2"
    name = "Olmo2"
    defaults: ClassVar = {**LlamaLike.defaults, "rms_norm_eps": 1e-5}
    norm: ClassVar = {"kind": "rms", "place": "output"}
    fixed: ClassVar = {"qk_norm": "joint"}
    layer: ClassVar = {
        **Qwen3.layer,
        "attention.norm": ("post_attention_layernorm",),
        "network.norm": ("post_feedforward_layernorm",),
    }


class ByHeads(Decoder):
    """Base of families that interleave queries, keys and values by head."""

    layer: ClassVar = {
        "attention.norm": ("input_layernorm",),
        "attention.mixer.qkv": ("attention.query_key_value",),
        "attention.mixer.out": ("attention.dense",),
        "network.norm": ("post_attention_layernorm",),
        "network.mixer.up": ("mlp.dense_h_to_4h",),
        "network.mixer.out": ("mlp.dense_4h_to_h",),
    }
    dropouts = ("hidden_dropout", "attention_dropout")

    def _layout(self, part: str, kind: str, n: int, model: Transformer) -> Layout:
        return ByHead(model.n_heads) if part.endswith(".qkv") else SAME


class GptNeoX(ByHeads):
    """GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023)."""

    model_type = "gpt_neox"
    prefix = "gpt_neox."
    redundant = (
        r"gpt_neox\.layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",
        r"gpt_neox\.rotary_emb\.inv_freq",
        r"lm_head\.weight",
    )
    name = "GPTNeoX"
    sizes = LlamaLike.sizes
    eps = "layer_norm_eps"
    defaults: ClassVar = {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10_000.0,
    }
    expected: ClassVar = {"attention_bias": (True,)}
    ignored = ("classifier_dropout",)

    top: ClassVar = {"inputs.tokens": "embed_in", "stack.norm": "final_layer_norm"}
    layers = "layers"

    def _read_more(self, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
        # Transformers 4 wrote them under both names
        config.rename("rope_theta", "rotary_emb_base")
        config.rename("partial_rotary_factor", "rotary_pct")
        theta, share = config.take("rotary_emb_base", float), config.take("rotary_pct", float)
        return {
            "activation": config.pick("hidden_act", ACTIVATIONS),
            "parallel": config.take("use_parallel_residual", bool),
            "position": read_rotary(config, sizes["context"], theta, share),
        }

    def _write_more(self, model: Transformer) -> dict[str, Any]:
        position, rotary = write_rotary(model, self.model_type)
        del rotary["rope_theta"]
        rotary["rope_parameters"]["partial_rotary_factor"] = position.share
        return {
            "hidden_act": self._write_activation(model, ACTIVATIONS),
            "use_parallel_residual": model.parallel,
            "rotary_emb_base": position.theta,
            "rotary_pct": position.share,
            **rotary,
        }


class Bloom(ByHeads):
    """BLOOM (BigScience 2022); the context is that of training, since ALiBi has no limit."""

    model_type = "bloom"
    prefix = "transformer."
    redundant = (r"lm_head\.weight",)
    name = "Bloom"
    sizes: ClassVar = {
        "vocab_size": "vocab_size",
        "n_layers": "n_layer",
        "d_model": "hidden_size",
        "n_heads": "n_head",
        "context": "seq_length",
    }
    defaults: ClassVar = {"layer_norm_epsilon": 1e-5, "seq_length": 2048}
    others: ClassVar = {"num_hidden_layers": "n_layer", "n_embed": "hidden_size", "num_attention_heads": "n_head"}
    expected: ClassVar = {
        "apply_residual_connection_post_layernorm": (False,),
        "n_inner": (),
        "skip_bias_add_qkv": (False,),
    }
    ignored = (
        *("pretraining_tp", "slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion"),
        *("bias_dropout_fusion", "skip_bias_add", "offset_alibi"),
    )
    norm: ClassVar = {"kind": "layer", "embedding": True}
    fixed: ClassVar = {"activation": "gelu-tanh", "position": {"kind": "alibi"}}

    top: ClassVar = {
        "inputs.tokens": "word_embeddings",
        "inputs.norm": "word_embeddings_layernorm",
        "stack.norm": "ln_f",
    }
    layers = "h"
    layer: ClassVar = {
        **ByHeads.layer,
        "attention.mixer.qkv": ("self_attention.query_key_value",),
        "attention.mixer.out": ("self_attention.dense",),
    }


class Mpt(Decoder):
    """MPT (MosaicML 2023): ALiBi, and no biases anywhere; Transformers takes no texts longer than the context."""

    model_type = "mpt"
    prefix = "transformer."
    redundant = (r"lm_head\.weight",)
    name = "Mpt"
    sizes: ClassVar = {
        "vocab_size": "vocab_size",
        "n_layers": "n_layers",
        "d_model": "d_model",
        "n_heads": "n_heads",
        "context": "max_seq_len",
    }
    defaults: ClassVar = {"layer_norm_epsilon": 1e-5}
    others: ClassVar = {
        "num_hidden_layers": "n_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
    }
    expected: ClassVar = {
        # the network of Transformers has no other
        "expansion_ratio": (4,),
        "logit_scale": (),
        "no_bias": (True,),
        "norm_type": ("low_precision_layernorm", "layernorm"),
    }
    ignored = (
        *("learned_pos_emb", "resid_pdrop", "emb_pdrop", "embedding_fraction"),
        *("init_device", "init_config", "verbose", "tokenizer_name"),
    )
    fixed: ClassVar = {"activation": "gelu", "bias": False, "position": {"kind": "alibi"}}

    top: ClassVar = {"inputs.tokens": "wte", "stack.norm": "norm_f"}
    layers = "blocks"
    layer: ClassVar = {
        "attention.norm": ("norm_1",),
        "attention.mixer.qkv": ("attn.Wqkv",),
        "attention.mixer.out": ("attn.out_proj",),
        "network.norm": ("norm_2",),
        "network.mixer.up": ("ffn.up_proj",),
        "network.mixer.out": ("ffn.down_proj",),
    }
    attention: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "alibi": (True,),
        "alibi_bias_max": (8,),
        "attn_type": ("multihead_attention",),
        "attn_uses_sequence_id": (False,),
        "clip_qkv": (),
        "prefix_lm": (False,),
        "qk_ln": (False,),
        "softmax_scale": (),
    }

    def _read_more(self, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
        section = config.section("attn_config")
        for key, allowed in (SEVERAL_PARTS | dict(self.attention)).items():
            section.expect(key, *allowed)
        section.ignore("attn_impl", "attn_pdrop")
        return {}

    def _write_more(self, model: Transformer) -> dict[str, Any]:
        return {"attn_config": {key: next(iter(allowed), None) for key, allowed in self.attention.items()}}


DECODERS: tuple[Decoder, ...] = (
    Gpt2(),
    Llama(),
    GptNeoX(),
    Mistral(),
    Qwen2(),
    Qwen3(),
    Gemma(),
    Olmo2(),
    Bloom(),
    Mpt(),
)
"""One of each family, in the order in which an export tries them."""
