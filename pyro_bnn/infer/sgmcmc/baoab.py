r"""BAOAB: Langevin dynamics with momenta, split so that a Gaussian has its exact variance.

.. math:: p \leftarrow p - h \widehat{\nabla U}(z), \quad z \leftarrow z + \tfrac h2 p, \quad
          p \leftarrow c\, p + \sqrt{T (1 - c^2)}\, \xi, \quad z \leftarrow z + \tfrac h2 p,
          \qquad c = e^{-\gamma h}, \; \xi \sim \mathcal N(0, I)

which is BAOAB with its two half kicks B as one, so that it costs one gradient a step; z is the same
after A, and p at the end of a step, half a kick early, has temperature T exactly on a Gaussian.
There, in a direction of curvature lambda, z has variance :math:`T / \lambda` at every stable step,
:math:`h^2 \lambda < 4`; a gradient with variance V over batches adds
:math:`h^2 V (1 + c) / (4 \lambda (1 - c) (1 - h^2 \lambda / 4))` to it.

References:
    Leimkuhler & Matthews, "Rational Construction of Stochastic Numerical Methods for Molecular
    Sampling", Applied Mathematics Research eXpress 2013, arXiv:1203.5428.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_bnn.infer.sgmcmc.dynamics import ChainState, StepInputs
from pyro_bnn.infer.sgmcmc.engine import WithMomenta


@dataclass(frozen=True, kw_only=True)
class BAOAB(WithMomenta):
    r"""Langevin dynamics with momenta whose step leaves a Gaussian as it is; the one to start with.

    Its draws are of :math:`\exp(-U(z) / T)` up to the bias of the step, of which a Gaussian has
    none, and the noise of batches, which heats. Compare with half the step, or look at the
    temperatures in ``sample_stats``: of right draws both are T on average. Each chain has batches
    of its own; with a ``DataLoader`` that is a pass of its own, so it must shuffle. Point-estimated
    parameters of the model are held fixed at their values.

    Without a ``step_size`` one is found in the warm-up. Coordinates are scaled by the root of the
    length of their row of the Hessian at the modes where the chains begin; in these coordinates the
    step is half of the largest stable one, or, with batches, as small as keeps their noise from
    raising the temperature by more than 5 % on average. So friction is in units of one over these
    coordinates' time. With a ``step_size`` the coordinates are those of z.

    Args:
        num_chains: Number of chains C, which move side by side.
        warmup_steps: Steps of a chain that are dropped. Chains that start at draws from the prior
            go down to a mode, by Adam, in the first third of them.
        num_samples: Draws S of each chain that are kept.
        thin: Steps from one draw that is kept to the next, on average.
        step_size: The step h, in units of z times the root of a nat; default found in the warm-up.
        batch_size: Rows a step of a chain; default all. A ``DataLoader`` has its own.
        control: Control variates, which take away most of the noise of batches near a point of each
            chain, at the price of a second gradient a step: ``"mode"`` for the point where it began
            after going down, ``"svrg"`` for one that is renewed with a gradient of all rows after
            every epoch. Default none.
        temperature: T. Of another one than 1 the draws are not of the posterior.
        compile: Whether the step is compiled: ``"auto"`` where the run is long enough to gain from
            it, True always, an error where that cannot be, False never.
        friction: gamma, the rate at which momenta are forgotten, > 0.

    Raises:
        OptionError: If an option is out of its range.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> baoab = BAOAB(num_chains=2, warmup_steps=30, num_samples=5, thin=2)
        >>> posterior = baoab.run(models.MLP(1, hidden=(3,)), (x, x[:, 0]), progress=False)
        >>> sorted(posterior.sample_stats)
        ['configurational_temperature', 'kinetic_temperature', 'step_size']
    """

    def step(
        self, state: ChainState, slope: Tensor, noise: Tensor, inputs: StepInputs
    ) -> ChainState:
        """One step; see the base class."""
        z, p, h = state["z"], state["p"], inputs.step_size
        c = torch.exp(-self.friction * h)
        p = p - h * slope
        z = z + h / 2 * p
        p = c * p + (inputs.temperature * (1 - c * c)).sqrt() * noise
        z = z + h / 2 * p
        return {"z": z, "p": p}
