"""A network of torch as it becomes part of a model: without wrappers, of plain operations."""

from __future__ import annotations

import copy
from typing import cast

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from pyro_bnn.errors import ModelError, OptionError
from pyro_bnn.layers import GRUCell

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def torch_module(net: nn.Module, hint: str) -> nn.Module:
    """A network that becomes a Bayesian one, as it is.

    Raises:
        OptionError: If it is not a module or is a Pyro model already, for which there is the hint.
        ModelError: If it has no parameters, or a module that gets no priors.
    """
    if not isinstance(net, nn.Module):
        raise OptionError(f"net is a torch.nn.Module, not {net!r}")
    if isinstance(net, PyroModule):
        raise OptionError(f"net is a {type(net).__name__}, a Pyro model already: {hint}")
    for name, module in net.named_modules():
        if reason := _reason_against(module):
            raise ModelError(f"{name or 'net'} is a {type(module).__name__} {reason}")
    if next(net.parameters(), None) is None:
        raise ModelError(f"{type(net).__name__} has no parameters to put a prior on")
    return net


def _reason_against(module: nn.Module) -> str:
    """Why the parameters of a module cannot be replaced by draws, and what to do; else empty."""
    if isinstance(module, torch.jit.ScriptModule):
        return "of torch.jit, whose parameters cannot be replaced by draws: pass the network itself"
    own = (*module._parameters.values(), *module._buffers.values())
    if any(isinstance(value, UninitializedBuffer | UninitializedParameter) for value in own):
        return "whose shapes are not known yet: call the network once on some rows, net(x[:2])"
    for name, value in vars(module).items():
        if isinstance(value, Tensor) and not value.is_leaf and name not in _of_hooks(module):
            return (
                f"whose {name} is computed from parameters and would not follow their draws: "
                f"compute it in forward, and store {name}.detach() if you keep it"
            )
    return ""


def _of_hooks(module: nn.Module) -> set[str]:
    """Names of tensors that hooks, as those of pruning, compute before each forward."""
    hooks = module._forward_pre_hooks.values()
    known = prune.BasePruningMethod | WeightNorm | SpectralNorm
    return {
        getattr(hook, "_tensor_name", getattr(hook, "name", ""))
        for hook in hooks
        if isinstance(hook, known)
    }


def _forget_computed(module: nn.Module, *_: object) -> None:
    """After a forward: no tensor of a draw stays, which could be neither copied nor pickled."""
    for name in _of_hooks(module):
        vars(module).pop(name, None)


def plain_copy(net: nn.Module) -> nn.Module:
    """A copy without wrappers, whose layers can be batched over draws where plain ones exist.

    Graphs of a whole step are compiled here and draws are spread over devices by the engines, so
    that ``torch.compile``, ``DataParallel`` and the like go; names of sites are those of the
    network inside.
    """
    net = _unwrapped(net)
    held = [v for m in net.modules() for v in vars(m).values() if isinstance(v, Tensor)]
    net = copy.deepcopy(net, {id(value): value.detach() for value in held if not value.is_leaf})
    for module in net.modules():
        for name, inner in module._modules.items():  # one module may have several names
            module._modules[name] = None if inner is None else _unwrapped(inner)
    for module in net.modules():
        if _of_hooks(module):
            module.register_forward_hook(_forget_computed)
        for part in (module, *module._forward_pre_hooks.values()):
            if type(part) in PLAIN:
                part.__class__ = PLAIN[type(part)]
    return net


def _unwrapped(net: nn.Module) -> nn.Module:
    while isinstance(net, WRAPPERS) or hasattr(net, "_orig_mod"):
        net = cast(nn.Module, net.module if isinstance(net, WRAPPERS) else net._orig_mod)
    return net


class PReLU(nn.PReLU):
    """``torch.nn.PReLU``, whose kernel cannot be batched over draws of its slope."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map x ``[N, C, ...]``, with a slope for each of C channels, or one of all."""
        columns = (-1, *(1,) * (input.ndim - 2))
        return torch.where(input > 0, input, self.weight.reshape(columns) * input)


class _WeightNorm(parametrizations._WeightNorm):
    """The parametrisation ``weight_norm``, whose kernel has no derivative of directions."""

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        """The direction v at the length g, along every dimension but one."""
        return _of_length(weight_g, weight_v, self.dim)


class _OlderWeightNorm(WeightNorm):
    """The same of ``torch.nn.utils.weight_norm``, a hook."""

    def compute_weight(self, module: nn.Module) -> Tensor:
        """The weight of a module."""
        g, v = (getattr(module, self.name + part) for part in ("_g", "_v"))
        return _of_length(g, v, self.dim)


def _of_length(g: Tensor, v: Tensor, dim: int) -> Tensor:
    """The directions v at the lengths g, one of each entry along a dimension; -1 is one of all."""
    others = [d for d in range(v.ndim) if dim == -1 or d != dim % v.ndim]
    return v * (g / v.square().sum(others, keepdim=True).sqrt())


PLAIN: dict[type, type] = {
    nn.PReLU: PReLU,
    nn.GRUCell: GRUCell,
    parametrizations._WeightNorm: _WeightNorm,
    WeightNorm: _OlderWeightNorm,
}
"""Layers with the same parameters, and of the same values, in plain operations."""
