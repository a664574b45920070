"""Fully sharded data parallelism: each process holds its share of all weights, gradients and moments.

The engine is FSDP2 (Zhao et al. 2023), ZeRO-3 of Rajbhandari et al. (2020): the weights of a layer are gathered before
it computes, and freed after; its gradients are summed into the shares.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import torch
from torch import nn

from lmtool.compute.device import Compute
from lmtool.compute.processes import peers_may_end
from lmtool.compute.shards import own_rows


class LayeredModule(Protocol):
    """A module that knows its layers."""

    def modules_by_depth(self) -> Sequence[Sequence[nn.Module | None]]:
        """The embedding, then each layer, as groups of modules."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As of a module."""
        ...


class Sharding:
    """A model whose weights are sharded over the processes.

    The matrices of a layer are gathered together, in the precision of matrix products; all else (embeddings, norms,
    head) is gathered in float32 for the whole step. The shares stay float32.
    """

    def __init__(self, lm: LayeredModule, module: nn.Module, compute: Compute) -> None:
        """Shards `lm`, which may be of a `ShardedBuild`, in place. Its parameters are new objects from here on.

        module: what is trained: the model, or what it is a part of.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        # a linear map may return a view; nothing changes it in place
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
        mesh = init_device_mesh(compute.device.type, (compute.world.size,))
        narrow = None if compute.dtype == torch.float32 else compute.dtype
        policy = MixedPrecisionPolicy(narrow, None if narrow is None else torch.float32, cast_forward_inputs=False)
        rows = {name: own_rows(parameter) for name, parameter in lm.named_parameters() if parameter.is_meta}
        for linears in _layers(lm):
            fully_shard(linears, mesh=mesh, mp_policy=policy)
        self.module = module
        root = fully_shard(self.module, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
        device = compute.device
        self.module._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t)  # type: ignore[no-untyped-call]
        for name, parameter in lm.named_parameters():
            if name in rows:
                own_rows(parameter).copy_(rows.pop(name))
        # now, since a validation may come before the first step, and then the first layer would be taken for the root
        fully_shard.state(root)._lazy_init()  # type: ignore[attr-defined]  # of the decorator
        self._parts = [part for part in self.module.modules() if isinstance(part, FSDPModule)]
        self._compute = compute

    @contextmanager
    def by_layer(self) -> Iterator[None]:
        """A context in which all processes compute in step, each with the weights of one layer at a time."""
        root = self._parts[0]
        with peers_may_end():
            root.unshard()
            try:
                yield
            finally:
                self._end_passes()
                root.reshard()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """A context in which every process holds all weights and computes by itself, without gradients."""
        root = self._parts[0]
        root.set_reshard_after_forward(False)
        with peers_may_end():
            for part in self._parts:
                part.unshard()
        try:
            with self._compute.autocast():
                yield
        finally:
            self._end_passes()
            for part in self._parts:
                part.reshard()
            root.set_reshard_after_forward(True)
            root.set_reshard_after_forward(False, recurse=False)

    def _end_passes(self) -> None:
        """Begin the next pass anew: decoding runs some maps of a layer without others, in one process only.

        A layer that waits for the others would otherwise keep its weights, which the processes beside it gather again.
        """
        from torch.distributed.fsdp import fully_shard

        for part in self._parts:
            state = fully_shard.state(part)  # type: ignore[attr-defined]  # of the decorator
            state._modules_to_run_forward.clear()
            state._state_ctx.iter_forward_root = None
            state._comm_ctx.post_forward_order.clear()
            group = state._fsdp_param_group
            if group is not None:
                group._post_forward_indices.clear()
            for passing in filter(None, (state, group)):
                passing._training_state = type(passing._training_state).IDLE


def _layers(lm: LayeredModule) -> Iterator[list[nn.Module]]:
    """The linear maps of each layer."""
    for group in lm.modules_by_depth()[1:]:
        linears = [m for part in group if part is not None for m in part.modules() if isinstance(m, nn.Linear)]
        if linears:
            yield cast(list[nn.Module], linears)
