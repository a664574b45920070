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

from lmtool.compute import torch_private
from lmtool.compute.device import ExecutionContext
from lmtool.compute.processes import convert_peer_errors
from lmtool.compute.shards import get_local_rows


class LayeredModule(Protocol):
    """A module that knows its layers."""

    def modules_by_depth(self) -> Sequence[Sequence[nn.Module | None]]:
        """The embedding, then each layer, as groups of modules."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As of a module."""
        ...


class ShardedModel:
    """A model whose weights are sharded over the processes.

    The matrices of a layer are gathered together, in the precision of matrix products; all else (embeddings, norms,
    head) is gathered in float32 for the whole step. The shares stay float32.
    """

    def __init__(self, lm: LayeredModule, module: nn.Module, compute: ExecutionContext) -> None:
        """Shards a model in place; its parameters are new objects from here on.

        lm: may have been built within `ShardNewParameters`.
        module: what is trained: the model, or what it is a part of.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        # a linear map may return a view; nothing changes it in place
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
        mesh = init_device_mesh(compute.device.type, (compute.world.size,))
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
        if compute.dtype != torch.float32:
            policy = MixedPrecisionPolicy(compute.dtype, torch.float32, cast_forward_inputs=False)
        rows = {name: get_local_rows(parameter) for name, parameter in lm.named_parameters() if parameter.is_meta}
        for linears in _linears_by_layer(lm):
            fully_shard(linears, mesh=mesh, mp_policy=policy)
        self.module = module
        root = fully_shard(self.module, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
        torch_private.allocate_meta_tensors_(self.module, compute.device)
        for name, parameter in lm.named_parameters():
            if name in rows:
                get_local_rows(parameter).copy_(rows.pop(name))
        # now, since a validation may come before the first step, and then the first layer would be taken for the root
        torch_private.initialize_fsdp_(root)
        self._sharded_modules = [part for part in self.module.modules() if isinstance(part, FSDPModule)]
        self._compute = compute

    @contextmanager
    def gather_by_layer(self) -> Iterator[None]:
        """A context in which all processes compute in step, each with the weights of one layer at a time."""
        root = self._sharded_modules[0]
        with convert_peer_errors():
            root.unshard()
            try:
                yield
            finally:
                torch_private.reset_fsdp_passes_(self._sharded_modules)
                root.reshard()

    @contextmanager
    def gather_all_for_inference(self) -> Iterator[None]:
        """A context in which every process holds all weights and computes by itself, without gradients."""
        root = self._sharded_modules[0]
        root.set_reshard_after_forward(False)
        with convert_peer_errors():
            for part in self._sharded_modules:
                part.unshard()
        try:
            with self._compute.autocast():
                yield
        finally:
            torch_private.reset_fsdp_passes_(self._sharded_modules)
            for part in self._sharded_modules:
                part.reshard()
            root.set_reshard_after_forward(True)
            root.set_reshard_after_forward(False, recurse=False)


def _linears_by_layer(lm: LayeredModule) -> Iterator[list[nn.Module]]:
    """The linear maps of each layer."""
    for group in lm.modules_by_depth()[1:]:
        linears = [m for part in group if part is not None for m in part.modules() if isinstance(m, nn.Linear)]
        if linears:
            yield cast(list[nn.Module], linears)
