"""What simulations of a calibration found, whatever they count: table, verdicts, picture, files."""

from __future__ import annotations

import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pyro_bnn.diagnostics.bands import BAND_PROBABILITY, binomial_band
from pyro_bnn.diagnostics.simulation.uniformity import Uniformity
from pyro_bnn.files.atomic import made_folder, write_text, written
from pyro_bnn.plotting.theme import METHODS, canvas, grid_shape, hide_unused, show_counts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FAMILY_ERROR = 0.01  # chance that a right posterior is found wrong in any quantity
WIDTH = 100
MAX_COLUMNS = 3  # of panels: room for two words in a title


@dataclass(frozen=True, kw_only=True)
class SimulationResult(ABC):
    """One number of every simulation and quantity, uniform where the posterior is right.

    Attributes:
        names: Names of the quantities.
        num_draws: Draws L of each posterior.
        method: Guide or sampler whose posteriors these are.
        num_failed: Simulations that the engine failed on, which are left out.
        num_redrawn: Simulated data sets with one value in all rows, drawn again.
    """

    names: tuple[str, ...]
    num_draws: int
    method: str
    num_failed: int = 0
    num_redrawn: int = 0

    NUMBERS: ClassVar[str]
    """Name of the attribute ``[D, Q]``, and of its files."""
    TESTS: ClassVar[int]
    """Tests of a quantity."""
    VERDICT: ClassVar[str]
    """Heading of the last column of the summary."""
    NOTE: ClassVar[str]
    """How to read the z-scores of the summary."""

    @property
    @abstractmethod
    def uniformities(self) -> Mapping[str, Uniformity]:
        """How uniform the numbers of each quantity are, by name."""

    @abstractmethod
    def tests(self, name: str) -> dict[str, float]:
        """P-values of all tests of a quantity, by their short names."""

    @abstractmethod
    def words(self, name: str) -> list[str]:
        """What is wrong with a quantity, in a word each; none where no test fails."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What the numbers are, in a few words."""

    @property
    @abstractmethod
    def axis(self) -> tuple[str, tuple[float, float]]:
        """What the histograms are over, and their ends."""

    @abstractmethod
    def _verdict(self, name: str) -> str: ...

    @abstractmethod
    def _limits(self) -> list[str]:
        """What limits the verdicts on all quantities, but lost simulations."""

    @property
    def num_simulations(self) -> int:
        """Number D of simulations that have numbers."""
        return len(getattr(self, self.NUMBERS))

    @property
    def threshold(self) -> float:
        """P-value below which a test fails: 0.01 over all tests of all quantities."""
        return FAMILY_ERROR / (self.TESTS * len(self.names))

    @property
    def is_calibrated(self) -> bool:
        """Whether no quantity fails a test: no error was FOUND."""
        return all(self.is_uniform(name) for name in self.names)

    def is_uniform(self, name: str) -> bool:
        """Whether a quantity passes all tests."""
        return min(self.tests(name).values()) >= self.threshold

    def shape_of(self, name: str) -> str:
        """What the posterior of a quantity is, in a word or two: ``"uniform"`` or `words`."""
        return " and ".join(self.words(name)) or "uniform"

    @property
    def table(self) -> pd.DataFrame:
        """A row for each quantity: tests, threshold, z-scores of bias and width, the verdict."""
        import pandas as pd

        rows = {name: self._row(name) for name in self.names}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("quantity")

    def _row(self, name: str) -> dict[str, object]:
        uniformity = self.uniformities[name]
        return {
            "p_value": uniformity.p_value,
            "smooth_p_value": uniformity.smooth_p_value,
            "threshold": self.threshold,
            "bias_z": uniformity.bias,
            "width_z": uniformity.width,
            "verdict": self.shape_of(name),
            "num_simulations": self.num_simulations,
            "num_draws": self.num_draws,
        }

    @property
    def verdicts(self) -> list[str]:
        """A sentence for each quantity, then what limits all of them."""
        return [*(self._verdict(name) for name in self.names), *self._all_limits()]

    def _all_limits(self) -> list[str]:
        limits = self._limits()
        if self.num_failed:
            total = self.num_simulations + self.num_failed
            limits.append(
                f"{self.method} failed on {self.num_failed} of {total} simulated data sets: the "
                f"{self.NUMBERS} are of the others, and say nothing of such data."
            )
        if self.num_redrawn:
            limits.append(
                f"{self.num_redrawn} simulated data sets with one value in all rows were drawn "
                f"again: the {self.NUMBERS} are of data with at least two. Choice by the data "
                f"leaves the {self.NUMBERS} of a right posterior uniform."
            )
        return limits

    @property
    def figure(self) -> Figure:
        """Histograms, a panel a quantity, with the band that chance allows; errors in colour."""
        from matplotlib.ticker import MaxNLocator

        label, ends = self.axis
        rows, columns = grid_shape(len(self.names), MAX_COLUMNS)
        size = max(3.0 * columns, 6.6), 2.0 * rows + 0.9
        with canvas(*size, rows, columns, sharex=True, sharey=True) as (figure, axes):
            for ax, (name, uniformity) in zip(axes, self.uniformities.items(), strict=False):
                num_bins = len(uniformity.counts)
                edges = np.linspace(*ends, num_bins + 1)
                limits = binomial_band(self.num_simulations, 1 / num_bins)
                colour = METHODS[0 if self.is_uniform(name) else 1]
                show_counts(ax, uniformity.counts, edges, limits, colour)
                smallest = min(self.tests(name).values())
                ax.set_title(f"{name}\n{self.shape_of(name)}, p = {smallest:.2g}", fontsize=9)
                ax.yaxis.set_major_locator(MaxNLocator(integer=True))
                ax.set_xlim(*ends)
                first, last = ax.set_xticks([math.ceil(ends[0]), math.floor(ends[1])])
                first.label1.set_horizontalalignment("left")  # so that no panel's last number
                last.label1.set_horizontalalignment("right")  # runs into the next one's first
            hide_unused(axes, len(self.names), columns)
            figure.supylabel("simulations", fontsize=11)
            chance = f"{label} (grey: where chance leaves a bar, {BAND_PROBABILITY:.0%})"
            figure.supxlabel(chance, fontsize=11)
        return figure

    def summary(self) -> str:
        """Table and verdicts for a terminal, at most 100 columns wide."""
        width = max(len("quantity"), *(len(name) for name in self.names))
        tests = "".join(f"  {test:>8}" for test in self.tests(self.names[0]))
        lines = [
            f"{self.method}: {self.num_simulations} simulated data sets, {self.title}",
            "",
            f"{'quantity':{width}}{tests}  {'bias z':>7}  {'width z':>7}  {self.VERDICT}",
        ]
        for name, uniformity in self.uniformities.items():
            tests = "".join(f"  {p:8.2g}" for p in self.tests(name).values())
            sizes = f"{uniformity.bias:7.1f}  {uniformity.width:7.1f}"
            lines.append(f"{name:{width}}{tests}  {sizes}  {self.shape_of(name)}")
        lines += ["", self.NOTE, ""]
        failed = [name for name in self.names if not self.is_uniform(name)]
        if not failed:
            smallest = min(min(self.tests(name).values()) for name in self.names)
            lines.append(
                f"- no error found in {len(self.names)} quantities, smallest p = {smallest:.2g} "
                f"(threshold {self.threshold:.2g})."
            )
        lines += [f"! {self._verdict(name)}" for name in failed]
        lines += [f"- {limit}" for limit in self._all_limits()]
        return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)

    def save(self, folder: str | Path) -> list[Path]:
        """Writes picture and numbers (a row a simulation) by their name, and ``table.csv``.

        Args:
            folder: Folder to write to; made where it does not exist.

        Returns:
            The paths of the files.

        Raises:
            OutputError: If the folder cannot be written to.
        """
        import pandas as pd

        paths = self.paths(made_folder(folder))
        numbers = pd.DataFrame(getattr(self, self.NUMBERS), columns=list(self.names))
        write_text(paths[1], numbers.rename_axis("simulation").to_csv(), follow=False)
        write_text(paths[2], self.table.to_csv(), follow=False)
        with written(paths[0], follow=False) as partial:
            self.figure.savefig(partial, format="png", dpi=150)
        return paths

    def paths(self, folder: Path) -> list[Path]:
        """The files in a folder: picture, numbers, table."""
        return [
            folder / f"{self.NUMBERS}.png",
            folder / f"{self.NUMBERS}.csv",
            folder / "table.csv",
        ]

    def __repr__(self) -> str:
        return self.summary()
