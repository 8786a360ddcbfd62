"""What simulation-based calibration found: ranks, their table, verdicts and picture."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from pyro_bnn.diagnostics.simulation.histograms import histograms
from pyro_bnn.diagnostics.simulation.uniformity import (
    SHAPES,
    Uniformity,
    equal_bins,
    rank_uniformity,
)
from pyro_bnn.files.atomic import made_folder, write_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FAMILY_ERROR = 0.01  # chance that a right posterior is found wrong in any quantity
ESS_SHARE = 0.8  # of the ranked draws: the estimate of short chains of independent draws scatters
WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class SimulationRanks:
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
    names: tuple[str, ...]
    num_draws: int
    method: str
    ess: float = float("nan")
    num_failed: int = 0
    num_diverging: tuple[int, ...] = ()
    num_redrawn: int = 0

    @property
    def num_simulations(self) -> int:
        """Number D of simulations that have ranks."""
        return len(self.ranks)

    @property
    def threshold(self) -> float:
        """P-value below which ranks are not uniform: 0.01 over the tests, two a quantity."""
        return FAMILY_ERROR / (2 * len(self.names))

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
        return np.array([found.p_value for found in self.uniformities.values()])

    @property
    def is_calibrated(self) -> bool:
        """Whether no quantity fails a test: no error was FOUND."""
        return all(self.is_uniform(name) for name in self.names)

    def is_uniform(self, name: str) -> bool:
        """Whether the ranks of a quantity pass both tests."""
        return self.uniformities[name].smallest[1] >= self.threshold

    def shape_of(self, name: str) -> str:
        """What the posterior of a quantity is, in a word or two: ``"uniform"`` or `SHAPES`."""
        found = self.uniformities[name]
        return "uniform" if self.is_uniform(name) else " and ".join(found.shapes)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each quantity: p-values, threshold, z-scores of bias and width, the verdict."""
        import pandas as pd

        rows = {
            name: {
                "p_value": found.p_value,
                "smooth_p_value": found.smooth_p_value,
                "threshold": self.threshold,
                "bias_z": found.bias,
                "width_z": found.width,
                "verdict": self.shape_of(name),
                "num_simulations": self.num_simulations,
                "num_draws": self.num_draws,
            }
            for name, found in self.uniformities.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("quantity")

    @property
    def verdicts(self) -> list[str]:
        """A sentence for each quantity, then what limits all of them."""
        found = [self._verdict(name) for name in self.names]
        chance = round(1 / FAMILY_ERROR)
        found.append(
            f"Threshold: {FAMILY_ERROR:g} over two tests of {len(self.names)} quantities "
            f"(Bonferroni), so that a right posterior fails at most once in {chance} such runs."
        )
        if self.ess < ESS_SHARE * self.num_draws:
            found.append(
                f"Draws are autocorrelated: the chains of the median simulation hold {self.ess:.0f}"
                f" effective draws of the log joint, fewer than the {self.num_draws} that are "
                "ranked, which alone bends ranks to a U (too narrow). Run longer chains (a larger "
                "num_samples), or rank fewer draws."
            )
        if any(self.num_diverging):
            chains = sum(count > 0 for count in self.num_diverging)
            found.append(
                f"{sum(self.num_diverging)} draws diverge, in {chains} of {self.num_simulations} "
                "simulations: their posteriors have parts that these trajectories do not enter, "
                "which may bias ranks. Raise target_accept, or sample in double precision."
            )
        if self.num_failed:
            total = self.num_simulations + self.num_failed
            found.append(
                f"{self.method} failed on {self.num_failed} of {total} simulated data sets: the "
                "ranks are of the others, and say nothing of such data."
            )
        if self.num_redrawn:
            found.append(
                f"{self.num_redrawn} simulated data sets with one value in all rows were drawn "
                "again: the ranks are of data with at least two. Choice by the data leaves the "
                "ranks of a right posterior uniform."
            )
        return found

    def _verdict(self, name: str) -> str:
        found, limit = self.uniformities[name], f"{self.threshold:.2g}"
        test, value = found.smallest
        p = f"{test} p = {value:.2g}"
        if self.is_uniform(name):
            return f"{name}: consistent with uniform ranks, {p} (threshold {limit})."
        meaning = "; ".join(SHAPES[word] for word in found.shapes)
        return f"{name}: {self.shape_of(name)}, {p} < {limit}: {meaning}."

    @property
    def figure(self) -> Figure:
        """Rank histograms, a panel a quantity, with the band that chance allows."""
        smallest = {name: test.smallest[1] for name, test in self.uniformities.items()}
        label = f"rank of the true value among {self.num_draws} draws of {self.method}"
        return histograms(self, smallest, (-0.5, self.num_draws + 0.5), label)

    def summary(self) -> str:
        """Table and verdicts for a terminal, at most 100 columns wide."""
        width = max(len("quantity"), *(len(name) for name in self.names))
        lines = [
            f"{self.method}: {self.num_simulations} simulated data sets, ranks among "
            f"{self.num_draws} draws",
            "",
            f"{'quantity':{width}}  {'chi-sq p':>8}  {'smooth p':>8}  {'bias z':>7}  {'width z':>7}"
            "  ranks",
        ]
        for name, found in self.uniformities.items():
            tests = f"{found.p_value:8.2g}  {found.smooth_p_value:8.2g}"
            sizes = f"{found.bias:7.1f}  {found.width:7.1f}"
            lines.append(f"{name:{width}}  {tests}  {sizes}  {self.shape_of(name)}")
        lines += [
            "",
            "bias z above 0: draws too high; width z below 0: too narrow (in standard errors)",
            "",
        ]
        failed = [name for name in self.names if not self.is_uniform(name)]
        if not failed:
            smallest = min(found.smallest[1] for found in self.uniformities.values())
            lines.append(
                f"- all {len(self.names)} quantities consistent with uniform ranks, smallest p = "
                f"{smallest:.2g} (threshold {self.threshold:.2g})."
            )
        lines += [f"! {self._verdict(name)}" for name in failed]
        lines += [f"- {verdict}" for verdict in self.verdicts[len(self.names) :]]
        return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)

    def save(self, folder: str | Path) -> list[Path]:
        """Writes ``ranks.png``, ``ranks.csv`` (a row a simulation) and ``table.csv``.

        Args:
            folder: Folder to write to; made where it does not exist.

        Returns:
            The paths of the files.

        Raises:
            OutputError: If the folder cannot be written to.
        """
        import pandas as pd

        folder = made_folder(folder)
        ranks = pd.DataFrame(self.ranks, columns=list(self.names)).rename_axis("simulation")
        paths = [folder / name for name in ("ranks.png", "ranks.csv", "table.csv")]
        self.figure.savefig(paths[0], dpi=150)
        write_text(paths[1], ranks.to_csv())
        write_text(paths[2], self.table.to_csv())
        return paths

    def __repr__(self) -> str:
        return self.summary()
