r"""K guides of equal weight over all of z, :math:`q(z) = \frac1K \sum_k q_k(z)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from pyro.nn import PyroModuleList
from torch import Tensor

from pyro_bnn.errors import OptionError
from pyro_bnn.guides.guide import Guide
from pyro_bnn.guides.parts.components import component_of
from pyro_bnn.program.handlers import Evaluate, Model
from pyro_bnn.sites import Site


class AutoGuideMixture(Guide):
    r"""Equal mixture of guides that were fitted one by one.

    .. math:: \log q(z) = \log \sum_k q_k(z) - \log K

    A draw is one of a member that is drawn at random, each with the same chance, whatever the mass
    of the mode that it is in. It has a density where every member has one.

    The posteriors of :class:`~pyro_bnn.Ensemble` with a ``member`` are this guide, and it is no
    method of its own.

    Args:
        model: Pyro model.
        init_loc_fn: Not used: members come with their starts.
        members: The guides, set up, or their names and options, as :meth:`options` has them.

    Raises:
        OptionError: If there is none, or one whose draws have values of their own of parameters.
        UnknownNameError: If there is no guide of a name.
    """

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        members: Sequence[Guide | Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn)
        made = [m if isinstance(m, Guide) else Guide.made(m, model) for m in members]
        if not made:
            raise OptionError("members are one guide or more")
        if any(member.member_params for member in made):
            raise OptionError(
                "a member's draws have values of their own of point-estimated parameters, which "
                "those of a mixture do not have: give them priors"
            )
        self.members = PyroModuleList(made)
        self.has_log_prob = all(member.has_log_prob for member in made)
        self.has_moments = all(member.has_moments for member in made)
        self.has_correlations = len(made) > 1 or made[0].has_correlations
        self.kl_kind = "monte_carlo" if self.has_log_prob else "none"
        self.objective = made[0].objective

    @property
    def _guides(self) -> list[Guide]:
        return [cast(Guide, member) for member in self.members]

    def options(self) -> dict[str, Any]:
        """``members``: of each the name of its guide and its options."""
        return {"members": [member.described() for member in self._guides]}

    def check_model(self, sites: Sequence[Site], run: Evaluate) -> None:  # noqa: ARG002
        """Set members up that are not yet, such as those of a file.

        Raises:
            SiteError: If one does not suit.
        """
        for member in self._guides:
            member._is_of_rows = self._is_of_rows
            member.setup(*self._args, **self._kwargs)

    def make_parameters(self, loc: Tensor) -> None:
        """Nothing: those of the members are all."""

    # Draws and density

    @property
    def noise_dim(self) -> int:
        """One number, which says which member is taken, and the longest noise of a member."""
        return 1 + max(member.noise_dim for member in self._guides)

    def transport(self, noise: Tensor) -> Tensor:
        """Draws ``[..., P]``: of each row of noise ``[..., M]`` one of the member that it takes."""
        number = component_of(noise[..., :1], len(self.members))
        own = [m.transport(noise[..., 1 : 1 + m.noise_dim]) for m in self._guides]
        found = own[0]
        for k, z in enumerate(own[1:], 1):
            found = torch.where(number == k, z, found)
        return found

    def log_prob(self, z: Tensor) -> Tensor:
        """Log q(z) ``[...]`` of z ``[..., P]``."""
        if not self.has_log_prob:
            return super().log_prob(z)
        each = torch.stack([member.log_prob(z) for member in self._guides])
        return each.logsumexp(0) - math.log(len(each))

    def atoms(self) -> Tensor | None:
        """The points ``[K, P]`` of all members, where each is one."""
        found = [member.atoms() for member in self._guides]
        points = [atoms for atoms in found if atoms is not None]
        is_even = len({len(atoms) for atoms in points}) == 1
        return torch.cat(points) if len(points) == len(found) and is_even else None

    def centre(self) -> Tensor:
        """Mean of the members' centres, ``[P]``."""
        return torch.stack([member.centre() for member in self._guides]).mean(0)

    def move_to(self, z: Tensor) -> None:
        """Move all members together, so that the mean of their centres is z ``[P]``."""
        shift = z - self.centre()
        for member in self._guides:
            member.move_to(member.centre() + shift)
