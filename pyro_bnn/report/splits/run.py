"""One comparison of many: its numbers and verdicts, without its draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyro_bnn.report.compare import Comparison
from pyro_bnn.report.evaluation.units import SDS, Units
from pyro_bnn.report.verdicts.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.data.split import Split


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitRun:
    """What is kept of one comparison: its numbers and verdicts, no draws.

    Attributes:
        split: Number of the split.
        seed: Seed of its fits and draws.
        data_name: Name of the data set.
        task: ``"regression"`` or ``"classification"``.
        units: What the target is called, with its unit where known; of several the unit of errors.
        of_function: Unit of distances of functions.
        num_train: Training rows.
        num_test: Test rows.
        test_rows: Where the test rows stood in the source; None where it is not known.
        table: The comparison's table; None where no method has a posterior.
        findings: Its verdicts.
        lost: Methods without a posterior or without a score, with the reason.
    """

    split: int
    seed: int
    data_name: str
    task: str
    units: str
    num_train: int
    num_test: int
    test_rows: frozenset[int] | None
    _table: pd.DataFrame | None = field(default=None, repr=False)
    findings: tuple[Verdict, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    of_function: str = SDS

    @classmethod
    def of(cls, comparison: Comparison, lost: Mapping[str, str] | None = None) -> SplitRun:
        """The run of a comparison, whose seed is that of its draws.

        Args:
            comparison: The comparison.
            lost: Methods that have no posterior in it, with the reason.
        """
        return dataclasses.replace(
            cls.without_posteriors(comparison.split, comparison.seed, lost or {}),
            num_train=comparison.num_train,
            num_test=comparison.num_test,
            _table=comparison.table,
            findings=tuple(comparison.findings),
        )

    @classmethod
    def without_posteriors(cls, split: Split, seed: int, lost: Mapping[str, str]) -> SplitRun:
        """A run in which no method has a score.

        Args:
            split: The data.
            seed: Seed of the fits.
            lost: All methods, with the reason.
        """
        rows, units = split.test_rows, Units.of(split)
        return cls(
            split=split.index,
            seed=seed,
            data_name=split.name,
            task=split.task,
            units=units.of_errors,
            of_function=units.of_function,
            num_train=len(split.train),
            num_test=len(split.test),
            test_rows=None if rows is None else frozenset(rows.tolist()),
            lost=dict(lost),
        )

    @property
    def name(self) -> str:
        """Split and seed in words."""
        return f"split {self.split}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """Name of the folder of its report."""
        return f"split-{self.split}-seed-{self.seed}"

    @property
    def methods(self) -> list[str]:
        """Methods that have a score, best first."""
        return [] if self._table is None else [str(name) for name in self._table.index]

    @property
    def table(self) -> pd.DataFrame:
        """The comparison's table; without rows where no method has a score."""
        import pandas as pd

        return pd.DataFrame() if self._table is None else self._table
