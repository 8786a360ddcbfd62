"""What variational simulation-based calibration found: probabilities, table, verdicts, picture."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.simulation.histograms import histograms
from pyro_bnn.diagnostics.simulation.ranks import FAMILY_ERROR, WIDTH
from pyro_bnn.diagnostics.simulation.symmetry import symmetry_test
from pyro_bnn.diagnostics.simulation.uniformity import (
    SHAPE_ERRORS,
    Uniformity,
    equal_bins,
    rank_uniformity,
)
from pyro_bnn.files.atomic import made_folder, write_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

CELLS = 1_000  # into which probabilities are sorted for the tests of uniformity
POWER = 0.8  # of the errors that a number of simulations is said to find
TESTS = 3  # a quantity: of symmetry, and two of uniformity

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


@dataclass(frozen=True, kw_only=True)
class SimulationProbabilities:
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
    names: tuple[str, ...]
    exact: frozenset[str]
    num_draws: int
    method: str
    num_failed: int = 0
    num_redrawn: int = 0

    @property
    def num_simulations(self) -> int:
        """Number D of simulations that have probabilities."""
        return len(self.probabilities)

    @property
    def threshold(self) -> float:
        """P-value below which a test fails: 0.01 over all tests, three a quantity."""
        return FAMILY_ERROR / (TESTS * len(self.names))

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """What each quantity shows, by name.

        Raises:
            OptionError: If there are fewer than 20 simulations.
        """
        num_bins = equal_bins(self.num_simulations, CELLS - 1)
        found = {}
        for name, p in zip(self.names, self.probabilities.T, strict=True):
            cells = np.minimum((p * CELLS).astype(int), CELLS - 1)
            found[name] = Finding(*symmetry_test(p), rank_uniformity(cells, CELLS - 1, num_bins))
        return found

    @property
    def uniformities(self) -> dict[str, Uniformity]:
        """How uniform the probabilities of each quantity are, by name."""
        return {name: found.uniformity for name, found in self.findings.items()}

    @property
    def is_calibrated(self) -> bool:
        """Whether no quantity fails a test: no error was FOUND."""
        return all(self.is_uniform(name) for name in self.names)

    def is_symmetric(self, name: str) -> bool:
        """Whether no bias of a quantity was found."""
        return self.findings[name].symmetry >= self.threshold

    def is_uniform(self, name: str) -> bool:
        """Whether a quantity passes all three tests."""
        smallest = self.findings[name].uniformity.smallest[1]
        return self.is_symmetric(name) and smallest >= self.threshold

    def shape_of(self, name: str) -> str:
        """What q is in a quantity, in a word or two: ``"uniform"`` or words of `MEANINGS`."""
        return " and ".join(self._words(name)) or "uniform"

    def _words(self, name: str) -> list[str]:
        found, words = self.findings[name].uniformity, []
        if not self.is_symmetric(name):
            side = "biased high" if found.bias > 0 else "biased low"
            words.append(side if abs(found.bias) >= SHAPE_ERRORS else "skewed")
        if found.smallest[1] < self.threshold:
            words += [word for word in found.shapes if word.startswith("too")]
            words = words or ["uneven"]
        return words

    @property
    def table(self) -> pd.DataFrame:
        """A row for each quantity: tests, threshold, z-scores of bias and width, the verdict."""
        import pandas as pd

        rows = {
            name: {
                "ks_distance": found.distance,
                "symmetry_p_value": found.symmetry,
                "p_value": found.uniformity.p_value,
                "smooth_p_value": found.uniformity.smooth_p_value,
                "threshold": self.threshold,
                "bias_z": found.uniformity.bias,
                "width_z": found.uniformity.width,
                "exact": name in self.exact,
                "verdict": self.shape_of(name),
                "num_simulations": self.num_simulations,
            }
            for name, found in self.findings.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("quantity")

    @property
    def verdicts(self) -> list[str]:
        """A sentence for each quantity, then what limits all of them."""
        return [*(self._verdict(name) for name in self.names), *self._limits()]

    def _verdict(self, name: str) -> str:
        found, limit = self.findings[name], f"{self.threshold:.2g}"
        test, value = found.uniformity.smallest
        tests = f"symmetry p = {found.symmetry:.2g}, {test} p = {value:.2g}"
        words = self._words(name)
        if not words:
            return f"{name}: consistent with a right q, {tests} (threshold {limit})."
        meaning = "; ".join(MEANINGS[word] for word in words)
        return f"{name}: {' and '.join(words)}, {tests} (threshold {limit}): {meaning}."

    def _limits(self) -> list[str]:
        bias, width = self.smallest_errors
        limits = [
            f"Threshold: {FAMILY_ERROR:g} over {TESTS} tests of {len(self.names)} quantities "
            f"(Bonferroni), so that a right q fails at most once in {1 / FAMILY_ERROR:.0f} runs.",
            f"{self.num_simulations} simulations find a bias of {bias:.2g} sds of q, or an sd that "
            f"is {width:.0%} too small, at least four times in five; smaller errors may pass. To "
            "find an error half as large takes four times the simulations.",
        ]
        if self.num_failed:
            total = self.num_simulations + self.num_failed
            limits.append(
                f"{self.method} failed on {self.num_failed} of {total} simulated data sets: the "
                "probabilities are of the others, and say nothing of such data."
            )
        if self.num_redrawn:
            limits.append(
                f"{self.num_redrawn} simulated data sets with one value in all rows were drawn "
                "again, which leaves the probabilities of a right q uniform."
            )
        return limits

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

    @property
    def figure(self) -> Figure:
        """Histograms of probabilities, a panel a quantity, with the band that chance allows."""
        smallest = {
            name: min(test.symmetry, test.uniformity.smallest[1])
            for name, test in self.findings.items()
        }
        label = f"probability that {self.method} puts below the true value"
        return histograms(self, smallest, (0, 1), label)

    def summary(self) -> str:
        """Table and verdicts for a terminal, at most 100 columns wide."""
        width = max(len("quantity"), *(len(name) for name in self.names))
        lines = [
            f"{self.method}: {self.num_simulations} simulated data sets, probabilities of true "
            "values under q",
            "",
            f"{'quantity':{width}}  {'symm. p':>8}  {'chi-sq p':>8}  {'smooth p':>8}  "
            f"{'bias z':>7}  {'width z':>7}  q is",
        ]
        for name, (_, symmetry, found) in self.findings.items():
            tests = f"{symmetry:8.2g}  {found.p_value:8.2g}  {found.smooth_p_value:8.2g}"
            sizes = f"{found.bias:7.1f}  {found.width:7.1f}"
            lines.append(f"{name:{width}}  {tests}  {sizes}  {self.shape_of(name)}")
        lines += [
            "",
            "bias z above 0: q too high; width z below 0: too narrow (standard errors)",
            "",
        ]
        failed = [name for name in self.names if not self.is_uniform(name)]
        if not failed:
            lines.append(f"- no error found in {len(self.names)} quantities.")
        lines += [f"! {self._verdict(name)}" for name in failed]
        lines += [f"- {limit}" for limit in self._limits()]
        return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)

    def save(self, folder: str | Path) -> list[Path]:
        """Writes ``probabilities.png``, ``probabilities.csv`` and ``table.csv``.

        Args:
            folder: Folder to write to; made where it does not exist.

        Returns:
            The paths of the files.

        Raises:
            OutputError: If the folder cannot be written to.
        """
        import pandas as pd

        folder = made_folder(folder)
        values = pd.DataFrame(self.probabilities, columns=list(self.names))
        stems = ("probabilities.png", "probabilities.csv", "table.csv")
        paths = [folder / stem for stem in stems]
        self.figure.savefig(paths[0], dpi=150)
        write_text(paths[1], values.rename_axis("simulation").to_csv())
        write_text(paths[2], self.table.to_csv())
        return paths

    def __repr__(self) -> str:
        return self.summary()
