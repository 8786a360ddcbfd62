"""What simulation-based calibration found: ranks of true values among posterior draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from pyro_bnn.diagnostics.simulation.result import FAMILY_ERROR, SimulationResult
from pyro_bnn.diagnostics.simulation.uniformity import (
    SHAPES,
    Uniformity,
    equal_bins,
    rank_uniformity,
)

ESS_SHARE = 0.8  # of the ranked draws: the estimate of short chains of independent draws scatters


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulationRanks(SimulationResult):
    """Ranks of true values among posterior draws, over simulated data sets.

    Attributes:
        ranks: Rank of the truth, 0 .. L, in each of D simulations, of each of Q quantities.
        names: Names of the quantities.
        num_draws: Draws L that the truth was ranked among.
        method: Guide or sampler whose posteriors these are.
        ess: Median over simulations of the effective draws that the L were taken from, by the log
            joint; NaN where draws are independent.
        num_failed: Simulations that the engine failed on, which are left out.
        num_diverging: Divergent draws of each of the D simulations, of a sampler that counts them.
        num_redrawn: Simulated data sets with one value in all rows, drawn again.
    """

    ranks: Int[np.ndarray, "D Q"]
    ess: float = float("nan")
    num_diverging: tuple[int, ...] = ()

    NUMBERS, TESTS = "ranks", 2
    VERDICT = "ranks"
    NOTE = "bias z above 0: draws too high; width z below 0: too narrow (in standard errors)"

    @cached_property
    def uniformities(self) -> dict[str, Uniformity]:
        """How uniform the ranks of each quantity are, by name.

        Raises:
            OptionError: If there are too few simulations, or ranks do not fall into equal bins.
        """
        num_bins = equal_bins(self.num_simulations, self.num_draws)
        return {
            name: rank_uniformity(column, self.num_draws, num_bins)
            for name, column in zip(self.names, self.ranks.T, strict=True)
        }

    @property
    def p_values(self) -> Float[np.ndarray, " Q"]:
        """P-values ``[Q]`` of the chi-square tests of uniform ranks."""
        return np.array([uniformity.p_value for uniformity in self.uniformities.values()])

    def tests(self, name: str) -> dict[str, float]:
        """P-values of the chi-square test of a quantity and of the smooth test."""
        uniformity = self.uniformities[name]
        return {"chi-sq p": uniformity.p_value, "smooth p": uniformity.smooth_p_value}

    def words(self, name: str) -> list[str]:
        """What the posterior of a quantity is, in words of `SHAPES`; none where it is uniform."""
        return [] if self.is_uniform(name) else list(self.uniformities[name].shapes)

    @property
    def title(self) -> str:
        """What the ranks are, in a few words."""
        return f"ranks among {self.num_draws} draws"

    @property
    def axis(self) -> tuple[str, tuple[float, float]]:
        """What the histograms are over, and their ends."""
        label = f"rank of the true value among {self.num_draws} draws of {self.method}"
        return label, (-0.5, self.num_draws + 0.5)

    def _verdict(self, name: str) -> str:
        uniformity, limit = self.uniformities[name], f"{self.threshold:.2g}"
        test, value = uniformity.smallest
        p = f"{test} p = {value:.2g}"
        if self.is_uniform(name):
            return f"{name}: consistent with uniform ranks, {p} (threshold {limit})."
        meaning = "; ".join(SHAPES[word] for word in uniformity.shapes)
        return f"{name}: {self.shape_of(name)}, {p} < {limit}: {meaning}."

    def _limits(self) -> list[str]:
        shapes = [
            f"Threshold: {FAMILY_ERROR:g} over two tests of {len(self.names)} quantities "
            f"(Bonferroni), so that a right posterior fails at most once in "
            f"{round(1 / FAMILY_ERROR)} such runs."
        ]
        if self.ess < ESS_SHARE * self.num_draws:
            shapes.append(
                f"Draws are autocorrelated: the chains of the median simulation hold {self.ess:.0f}"
                f" effective draws of the log joint, fewer than the {self.num_draws} that are "
                "ranked, which alone bends ranks to a U (too narrow). Run longer chains (a larger "
                "num_samples), or rank fewer draws."
            )
        if any(self.num_diverging):
            chains = sum(count > 0 for count in self.num_diverging)
            shapes.append(
                f"{sum(self.num_diverging)} draws diverge, in {chains} of {self.num_simulations} "
                "simulations: their posteriors have parts that these trajectories do not enter, "
                "which may bias ranks. Raise target_accept, or sample in double precision."
            )
        return shapes
