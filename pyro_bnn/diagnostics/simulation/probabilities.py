"""What variational simulation-based calibration found: probabilities of true values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.simulation.result import FAMILY_ERROR, SimulationResult
from pyro_bnn.diagnostics.simulation.symmetry import symmetry_test
from pyro_bnn.diagnostics.simulation.uniformity import (
    SHAPE_ERRORS,
    Uniformity,
    equal_bins,
    rank_uniformity,
)

CELLS = 1_000  # into which probabilities are sorted for the tests of uniformity
POWER = 0.8  # of the errors that a number of simulations is said to find

MEANINGS = {
    "too narrow": "a U: the true value lies outside of most of q too often",
    "too wide": "a hump: the true value lies in the middle of q too often",
    "biased high": "asymmetric: q lies above the true value too often",
    "biased low": "asymmetric: q lies below the true value too often",
    "skewed": "asymmetric: q leaves more on one side of the true value than on the other",
    "uneven": "some probabilities come too often",
}
"""What a shape of the histogram says of the approximation q."""


class Finding(NamedTuple):
    """What the probabilities of one quantity show.

    Attributes:
        distance: Kolmogorov-Smirnov distance between p and 1 - p.
        symmetry: P-value of that distance.
        uniformity: Tests of uniform p, z-scores of bias and width.
    """

    distance: float
    symmetry: float
    uniformity: Uniformity


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulationProbabilities(SimulationResult):
    r"""Probabilities :math:`p = Q(h(\theta) \le h(\theta_0))` over simulated data sets.

    Attributes:
        probabilities: Of each of D simulations and Q quantities h, in [0, 1].
        names: Names of the quantities.
        exact: Names of those whose probabilities are in closed form; the others are of draws.
        num_draws: Draws L of q behind the others.
        method: Guide that was fitted.
        num_failed: Simulations that the fit failed on, which are left out.
        num_redrawn: Simulated data sets with one value in all rows, drawn again.
    """

    probabilities: Float[np.ndarray, "D Q"]
    exact: frozenset[str]

    NUMBERS, TESTS = "probabilities", 3
    VERDICT = "q is"
    NOTE = "bias z above 0: q too high; width z below 0: too narrow (standard errors)"

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """What each quantity shows, by name.

        Raises:
            OptionError: If there are fewer than 20 simulations.
        """
        num_bins = equal_bins(self.num_simulations, CELLS - 1)
        rows = {}
        for name, p in zip(self.names, self.probabilities.T, strict=True):
            cells = np.minimum((p * CELLS).astype(int), CELLS - 1)
            rows[name] = Finding(*symmetry_test(p), rank_uniformity(cells, CELLS - 1, num_bins))
        return rows

    @property
    def uniformities(self) -> dict[str, Uniformity]:
        """How uniform the probabilities of each quantity are, by name."""
        return {name: finding.uniformity for name, finding in self.findings.items()}

    def tests(self, name: str) -> dict[str, float]:
        """P-values of the tests of symmetry and of uniformity."""
        _, symmetry, uniformity = self.findings[name]
        return {
            "symm. p": symmetry,
            "chi-sq p": uniformity.p_value,
            "smooth p": uniformity.smooth_p_value,
        }

    def is_symmetric(self, name: str) -> bool:
        """Whether no bias of a quantity was found."""
        return self.findings[name].symmetry >= self.threshold

    def words(self, name: str) -> list[str]:
        """What q is in a quantity, in words of `MEANINGS`; none where it is uniform."""
        uniformity, words = self.findings[name].uniformity, []
        if not self.is_symmetric(name):
            side = "biased high" if uniformity.bias > 0 else "biased low"
            words.append(side if abs(uniformity.bias) >= SHAPE_ERRORS else "skewed")
        if uniformity.smallest[1] < self.threshold:
            words += [word for word in uniformity.shapes if word.startswith("too")]
            words = words or ["uneven"]
        return words

    @property
    def title(self) -> str:
        """What the probabilities are, in a few words."""
        return "probabilities of true values under q"

    @property
    def axis(self) -> tuple[str, tuple[float, float]]:
        """What the histograms are over, and their ends."""
        return f"probability that {self.method} puts below the true value", (0, 1)

    def _row(self, name: str) -> dict[str, object]:
        distance, symmetry, _ = self.findings[name]
        row = {"ks_distance": distance, "symmetry_p_value": symmetry}
        return row | super()._row(name) | {"exact": name in self.exact}

    def _verdict(self, name: str) -> str:
        uniformity, limit = self.findings[name], f"{self.threshold:.2g}"
        test, value = uniformity.uniformity.smallest
        tests = f"symmetry p = {uniformity.symmetry:.2g}, {test} p = {value:.2g}"
        words = self.words(name)
        if not words:
            return f"{name}: consistent with a right q, {tests} (threshold {limit})."
        meaning = "; ".join(MEANINGS[word] for word in words)
        return f"{name}: {' and '.join(words)}, {tests} (threshold {limit}): {meaning}."

    def _limits(self) -> list[str]:
        bias, width = self.smallest_errors
        sd = f"an sd that is {width:.0%} too small,"
        found = f"find a bias of {bias:.2g} sds of q, or {sd}"
        if math.isinf(bias):
            found = f"are too few to find a bias, however large; they find {sd}"
        return [
            f"Threshold: {FAMILY_ERROR:g} over {self.TESTS} tests of {len(self.names)} quantities "
            f"(Bonferroni), so that a right q fails at most once in {1 / FAMILY_ERROR:.0f} runs.",
            f"{self.num_simulations} simulations {found} at least four times in five; smaller "
            "errors may pass. To find an error half as large takes four times the simulations.",
        ]

    @property
    def smallest_errors(self) -> tuple[float, float]:
        r"""Bias in sds of q, and share that its sd is too small by, that are found mostly.

        At least four times in five, where posterior and q are Gaussian. The walk of signs behind
        the test of symmetry ends :math:`\sqrt D (2 \Phi(b) - 1)` sds from 0; normal scores of sd r
        have :math:`E (p - 1/2)^2 = \arcsin(r^2 / (1 + r^2)) / 2 \pi`, which the smooth test
        compares with 1/12.
        """
        normal, root = NormalDist(), math.sqrt(self.num_simulations)
        power = normal.inv_cdf(POWER)
        walk = (normal.inv_cdf(1 - self.threshold / 4) + power) / root
        bias = normal.inv_cdf((1 + walk) / 2) if walk < 1 else math.inf
        error = (math.sqrt(-2 * math.log(self.threshold)) + power) / (math.sqrt(180) * root)
        if error >= 1 / 4 - 1 / 12:
            return bias, 1.0
        sine = math.sin(2 * math.pi * (1 / 12 + error))
        return bias, 1 - math.sqrt((1 - sine) / sine)
