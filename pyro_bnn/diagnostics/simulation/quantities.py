"""Numbers of a posterior draw that the data identify: of the function, the data, the scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.diagnostics.shapes import evenly_spread
from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch

MAX_POINTS = 4  # rows of x with one network output
MAX_OUTPUTS = 4

Quantity: TypeAlias = Callable[[Mapping[str, Tensor]], Tensor]


class Quantities:
    r"""Scalars of a draw z, given rows (x, y), that symmetries of a network leave as they are.

    The network output f at rows of x, spread evenly; the log likelihood of all rows and the log
    joint :math:`\log p(y, z \mid x)`, whose ranks depend on the data and find errors that those of
    parameters miss; the value of each site with one entry, such as a noise scale; the Euclidean
    norm of each other site, the same however its units are ordered and signed.

    Args:
        program: The model as tensor functions.
        x: Inputs ``[N, ...]``.
        extra: More quantities by name: each takes the values of all sites by name, ``[S, *shape]``,
            and returns ``[S]``.

    Raises:
        OptionError: If a name of ``extra`` is taken.

    References:
        Modrák, Moon, Kim, Bürkner, Huurre, Faltejsková, Gelman & Vehtari, "Simulation-Based
        Calibration Checking for Bayesian Computation: The Choice of Test Quantities Shapes
        Sensitivity", Bayesian Analysis 2023, arXiv:2211.02383.
    """

    def __init__(
        self, program: Program, x: Tensor, extra: Mapping[str, Quantity] | None = None
    ) -> None:
        self.program, self.extra = program, dict(extra or {})
        num_outputs = program.num_function_outputs
        rows = evenly_spread(len(x), MAX_POINTS if num_outputs == 1 else MAX_POINTS // 2)
        self._outputs = evenly_spread(num_outputs, MAX_OUTPUTS)
        self._x = x[rows]
        points = [
            f"f(x[{row}])" + (f"[{output}]" if num_outputs > 1 else "")
            for row in rows
            for output in self._outputs
        ]
        sites = [
            site.name if site.shape.numel() == 1 else f"norm of {site.name}"
            for site in program.sites
        ]
        self.function_names = tuple(points)
        names = [*points, "log likelihood", "log joint", *sites]
        if taken := [name for name in self.extra if name in names]:
            raise OptionError(
                f"the quantity {taken[0]!r} is there already: give yours another name"
            )
        self.names = (*names, *self.extra)

    def __call__(self, z: Float[Tensor, "S P"], batch: Batch) -> Float[np.ndarray, "S Q"]:
        """Values of all quantities, in the order of ``names``.

        Raises:
            ShapeError: If a quantity of the user's is not ``[S]``.
        """
        with torch.no_grad():
            f = self.functions(z)
            likelihood = self.program.log_likelihood(z, batch).double().sum(-1)
            prior = self.program.log_prior(z, batch.x).double()
            sites = self.program.constrain(z)
            columns = [likelihood, likelihood + prior]
            columns += [_scalar(value.double().reshape(len(z), -1)) for value in sites.values()]
            columns += [extra_value(name, fn, sites) for name, fn in self.extra.items()]
        return torch.cat([f, torch.stack(columns, 1)], 1).cpu().numpy()

    def functions(self, z: Float[Tensor, "S P"]) -> Float[Tensor, "S n"]:
        """The network outputs among them, ``function_names``."""
        return self.program.function(z, self._x)[..., self._outputs].flatten(1).double()


def extra_value(name: str, quantity: Quantity, sites: Mapping[str, Tensor]) -> Float[Tensor, " S"]:
    """A quantity of the user's at the values of all sites.

    Raises:
        ShapeError: If it is not ``[S]``.
    """
    value = quantity(sites).double()
    num_draws = len(next(iter(sites.values())))
    if value.shape != (num_draws,):
        raise ShapeError(
            f"the quantity {name!r} has shape {list(value.shape)} at {num_draws} draws, not "
            f"[{num_draws}]: return one number a draw"
        )
    return value


def _scalar(entries: Float[Tensor, "S n"]) -> Float[Tensor, " S"]:
    """The one entry of a site, or the norm of several."""
    return entries[:, 0] if entries.shape[1] == 1 else entries.norm(dim=1)
