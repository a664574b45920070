"""Low-rank adapters of a Transformer's frozen weights (Hu et al. 2022, LoRA).

Shapes: I input width, O output width, R rank.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.compute.kernels import ops
from lmtool.errors import UsageError
from lmtool.model.heads import LanguageModelWithTaskHead
from lmtool.model.layers.attention import JoinedLinear, find_linears, find_mixers, output_widths
from lmtool.model.packed import dense_weight, quantize_weights_
from lmtool.recipe.spec.training import Lora


class LoraLinear(JoinedLinear):
    """W x + b + (alpha / rank) B A x, with an A and a B for each adapted part of a joined matrix.

    A is normal with variance 1 / I and B is zero, so that initially it equals the linear map whose weights it takes
    over, names included. Only A and B are trained. has_adapter: for each part of the output, whether it has an adapter.
    """

    def __init__(self, linear: nn.Linear, has_adapter: tuple[bool, ...], spec: Lora) -> None:
        nn.Module.__init__(self)  # takes over existing weights
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.widths = output_widths(linear)
        self.weight, self.bias = linear.weight, linear.bias
        self.has_adapter = has_adapter
        self.rank, self.scale, self.dropout = spec.rank, spec.alpha / spec.rank, spec.dropout
        self._adapted_widths = [width for width, has in zip(self.widths, has_adapter, strict=True) if has]
        # drawn on the CPU, so that a seed gives the same on every device; they are sharded later if the weights are
        drawn_RI = torch.randn(len(self._adapted_widths) * spec.rank, linear.in_features) * linear.in_features**-0.5
        device = drawn_RI.device if linear.weight.is_meta else linear.weight.device
        self.down_RI = nn.Parameter(drawn_RI.to(device, linear.weight.dtype))
        self.up_OR = nn.Parameter(linear.weight.new_zeros(sum(self._adapted_widths), spec.rank, device=device))

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(ops.dropout(x, self.dropout, self.training), self.down_RI)
        return F.linear(x, self.weight, self.bias) + self.scale * self._multiply_parts_by_up(low, -1)

    def merged_weight(self) -> Tensor:
        """Returns W + (alpha / rank) B A."""
        return dense_weight(self.weight) + self.scale * self._multiply_parts_by_up(self.down_RI, 0)

    def block_diagonal_up(self, up_OR: Tensor) -> Tensor:
        """Returns B of all parts as one matrix (O, R of each), whose product with `down_RI` is the change of W.

        The change is still to be multiplied by alpha / rank. up_OR: of all adapted parts, like `self.up_OR`.
        """
        joined = torch.block_diag(*torch.split(up_OR, self._adapted_widths))  # type: ignore[no-untyped-call]
        rows = iter(torch.split(joined, self._adapted_widths))
        parts = zip(self.widths, self.has_adapter, strict=True)
        return torch.cat([next(rows) if has else joined.new_zeros(width, joined.shape[1]) for width, has in parts])

    def _multiply_parts_by_up(self, down: Tensor, dim: int) -> Tensor:
        """Returns each part's B times its rows of `down`, zeros for parts without an adapter, joined along
        `dim`."""
        downs, ups = iter(torch.split(down, self.rank, dim)), iter(torch.split(self.up_OR, self._adapted_widths))
        parts = []
        for width, has in zip(self.widths, self.has_adapter, strict=True):
            if not has:
                shape = (width, down.shape[1]) if dim == 0 else (*down.shape[:-1], width)
                parts.append(down.new_zeros(shape))
            else:
                parts.append(next(ups) @ next(downs) if dim == 0 else F.linear(next(downs), next(ups)))
        return torch.cat(parts, dim)


def add_adapters_and_freeze_(model: nn.Module, spec: Lora, *, store_quantized: bool = True) -> None:
    """Adds adapters to a model and freezes all its other weights.

    Raises UsageError when no matrix is of the targeted kinds.

    Args:
        store_quantized: if the spec quantizes the frozen weights, store them so; else only round their values.
    """
    model.requires_grad_(False)
    for mixer in find_mixers(model):
        for name, parts in mixer.adapter_targets():
            adapted = tuple(part in spec.targets for part in parts)
            if any(adapted):
                setattr(mixer, name, LoraLinear(getattr(mixer, name), adapted, spec))
    if not any(adapter_parameter_names(model)):
        what = f"the model has no matrices of the kind {' or '.join(spec.targets)}"
        fix = "set it to [feed-forward]" if find_linears(model) else "train without adapters"
        raise UsageError(what, where="tuning.lora.targets", fix=fix)
    if spec.quantize != "none":
        quantize_weights_(model, spec.quantize, store_dequantized=not store_quantized)


def merge_adapters_(model: nn.Module) -> None:
    """Merges all adapters into the weights that they adapt. The model computes the same function."""
    for mixer in find_mixers(model):
        for name, linear in list(mixer.named_children()):
            if isinstance(linear, LoraLinear):
                with torch.device("meta"):  # its weights are set already
                    plain = JoinedLinear(linear.in_features, linear.widths, linear.bias is not None)
                plain.weight = nn.Parameter(linear.merged_weight().detach())
                plain.bias = linear.bias
                setattr(mixer, name, plain)


def adapter_parameter_names(model: nn.Module) -> Iterator[str]:
    """Yields the names of the parameters of all adapters."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield from (f"{name}.down_RI", f"{name}.up_OR")


def adapter_or_full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors to save, by name: all; with adapters, only these and the head on the body."""
    state: dict[str, Tensor] = model.state_dict()
    names = set(adapter_parameter_names(model))
    if not names:
        return state
    if isinstance(model, LanguageModelWithTaskHead):
        names |= {name for name in state if not name.startswith("body.")}
    return {name: tensor for name, tensor in state.items() if name in names}
