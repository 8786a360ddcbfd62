"""The warm-up of chains: down to a mode, then on as later, while a step is found.

Chains that start at draws of the prior first go downhill, each to a mode of its own, by Adam. Then
they move as later, and a step size that is not an option is found on the way: the scales of the
coordinates at the modes; and three times, as the chains spread, the largest curvature and the
variance of the gradient over batches.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_bnn.infer.sgmcmc.moving_chains import MovingChains
from pyro_bnn.infer.sgmcmc.tuning import coordinate_curvatures, largest_curvature
from pyro_bnn.infer.steps.descent import Descent
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.sites import Site

logger = logging.getLogger("pyro_bnn")

DESCENT = 1 / 3  # of the warm-up
DESCENT_RATE = 0.02  # of Adam at its start
LOOKS = (0, 1 / 3, 2 / 3)  # shares of the rest of the warm-up at which the step is found
SETTLED = 1 / 2  # share of it from which on its mean is taken
NEAR_A_MODE = 0.1  # squared slope of an anchor, beside that of draws, up to which it is at a mode
NUM_BATCHES = 16  # that the variance of the gradient is estimated by


class WarmUp:
    """Steps of chains before their first draw.

    Args:
        chains: The chains.
        z: Where they start ``[C, P]``; it moves on the way down.
        goes_down: Whether they first go to a mode.
        sites: Sites of the model.
        seed: Of the run.

    Attributes:
        z: Where the chains are on the way down ``[C, P]``.
        descent: The optimiser of that way.
        num_descent: Number of its steps.
        num_burn_in: Number of steps of the method before the first draw.
        step_size: The step h, before the schedule's factor; None until it is found.
    """

    def __init__(
        self, chains: MovingChains, z: Tensor, *, goes_down: bool, sites: Sequence[Site], seed: int
    ) -> None:
        self.chains, self.method, self._sites, self._seed = chains, chains.method, sites, seed
        num_steps = self.method.warmup_steps
        self.num_descent = round(DESCENT * num_steps) if goes_down else 0
        self.num_burn_in = num_steps - self.num_descent
        self._looks = {self._look_at(share) for share in LOOKS}
        self.z = z.requires_grad_()
        self.descent = Descent(
            [self.z],
            optimizer=None,
            learning_rate=DESCENT_RATE,
            schedule="cosine",
            num_steps=self.num_descent,
            clip_norm=None,
        )
        self.step_size = self.method.step_size

    def slope_down(self) -> Tensor:
        """The gradient ``[C, P]`` on the way down."""
        return self.chains.slope(self.z.detach(), *next(self.chains.batches))

    def go_down(self, step: int, slope: Tensor) -> None:
        """One step down."""
        self.z.grad = slope
        self.descent.step(step)

    def step_size_at(self, done: int, step: int) -> float:
        """The step size after so many steps of the method, found anew where it is time to.

        Args:
            done: Number of steps of the method.
            step: Number of steps of the run.
        """
        if done == 0:
            self._enter(step)
        if self.method.control == "svrg" and done % self.chains.batches.per_epoch == 0:
            self.chains.set_anchor()
        if done in self._looks:
            self._look(step, is_first=done == 0)
        assert self.step_size is not None
        return self.step_size

    def note_centre(self, done: int) -> None:
        """Take where the chains are into their mean, once they have settled."""
        before = done - round(SETTLED * self.num_burn_in)
        if before >= 0:
            self.chains.tuned.centre.lerp_(self.chains.now["z"], 1 / (before + 1))

    def _enter(self, step: int) -> None:
        """Start the method where the chains are, in coordinates that suit them."""
        method, chains = self.method, self.chains
        z = self.z.detach().clone()
        scale = curvature = torch.ones_like(z[0])
        needs_scale = method.step_size is None or method.has_own_scale
        if needs_scale or method.control == "mode":
            lengths = coordinate_curvatures(chains.slope_of_all, z, self._sites, self._probes(step))
            if method.has_own_scale:
                curvature = lengths
            elif needs_scale:
                scale = lengths.rsqrt()
        state = method.begin(z / scale, method.temperature**0.5 * chains.normal(), curvature)
        chains.now = {name: value.clone() for name, value in state.items()}
        chains.tuned = chains.tuned._replace(scale=scale, centre=z / scale)
        if method.control is not None:
            chains.set_anchor()
        if self.num_descent and (needs_scale or method.control == "mode"):
            self._warn_of_no_mode(chains.slope_of_all(z), lengths, step)

    def _warn_of_no_mode(self, slope: Tensor, curvature: Tensor, step: int) -> None:
        """Warn where the descent ended farther from a mode than draws are, or an anchor may be.

        A draw has :math:`E g_j^2 = H_{jj} T`, at most :math:`D_j T`, and a mode g = 0.
        """
        excess = float((slope.square() / curvature).mean(-1).max()) / self.method.temperature
        logger.info("step %d: the squared slope is %.3g of a draw's", step, excess)
        place = (
            f"the descent of {self.num_descent} steps ended where the squared slope is "
            f"{excess:.3g} times that of a draw"
        )
        if self.method.control == "mode" and excess > NEAR_A_MODE:
            logger.warning(
                "control='mode': %s, so not near a mode, and control variates take little noise "
                "away. Raise warmup_steps or batch_size, start from init=, or take control='svrg'",
                place,
            )
        elif excess > 1:
            logger.warning(
                "%s, so not near the posterior, and the step that is found there does not suit it: "
                "raise warmup_steps, or start from init=, such as a posterior of SVI",
                place,
            )

    def _probes(self, step: int) -> torch.Generator:
        """Random numbers of this step beside those of the chains."""
        return torch.Generator(self.z.device).manual_seed(derived_seed(self._seed, step))

    def _look_at(self, share: float) -> int:
        """The step at a share of the burn-in; with SVRG in the middle of an epoch.

        The noise of its gradient grows from one anchor to the next.
        """
        step, epoch = round(share * self.num_burn_in), self.chains.batches.per_epoch
        middle = step - step % epoch + epoch // 2
        renews = self.method.control == "svrg" and step > 0
        return middle if renews and middle < self.num_burn_in else step

    def _look(self, step: int, *, is_first: bool) -> None:
        """Find the step, and the variance of the gradient, where they are asked for."""
        method, chains = self.method, self.chains
        if method.step_size is not None and not method.uses_variance:
            return
        variance = self._gradient_variance(step, is_first=is_first)
        chains.tuned = chains.tuned._replace(variance=variance)
        if method.step_size is None:
            self.step_size = self._largest_step(step, variance)
        assert self.step_size is not None
        if share := method.lacks_room(self.step_size, variance):
            logger.warning(
                "batches are noisier than the friction allows in %.0f %% of the coordinates, which "
                "will be too hot: lower step_size, or raise friction or batch_size",
                100 * share,
            )

    def _largest_step(self, step: int, variance: Tensor) -> float:
        """The step size that curvature and noise of the gradient allow."""
        method, chains = self.method, self.chains
        units = method.scale(chains.now)
        scale = units * chains.tuned.scale
        curvature = largest_curvature(
            lambda v: scale * chains.slope_of_all(scale * v),
            chains.now["z"] / units,
            self._probes(step),
        )
        mean = float((variance * units.square()).mean()) / method.temperature
        largest = method.largest_step(curvature, mean)
        if method.control == "svrg" and self.step_size is not None:
            # variance seen at the old step; it grows with the step, as chains leave the anchor
            largest = min(largest, (largest * self.step_size) ** 0.5)
        logger.info(
            "step %d: curvature %.3g, variance of the gradient %.3g, so step_size %.3g",
            *(step, curvature, mean, largest),
        )
        return largest

    def _gradient_variance(self, step: int, *, is_first: bool) -> Tensor:
        """Variance of the gradient over batches ``[C, P]``, in the coordinates of the steps."""
        chains = self.chains
        if chains.batches.are_all:
            return torch.zeros_like(chains.tuned.centre)
        here = chains.now
        if is_first and self.method.control:  # at their anchor control variates leave no noise
            away = torch.empty_like(here["z"]).normal_(generator=self._probes(step))
            chains.now = {**here, "z": here["z"] + away}
        # steps of length 0 change nothing
        slopes = [
            chains.advance(next(chains.batches), 0.0, 0.0)[0].clone() for _ in range(NUM_BATCHES)
        ]
        chains.now = here
        return torch.stack(slopes).var(0)
