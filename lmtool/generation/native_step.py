"""A decoding step of one text through the layers of a Transformer on a CPU, as a program of C kernels.

The program does not return to Python between operations, which would take longer than the products of small models.

Shapes: S slots of a cache, D model width, N heads, H head width, R rotated components of a head.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from lmtool.compute.kernels.matrices import NativeMatrix, ProductByRowCount
from lmtool.compute.kernels.program import (
    ACTIVATIONS,
    ActivateStep,
    AddStep,
    AttendStep,
    CopyStep,
    DecodeStepProgram,
    GateStep,
    LinearStep,
    NormStep,
    RotateStep,
)
from lmtool.compute.machine import physical_memory_limit_bytes
from lmtool.model.fixed import StaticDecodeState, source_length
from lmtool.model.language_model import DecodeState, KeyValueCache, LanguageModel, LayerState, Memory, RowTokens
from lmtool.model.layers.attention import (
    CrossAttention,
    JoinedLinear,
    Mixer,
    SelfAttention,
    find_linears,
    find_mixers,
)
from lmtool.model.layers.blocks import GATE_ACTIVATIONS, FeedForward
from lmtool.model.layers.norms import RMSNorm
from lmtool.model.layers.positions import AlibiPositions, AttentionPositions, RelativePositions, RotaryPositions
from lmtool.model.layers.scores import Score
from lmtool.model.packed import PackedMatrix
from lmtool.model.transformer import TransformerModel

NATIVE_MIXERS = (SelfAttention, CrossAttention, FeedForward)
MAX_COPY_MEMORY_SHARE = 0.25
"""Maximum share of the machine's memory for second copies of matrices, in float32."""

NATIVE_POSITIONS = (AttentionPositions, RotaryPositions, AlibiPositions, RelativePositions)


class NativeLayerMatrices:
    """The layers of a model and their matrices in the layout of the C kernels."""

    def __init__(self, model: TransformerModel, matrices: dict[nn.Linear, NativeMatrix]) -> None:
        self.model, self.stack, self.matrices = model, model.stacks()[-1], matrices

    @classmethod
    def from_model_if_supported(cls, model: LanguageModel) -> "NativeLayerMatrices | None":
        """Returns None for a model that the kernels do not support, or whose weights are not packed and may change.

        Otherwise also replaces, in place, the product of the model's head for single rows.
        """
        if not isinstance(model, TransformerModel) or not _supports_native_step(model):
            return None
        weights = {linear: cast(PackedMatrix, linear.weight) for linear in find_linears(model.stacks()[-1])}
        n_copied = sum(weight.nbytes for weight in weights.values() if not isinstance(weight.product, NativeMatrix))
        if n_copied > MAX_COPY_MEMORY_SHARE * (physical_memory_limit_bytes() or math.inf):
            return None
        products = {linear: weight.product.native for linear, weight in weights.items()}
        matrices = {linear: matrix for linear, matrix in products.items() if matrix is not None}
        if len(matrices) < len(products):
            return None
        for head in model.head_parameters():
            if isinstance(head, PackedMatrix) and not isinstance(head.product, NativeMatrix):
                one = head.product.native
                head.product = head.product if one is None else ProductByRowCount(one, head.product)
        return cls(model, matrices)


def _supports_native_step(model: TransformerModel) -> bool:
    """Whether kernels exist for all parts of the layers, and their matrices are packed."""
    stack = model.stacks()[-1]
    mixers, mask = find_mixers(stack), stack.mask
    scores = [mixer.score for mixer in mixers if isinstance(mixer, SelfAttention | CrossAttention)]
    rules = {type(stack.position), type(stack.window_position[0])}
    return (
        all(type(mixer) in NATIVE_MIXERS for mixer in mixers)
        and all(type(score) is Score for score in scores)
        and rules <= set(NATIVE_POSITIONS)
        and mask.dilation == 1
        and not mask.n_global
        # adapters are not part of a plain linear map
        and all(
            type(linear) in (nn.Linear, JoinedLinear) and isinstance(linear.weight, PackedMatrix)
            for linear in find_linears(stack)
        )
    )


