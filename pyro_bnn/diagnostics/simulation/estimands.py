"""What a guide is asked for the probability of: scalars of z, some with a marginal of q known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.diagnostics.simulation.quantities import Quantities, Quantity, extra_value
from pyro_bnn.guides import Guide
from pyro_bnn.program.program import Program
from pyro_bnn.sites import Site


class Estimands:
    """Scalars h of z that a fit estimates: f at rows of x, sites of one entry, the user's.

    Unlike the log joint and norms, whose values under a q of a wrong width are shifted, these are
    as often above the truth as below where the means of q are right.

    Args:
        program: The model as tensor functions.
        x: Inputs ``[N, ...]``.
        weights: Whether each entry of z is one too.
        extra: More by name, as ``Quantities`` takes them.

    Raises:
        OptionError: If a name of ``extra`` is taken.
    """

    def __init__(
        self, program: Program, x: Tensor, *, weights: bool, extra: Mapping[str, Quantity] | None
    ) -> None:
        self._quantities = Quantities(program, x, extra)
        single = {site.name: site.start for site in program.sites if site.shape.numel() == 1}
        names = [*self._quantities.function_names, *single, *self._quantities.extra]
        ends = torch.zeros(2, program.num_latents).to(program.initial)
        ends[1] = 1
        values = program.constrain(ends)
        # a probability is that of z where the value rises with it
        self._entries = {
            names.index(name): start
            for name, start in single.items()
            if bool((values[name][1] > values[name][0]).all())
        }
        self._places: list[int] = []
        for site in program.sites if weights else ():
            if site.name in single:
                continue
            for offset, name in enumerate(_entry_names(site)):
                self._entries[len(names)] = site.start + offset
                self._places.append(site.start + offset)
                names.append(name)
        self.names = tuple(names)
        self._program, self._single = program, tuple(single)

    def __call__(self, z: Float[Tensor, "S P"]) -> Float[np.ndarray, "S Q"]:
        """Values of all scalars, in the order of ``names``."""
        with torch.no_grad():
            sites = self._program.constrain(z)
            columns = [sites[name].reshape(-1) for name in self._single]
            columns += [extra_value(name, fn, sites) for name, fn in self._quantities.extra.items()]
            columns += [z[:, place] for place in self._places]
            parts = [column.double().unsqueeze(1) for column in columns]
            return torch.cat([self._quantities.functions(z), *parts], 1).cpu().numpy()

    def exact(self, guide: Guide, truth: Float[Tensor, " P"]) -> dict[int, float]:
        """Q(h <= h(truth)) of the scalars, by place, whose marginal under q is of a known family.

        That of a mixture is the mean over its components, by their weights.
        """
        with torch.no_grad():
            q = guide.components()
        if q is None or q.others != "normal":
            return {}
        u = ((truth - q.loc) / q.scale).detach().double()
        p = torch.special.ndtr(u)
        for site in self._program.sites:
            if site.name in q.cauchy:
                rows = u[..., site.start : site.stop]
                p[..., site.start : site.stop] = 0.5 + rows.atan() / math.pi
        if p.ndim == 2:
            p = p.mean(0) if q.weights is None else q.weights.to(p) @ p  # [P]
        return {place: float(p[entry]) for place, entry in self._entries.items()}


def _entry_names(site: Site) -> list[str]:
    """``w[0,1]``; entries of z, ``z of mixing[0]``, where the site has others than z."""
    length = site.stop - site.start
    if length != site.shape.numel():
        return [f"z of {site.name}[{entry}]" for entry in range(length)]
    places = itertools.product(*(range(size) for size in site.shape))
    return [f"{site.name}[{','.join(map(str, place))}]" for place in places]
