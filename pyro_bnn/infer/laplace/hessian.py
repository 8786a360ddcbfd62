"""The precision at a point of any joint density: minus the Hessian of its log, by products."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_bnn.errors import DivergenceError
from pyro_bnn.infer.curvature.precision import Dense, Diagonal
from pyro_bnn.infer.laplace.curvature import DENSE, Structure, positive, require_size
from pyro_bnn.infer.laplace.mode import MinusLogJoint
from pyro_bnn.program.batched import over_draws
from pyro_bnn.program.joint import Joint

COLUMNS = 64  # of the matrix at once

REMEDY = "raise num_steps, or take init=, a trained posterior; a density without bound has no mode"


class HessianOf:
    """Precisions of one structure at any point; as :class:`~.curvature.CurvatureOf` of networks.

    Args:
        objective: Minus the log joint density.
        structure: ``"full"`` or ``"diagonal"``.
        entries: Entries of z ``[P']`` that it is over; the others are held.

    Raises:
        OptionError: If the structure is too large.

    Attributes:
        objective, structure, entries: As they were given.
    """

    def __init__(
        self, objective: MinusLogJoint[Joint], structure: Structure, entries: Tensor | None = None
    ) -> None:
        self.objective, self.structure, self.entries = objective, structure, entries
        if structure == "full":
            size = objective.program.num_latents if entries is None else len(entries)
            require_size(size, f'"diagonal", or a subset of at most {DENSE:,}')
        self._last: tuple[Tensor, Tensor] | None = None  # the point asked for last, and its answer

    def like(self, structure: Structure, entries: Tensor | None) -> HessianOf:
        """That of another structure over other entries."""
        return HessianOf(self.objective, structure, entries)

    def __call__(self, z: Tensor, *, is_mode: bool = False) -> Dense | Diagonal:
        """The precision at z ``[P]``; on the way to a mode with positive eigenvalues for others.

        Raises:
            DivergenceError: If it is not positive definite at a mode; names the eigenvalue.
        """
        if self._last is None or self._last[0] is not z:
            self._last = z, self._hessian(z)
        found, form = self._last[1], Dense if self.structure == "full" else Diagonal
        try:
            return form(found)
        except DivergenceError:
            return form(positive(found, is_mode=is_mode, remedy=REMEDY))

    def _hessian(self, z: Tensor) -> Tensor:
        """The Hessian of minus the log joint over the entries, ``[P', P']`` or its diagonal."""
        times = self.objective.hessian_at(z)
        where = torch.arange(len(z), device=z.device) if self.entries is None else self.entries
        rows = []
        for part in where.split(COLUMNS):
            unit = z.new_zeros(len(part), len(z))
            unit[torch.arange(len(part), device=z.device), part] = 1.0
            products = over_draws(times, unit)  # [p, P]
            own = (
                products[:, where]
                if self.structure == "full"
                else products.gather(1, part[:, None])[:, 0]
            )
            rows.append(own)
        found = torch.cat(rows)
        return 0.5 * (found + found.mT) if self.structure == "full" else found
