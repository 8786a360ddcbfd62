r"""A model restricted to :math:`z = z_0 + A t`, as a Pyro model with the one site t ``[R]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution, constraints
from pyro.nn import PyroModule
from torch import Tensor

from pyro_bnn.program.program import Program

SITE = "t"


class RestrictedPrior(TorchDistribution):
    r"""The model's own prior along the subspace, :math:`p(t) \propto p(z_0 + A t)`.

    Its density is not normalised, and there are no draws of it: :meth:`sample` gives standard
    normal t, one column of A around :math:`z_0`, where chains and guides start.

    Args:
        program: The model.
        origin: :math:`z_0` ``[P]``.
        basis: A ``[P, R]``.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real_vector
    has_rsample = False

    def __init__(self, program: Program, origin: Tensor, basis: Tensor) -> None:
        self.program, self.origin, self.basis = program, origin, basis
        event_shape = torch.Size([basis.shape[1]])
        super().__init__(torch.Size(), event_shape, validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Starts ``[*sample_shape, R]``."""
        shape = torch.Size(sample_shape) + self.event_shape
        return torch.randn(shape, dtype=self.basis.dtype).to(self.basis)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log p(z_0 + A t) ``[]`` at t ``[R]``."""
        z = self.origin + self.basis @ value
        return self.program.log_prior(z, self.program.example.x[:1])


class SubspaceModel(PyroModule):
    """The restricted model.

    Args:
        program: The model, without point-estimated parameters that are trained.
        origin: :math:`z_0` ``[P]``.
        basis: A ``[P, R]``.
        prior_scale: Sd of independent Gaussians over t; None for the model's own prior there.
    """

    origin: Tensor
    basis: Tensor

    def __init__(
        self, program: Program, origin: Tensor, basis: Tensor, prior_scale: float | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("origin", origin)
        self.register_buffer("basis", basis)
        self.__dict__["program"] = program
        self.prior_scale = prior_scale

    def prior(self) -> Any:
        """The prior of t."""
        if self.prior_scale is None:
            return RestrictedPrior(self.__dict__["program"], self.origin, self.basis)
        zero = self.origin.new_zeros(self.basis.shape[1])
        return dist.Normal(zero, self.prior_scale).to_event(1)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample or observe y of the model at the weights of t."""
        program: Program = self.__dict__["program"]
        t = pyro.sample(SITE, self.prior())
        values = program.constrain(self.origin + self.basis @ t)
        inner = poutine.condition(program.model, data=values)
        with poutine.block(hide_fn=_is_hidden):
            sampled: Tensor = inner(x, y)
        return sampled


def _is_hidden(msg: Mapping[str, Any]) -> bool:
    """Whether a message is of the weights, and not of f, y or their plate."""
    is_plate = type(msg["fn"]).__name__ == "_Subsample"
    return msg["type"] == "sample" and msg["name"] not in ("f", "y") and not is_plate
