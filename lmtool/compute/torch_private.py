"""Private names of torch, where it has no public ones; read in torch 2.13 and 2.14. pyproject.toml has a bound."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def ignore_parameters_(module: nn.Module, names: list[str]) -> None:
    """Lets DistributedDataParallel, which is about to wrap a module, exchange all parameters but these."""
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)  # type: ignore[no-untyped-call]


def allocate_meta_tensors_(module: nn.Module, device: torch.device) -> None:
    """Gives all tensors of a module without storage memory on a device, in which there are no values yet."""
    module._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t)  # type: ignore[no-untyped-call]


def initialize_fsdp_(root: Any) -> None:
    """Makes a module the root of what `fully_shard` has sharded in it, before its first forward pass."""
    from torch.distributed.fsdp import fully_shard

    fully_shard.state(root)._lazy_init()  # type: ignore[attr-defined]  # of the decorator


def reset_fsdp_passes_(modules: Iterable[Any]) -> None:
    """Lets the next pass of modules that `fully_shard` has sharded begin anew, whatever the last one left out.

    Decoding runs some maps of a layer without others, in one process only. A layer that waits for the others would
    otherwise keep its weights, which other processes gather again.
    """
    from torch.distributed.fsdp import fully_shard

    for module in modules:
        state = fully_shard.state(module)  # type: ignore[attr-defined]  # of the decorator
        state._modules_to_run_forward.clear()
        state._state_ctx.iter_forward_root = None
        state._comm_ctx.post_forward_order.clear()
        group = state._fsdp_param_group
        if group is not None:
            group._post_forward_indices.clear()
        for one in filter(None, (state, group)):
            one._training_state = type(one._training_state).IDLE


def has_onednn_bfloat16() -> bool:
    """Whether oneDNN has products in bfloat16 on this CPU."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # type: ignore[no-untyped-call]


def mark_constant_(function: Callable[..., Any]) -> None:
    """Lets torch.compile call a function once, while it traces, as torch.compiler.assume_constant_result does, which
    imports the compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