class NativeSingleRowStep:
    """Decodes one more token of one text, with a state of its own: of one row, in float32."""

    def __init__(self, layers: NativeLayerMatrices, state: StaticDecodeState) -> None:
        self._layers, self._state = layers, state
        self._program = DecodeStepProgram()
        widths = [width for matrix in layers.matrices.values() for width in (matrix.n_in, matrix.n_out)]
        self._width = next(iter(layers.matrices.values())).n_in
        n_slots = next(layer.k_BNSH.shape[2] for layer in state.layers if isinstance(layer, KeyValueCache))
        self._slots_1S = torch.arange(n_slots)[None]
        self._x, self._x0, self._input, self._normed, self._out = (
            self._program.reserve_vector(self._width) for _ in range(5)
        )
        self._inner, self._mixed = self._program.reserve_vector(max(widths)), self._program.reserve_vector(max(widths))
        self._add_layers_to_program()
        self._program.allocate()

    def __call__(self, tokens_11: Tensor) -> Tensor:
        """Returns the hidden state (1, D) of the token at the next position, and adds it to the caches."""
        layers, memory = self._layers, self._program.memory
        self._state.newest_position_1.add_(1)
        position = int(self._state.newest_position_1)
        positions_11 = self._slots_1S[:, position : position + 1]
        added_11D, row_tokens = None, self._state.layers[-1]
        if isinstance(row_tokens, RowTokens):
            preceding_1S = row_tokens.tokens_BS
            added_11D = layers.model.sum_preceding_tokens_embeddings(tokens_11, positions_11, preceding_1S)
            preceding_1S.copy_(torch.cat((preceding_1S[:, 1:], tokens_11), 1))
        x_11D = layers.model.input_embeddings(layers.stack)(tokens_11, positions_11, None, added_11D)
        memory[: self._width] = x_11D[0, 0]
        self._program.run(position)
        return memory[self._out : self._out + self._width][None].clone()

    def set_source(self, state: DecodeState) -> None:
        """Makes further steps attend to the source of this state, which is padded on the right."""
        keep_1S = state.source_keep_BS
        self._program.set_source_length(source_length(state) if keep_1S is None else int(keep_1S.sum()))

    def _add_linear(self, linear: nn.Linear, src: int, dst: int, adds: bool = False) -> None:
        matrix = self._layers.matrices[linear].to_c(self._program.store_as_float32_and_get_address(linear.bias))
        self._program.add_step(LinearStep(matrix, adds), src, dst)

    def _add_layers_to_program(self) -> None:
        """Adds the operations of all sublayers, in the order of `Stack` and `Sublayer`."""
        stack, width, add = self._layers.stack, self._width, self._program.add_step
        sublayers = stack.sublayers_in_order()
        add(CopyStep(width), self._x, self._x0)
        for i, (sublayer, state) in enumerate(zip(sublayers, self._state.layers[: len(sublayers)], strict=True)):
            if sublayer.x_scale is not None and sublayer.x0_scale is not None:
                add(AddStep(width, float(sublayer.x_scale), float(sublayer.x0_scale)), self._x0, self._x)
            if i % stack.sublayers_per_layer == 0 and (stack.parallel or stack.adds_to_layer_input):
                add(CopyStep(width), self._x, self._input)
            read = self._input if stack.parallel else self._x
            if sublayer.norm_place == "pre":
                read = self._add_norm(sublayer.norm, read, self._normed)
            adds = sublayer.residual and sublayer.norm_place != "output" and not stack.adds_to_layer_input
            mixed = self._add_mixer_without_out_projection(
                sublayer.mixer, state, read, i // stack.sublayers_per_layer in stack.full_layers
            )
            self._add_linear(sublayer.mixer.out, mixed, self._x if adds else self._out, adds)
            if sublayer.norm_place == "output":
                self._add_norm(sublayer.norm, self._out, self._out)
            if not adds:
                if stack.adds_to_layer_input:
                    add(CopyStep(width), self._input, self._x)
                add(AddStep(width, 1, 1) if sublayer.residual else CopyStep(width), self._out, self._x)
            if sublayer.norm_place == "post":
                self._add_norm(sublayer.norm, self._x, self._x)
        if self._add_norm(stack.norm, self._x, self._out) != self._out:
            add(CopyStep(width), self._x, self._out)

    def _add_norm(self, module: nn.Module, src: int, dst: int, n_parts: int = 1) -> int:
        """Adds a norm from `src` to `dst`. Returns the address of its output, which is `src` for an identity."""
        if isinstance(module, nn.Identity):
            return src
        norm = cast(nn.LayerNorm | RMSNorm, module)
        gain, bias = (norm.gain(), None) if isinstance(norm, RMSNorm) else (norm.weight, norm.bias)
        gain_and_bias = (
            self._program.store_as_float32_and_get_address(gain),
            self._program.store_as_float32_and_get_address(bias),
        )
        is_centered = isinstance(norm, nn.LayerNorm)
        self._program.add_step(
            NormStep(*gain_and_bias, n_parts, norm.normalized_shape[0], is_centered, norm.eps), src, dst
        )
        return dst

    def _add_mixer_without_out_projection(
        self, mixer: Mixer, state: LayerState, src: int, is_full_attention: bool
    ) -> int:
        """Adds a mixer. Returns the address of the input of its output projection."""
        match mixer, state:
            case FeedForward(), _:
                self._add_linear(mixer.up, src, self._inner)
                function = ACTIVATIONS.index(GATE_ACTIVATIONS.get(mixer.activation, mixer.activation))
                activate = ActivateStep(function, mixer.out.in_features, mixer.activation in GATE_ACTIVATIONS)
                self._program.add_step(activate, self._inner, self._mixed)
            case CrossAttention(), Memory():
                self._add_linear(mixer.q, src, self._inner)
                # a source of any length: see `set_source`
                self._add_scaled_dot_product_attention(mixer, state, n_source=1)
            case SelfAttention(), KeyValueCache():
                self._add_linear(mixer.qkv, src, self._inner)
                self._add_self_attention_between_projections(mixer, state, is_full_attention)
                if mixer.gate is not None:
                    self._add_linear(mixer.gate, src, self._inner)
                    n = mixer.gate.out_features
                    self._program.add_step(GateStep(n, mixer.out.in_features // n), self._inner, self._mixed)
        return self._mixed

    def _add_self_attention_between_projections(
        self, mixer: SelfAttention, state: KeyValueCache, is_full_attention: bool
    ) -> None:
        """Adds attention to the cache, with norms, rotations, position biases and window."""
        stack, hold = self._layers.stack, self._program.store_as_float32_and_get_address
        n_queries, n_keys, _ = mixer.qkv.widths
        for norm, first, n in ((mixer.q_norm, 0, n_queries), (mixer.k_norm, n_queries, n_keys)):
            if isinstance(norm, RMSNorm):
                part = self._inner + first
                self._add_norm(norm, part, part, n // norm.normalized_shape[0])
        window = None if is_full_attention else stack.mask.window
        rule = stack.position if window is None else stack.window_position[0]
        if (turns := rule.cosines_and_sines(self._slots_1S, mixer.head_width, torch.float32)) is not None:
            angles = (hold(t.expand(-1, 1, -1, -1)) for t in turns)
            rotate = RotateStep(*angles, mixer.n_heads + mixer.n_kv_heads, mixer.head_width, turns[0].shape[-1])
            self._program.add_step(rotate, self._inner, self._inner)
        bias_PNTS = rule.bias(self._slots_1S[:, -1:], self._slots_1S)
        # indexed by the distance from the last query to each key
        bias = None if bias_PNTS is None else hold(bias_PNTS[0, :, 0].flip(-1))
        self._add_scaled_dot_product_attention(mixer, state, bias, window or 0)

    def _add_scaled_dot_product_attention(
        self,
        mixer: SelfAttention | CrossAttention,
        state: KeyValueCache | Memory,
        bias: int | None = None,
        window: int = 0,
        n_source: int = 0,
    ) -> None:
        attend = AttendStep(
            keys=state.k_BNSH.data_ptr(),
            values=state.v_BNSH.data_ptr(),
            bias=bias,
            n_heads=mixer.n_heads,
            n_kv_heads=mixer.n_kv_heads,
            key_width=mixer.head_width,
            value_width=mixer.value_width,
            n_slots=state.k_BNSH.shape[2],
            window=window,
            n_source=n_source,
            scale=mixer.score.scale,
        )
        self._program.add_step(attend, self._inner, self._mixed)
