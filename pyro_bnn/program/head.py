"""The head of a network: a fully connected layer whose outputs are f, and the features it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pyro_bnn.handled import module_of
from pyro_bnn.program.features import features
from pyro_bnn.program.handlers import Evaluate
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

ROUNDING = 1e-4  # of f, by which features times weights may differ from it


class Head(NamedTuple):
    r"""A layer with :math:`f_n = W \phi_n + b`, :math:`\phi_n` no function of W and b.

    Attributes:
        name: Name of the module.
        module: The module.
        entries: Where W and b stand in z, ``[C, D + 1]``, the bias as the last column, or
            ``[C, D]`` without one.
        has_bias: Whether it has one.
    """

    name: str
    module: nn.Module
    entries: Tensor
    has_bias: bool

    @classmethod
    def of(cls, program: Program) -> Head | None:
        """The head of a program; None where f is not the output of its last layer alone.

        It is looked for among the layers whose weight is a site, by runs of the model on two rows:
        f has to be the tensor that the layer returns, the features times the weights, whatever
        these are. So no row has anything done to it behind the layer.
        """
        named = {site.name: site for site in program.sites}
        weights = [s for s in program.sites if s.name.rpartition(".")[2] == "weight" and s.is_real]
        if program.device.type != "cpu" or program.member_params or not weights:
            return None
        weight = weights[-1]
        owner = weight.name.rpartition(".")[0]
        bias = named.get(f"{owner}.bias" if owner else "bias")
        module = _module(program, owner)
        if module is None or len(weight.shape) != 2:
            return None
        if bias is not None and tuple(bias.shape) != tuple(weight.shape[:1]):
            return None
        entries = torch.arange(weight.start, weight.stop).reshape(weight.shape)
        if bias is not None:
            of_bias = torch.arange(bias.start, bias.stop).unsqueeze(-1)
            entries = torch.cat([entries, of_bias], -1)
        head = cls(owner, module, entries, bias is not None)
        return head if head._explains(program) else None

    def is_all_of(self, program: Program) -> bool:
        """Whether the program has no other site."""
        return self.entries.numel() == program.num_latents

    def is_of(self, entries: Tensor) -> bool:
        """Whether these entries of z ``[P']``, in its order, are the head's."""
        return torch.equal(self.entries.flatten().sort().values, entries.cpu())

    def weights(self, z: Tensor) -> Tensor:
        """W and b of z ``[..., P]``: ``[..., C, D + 1]``."""
        return z[..., self.entries]

    def of_rows(
        self, program: Program, z: Tensor, x: Tensor, params: Params | None = None
    ) -> Tensor:
        """Features ``[N, D + 1]`` of rows x at z ``[P]``, 1 for the bias last; a chunk at a time.

        Raises:
            RuntimeError: If the layer is not called once on a row.
        """

        def body(x: Tensor) -> Tensor:
            found, _ = self.seen(program, z, (x,), params)
            if found is None:
                raise RuntimeError(f"{self.name} is not called once on a row")
            return found

        return features(body, x)

    def seen(
        self, program: Program, z: Tensor, rows: Sequence[Tensor], params: Params | None
    ) -> tuple[Tensor | None, Evaluate]:
        """Features of rows, x or x and y, in a run of the model at z ``[P]``; and the run.

        They are None where the layer is not called once, or f is not the tensor that it returns.
        """
        calls: list[tuple[tuple[object, ...], object, int]] = []

        def keep(_: nn.Module, args: tuple[object, ...], out: Any) -> None:
            calls.append((args, out, out._version if isinstance(out, Tensor) else 0))

        # before the hooks of a user, which may change what the layer returns
        handle = self.module.register_forward_hook(keep, prepend=True)
        try:
            with torch.inference_mode(mode=False), torch.no_grad():
                run = program.run(program.constrain(z), tuple(rows), params)
        finally:
            handle.remove()
        args, out, version = calls[0] if len(calls) == 1 else ((), None, 0)
        own = args[0] if len(args) == 1 else None
        shape = len(rows[0]), self.entries.shape[1] - self.has_bias
        if not isinstance(own, Tensor) or own.shape != shape or not is_view_of(run.f, out, version):
            return None, run
        phi = own.detach()
        return (torch.cat([phi, phi.new_ones(len(phi), 1)], -1) if self.has_bias else phi), run

    def _explains(self, program: Program) -> bool:
        """Whether f is the features times the weights, and these leave the features alone."""
        rows, before = program.example[:1], None
        moved = program.initial.clone()
        moved[self.entries] += torch.linspace(0.5, 1.5, self.entries.shape[1]).to(moved)
        for z in (program.initial, moved):
            phi, run = self.seen(program, z, rows, None)
            if phi is None or phi.dtype != program.dtype:
                return False
            f = phi @ self.weights(z).mT
            gap = (f - run.f).abs().max() if f.shape == run.f.shape else torch.tensor(torch.inf)
            if not float(gap) <= ROUNDING * float(f.abs().max()):
                return False
            if before is not None and not torch.equal(before, phi):
                return False
            before = phi
        return True


def is_view_of(f: Tensor, out: object, version: int) -> bool:
    """Whether f has the numbers of another tensor, none of which was written since a version."""
    return (
        isinstance(out, Tensor)
        and f.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
        and (f.storage_offset(), f.numel()) == (out.storage_offset(), out.numel())
        and out._version == version
    )


def _module(program: Program, name: str) -> nn.Module | None:
    """The module of a model that owns a site, by the name in front of the site's own."""
    whole = module_of(program.model)
    if whole is None:
        return None
    modules = dict(whole.named_modules())
    inside = f"net.{name}" if name else "net"  # as ``bayesian`` keeps the network
    return modules.get(inside, modules.get(name))
