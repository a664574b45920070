"""Computes the input, an attention head and a feed-forward network of a small Transformer in numbers, step by step.

Shapes: T positions, D model width, H head width, F width inside the feed-forward network.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model import build
from lmtool.model.layers.attention import AttentionOp, SelfAttention
from lmtool.model.layers.blocks import GATE_ACTIVATIONS, FeedForward, InputEmbeddings, apply_plain_or_gated_activation
from lmtool.model.layers.observing import record_attention_weights
from lmtool.model.layers.positions import LearnedPositions, SinusoidalPositions, build_position_embedding
from lmtool.model.size import check_training_fits_memory
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.transformer import Transformer

MAX_POSITIONS, MAX_WIDTH, MAX_MODEL_BYTES = 6, 16, 1 << 30
"""Positions that are shown, the largest d_model whose vectors fit a line, and the largest model."""


def compute_first_layer_matrices(recipe: Recipe) -> list[tuple[str, Tensor]]:
    """Returns titles and matrices of the untrained model, which reads the tokens 0, 1, and so on.

    They are the sinusoids, their products and differences, if the recipe has them; the vectors that are summed at the
    input, if positions or segments have learned ones; and the steps of the first head and of the feed-forward network
    of the first layer. With segments, the second half of the tokens belongs to a second text.

    Raises UsageError for models without such a head, and for wide ones.
    """
    spec = recipe.model
    if (
        not isinstance(spec, Transformer)
        or (spec.mixer, spec.score, spec.qk_norm) != ("attention", "scaled-dot", "none")
        or spec.position.kind == "disentangled"
        or spec.d_model > MAX_WIDTH
    ):
        plain = f"Transformers at most {MAX_WIDTH} wide, of scaled dot products of plain queries and keys"
        fix = "name one, with -s model.d_model=6 -s model.n_heads=1"
        raise UsageError(f"--numbers are for {plain}", where="model", fix=fix)
    check_training_fits_memory(recipe, MAX_MODEL_BYTES)
    T = min(spec.context, MAX_POSITIONS)
    torch.manual_seed(recipe.seed)
    lm, positions, tokens_1T = build(spec, T).eval(), build_position_embedding(spec), torch.arange(T)[None]
    batch = Batch(tokens_1T, segments_BT=tokens_1T * 2 // T if spec.n_segments > 1 else None)
    name, part = next((name, part) for name, part in lm.named_modules() if isinstance(part, SelfAttention))
    inputs: list[tuple[Tensor, AttentionOp]] = []
    part.register_forward_pre_hook(lambda _, called_with: inputs.append(called_with[:2]))
    network = next((part for part in lm.modules() if isinstance(part, FeedForward)), None)
    network_inputs: list[Tensor] = []
    if network is not None:
        network.register_forward_pre_hook(lambda _, called_with: network_inputs.append(called_with[0]))
    with torch.no_grad(), record_attention_weights(lm) as weights:
        lm.hidden_states_by_layer(batch)
        x_1TD, attend = inputs[0]
        widths = part.head_width, part.head_width, part.value_width
        q_TH, k_TH, v_TH = (one[0, :, :n] for one, n in zip(part.qkv.split_outputs(x_1TD), widths, strict=True))
        q_TH, k_TH = (attend.rotate(one[None, None])[0, 0] for one in (q_TH, k_TH))
        a_TT = weights[name][0, 0]
        steps = (
            _compute_sinusoids_and_products(positions, tokens_1T) if isinstance(positions, SinusoidalPositions) else []
        )
        network_steps = [] if network is None else _compute_feed_forward_steps(network, network_inputs[0][0])
        embeddings = next(part for part in lm.modules() if isinstance(part, InputEmbeddings))
        summed = _compute_input_embedding_sum(embeddings, batch)
    return [
        *steps,
        *summed,
        ("X, the input of the first layer: positions down", x_1TD[0]),
        ("W_Q of the first head", part.qkv.weight[: part.head_width].detach().T),
        ("Q = X W_Q + b", q_TH),
        ("K = X W_K + b", k_TH),
        ("V = X W_V + b", v_TH),
        ("S = Q K' / sqrt(d_k): queries down, keys across", q_TH @ k_TH.T * part.head_width**-0.5),
        ("A = softmax(S + mask + bias of positions)", a_TT),
        ("A V", a_TT @ v_TH),
        *network_steps,
    ]


def _compute_feed_forward_steps(network: FeedForward, x_TD: Tensor) -> list[tuple[str, Tensor]]:
    """Returns the steps of a feed-forward network. Positions are columns, so that lines are short for any width."""
    outputs = network.up.split_outputs(x_TD)
    weights = torch.split(network.up.weight.detach(), list(network.up.widths))
    inner_TF = apply_plain_or_gated_activation(torch.cat(outputs, -1), network.activation)
    is_gated = len(outputs) > 1
    inner = f"{GATE_ACTIVATIONS[network.activation]}(H) * G" if is_gated else f"{network.activation}(H)"
    return [
        ("X, the input of the first feed-forward network: components down, positions across", x_TD.T),
        ("W", weights[0]),
        ("H = W X + b", outputs[0].T),
        *([("W_3", weights[1]), ("G = W_3 X + b_3", outputs[1].T)] if is_gated else []),
        (inner, inner_TF.T),
        (f"W_2 {inner} + b_2", network.out(inner_TF).T),
    ]


def _compute_input_embedding_sum(inputs: InputEmbeddings, batch: Batch) -> list[tuple[str, Tensor]]:
    """Returns the vectors of tokens, positions and segments and their sum, if not only tokens have trained ones."""
    if inputs.segments is None and not isinstance(inputs.position, LearnedPositions):
        return []
    token_TD = inputs.tokens(batch.tokens_BT)[0] * inputs.scale
    vectors = [("token vectors", token_TD)]
    if inputs.position is not None:
        positions_1T = torch.arange(len(token_TD))[None]
        vectors.append(("position vectors", inputs.position(torch.zeros_like(token_TD)[None], positions_1T)[0]))
    if inputs.segments is not None:
        segments_1T = torch.zeros_like(batch.tokens_BT) if batch.segments_BT is None else batch.segments_BT
        vectors.append(("segment vectors", inputs.segments(segments_1T)[0]))
    return [*vectors, ("their sum", torch.stack([vector_TD for _, vector_TD in vectors]).sum(0))]


def _compute_sinusoids_and_products(positions: SinusoidalPositions, tokens_1T: Tensor) -> list[tuple[str, Tensor]]:
    T = tokens_1T.shape[1]
    pe_TD = positions(torch.zeros(1, T, positions.d_model), tokens_1T)[0]
    by_pair = (
        (pe_TD * pe_TD[0])
        .view(T, *((2, -1) if positions.sines_first else (-1, 2)))
        .sum(1 if positions.sines_first else 2)
    )
    return [
        ("PE(p): positions down, components across", pe_TD),
        ("PE(p) . PE(q): p down, q across; it depends on q - p alone", pe_TD @ pe_TD.T),
        ("cos(k / 10000^(2i/d)), of which the offset k = q - p has the sum: pairs i down, k across", by_pair.T),
        ("PE(p + 1) - PE(p): p down, components across; it depends on p", pe_TD[1:] - pe_TD[:-1]),
        (
            "Length of PE(q) - PE(p): p down, q across; it depends on q - p alone",
            (pe_TD - pe_TD[:, None]).square().sum(-1).sqrt(),
        ),
    ]


def format_matrix_lines(matrices: list[tuple[str, Tensor]]) -> Iterator[str]:
    """Formats each matrix with four decimals below its title."""
    for title, matrix in matrices:
        yield from (title, *("".join(f"{number:9.4f}" for number in row) for row in matrix.tolist()), "")
