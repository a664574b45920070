"""The Stack: embedding, sublayers, final norm. Every Transformer is one or two of these under different masks.

Shapes: B rows, T positions, D model width. P is B, or 1 where all rows have the same positions.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Mask
from lmtool.model.attention import Attend, Mixer, SelfAttention
from lmtool.model.language_model import LayerState
from lmtool.model.parts import FeedForward, build_norm, build_position, embedding_scale
from lmtool.recipe.spec import Transformer


class Sublayer(nn.Module):
    """A mixer f joined to the stream: pre-norm x + f(norm(x)), or post-norm norm(x + f(x))."""

    def __init__(self, mixer: Mixer, norm: nn.Module, pre: bool, dropout: float) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm = norm
        self.pre = pre
        self.dropout = dropout

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> tuple[Tensor, LayerState | None]:
        mixed: Tensor
        mixed, now = self.mixer(self.norm(x_BTD) if self.pre else x_BTD, attend, past)
        x_BTD = x_BTD + F.dropout(mixed, self.dropout, self.training)
        return (x_BTD if self.pre else self.norm(x_BTD)), now


class Stack(nn.Module):
    """Token ids to hidden states."""

    def __init__(self, spec: Transformer, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, spec.d_model)
        self.scale = embedding_scale(spec)
        self.position = build_position(spec)
        self.dropout = spec.dropout
        pre = spec.norm.place == "pre"
        self.sublayers = nn.ModuleList(
            Sublayer(mixer, build_norm(spec.norm, spec.d_model, spec.bias), pre, spec.dropout)
            for _ in range(spec.n_layers)
            for mixer in self._mixers(spec)
        )
        self.norm = build_norm(spec.norm, spec.d_model, spec.bias) if pre else nn.Identity()
        self._initialise(spec)

    @staticmethod
    def _mixers(spec: Transformer) -> Sequence[Mixer]:
        n_kv_heads = spec.n_kv_heads or spec.n_heads
        return (
            SelfAttention(spec.d_model, spec.n_heads, n_kv_heads, spec.bias, spec.dropout),
            FeedForward(spec.d_model, spec.d_ff or 4 * spec.d_model, spec.activation, spec.bias, spec.ffn_dropout),
        )

    def _initialise(self, spec: Transformer) -> None:
        """Normal matrices, zero biases, and smaller projections into the stream (Radford et al. 2019)."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=spec.init.std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if spec.init.scale_residual:
            for mixer in self._mixers_in_order():
                nn.init.normal_(mixer.out.weight, std=spec.init.std * len(self.sublayers) ** -0.5)

    def start(self, n_rows: int) -> tuple[LayerState, ...]:
        """The state of every sublayer before the first token."""
        return tuple(mixer.start(n_rows) for mixer in self._mixers_in_order())

    def _mixers_in_order(self) -> list[Mixer]:
        return [module for module in self.modules() if isinstance(module, Mixer)]

    def forward(
        self, tokens_BT: Tensor, positions_PT: Tensor, mask: Mask, past: tuple[LayerState, ...] | None, n_past: int
    ) -> tuple[Tensor, tuple[LayerState, ...] | None]:
        """Hidden states (B, T, D) of the tokens, which follow `n_past` positions that `past` remembers.

        mask covers all n_past + T positions. Without `past` nothing is kept.
        """
        x_BTD = self.embedding(tokens_BT) * self.scale
        if self.position is not None:
            x_BTD = self.position(x_BTD, positions_PT)
        x_BTD = F.dropout(x_BTD, self.dropout, self.training)
        T = tokens_BT.shape[1]
        attend = Attend(mask, T, n_past + T, tokens_BT.device)
        now = []
        for layer, sublayer in enumerate(self.sublayers):
            x_BTD, state = sublayer(x_BTD, attend, None if past is None else past[layer])
            now.append(state)
        return self.norm(x_BTD), None if past is None else tuple(now)
