"""Mean, spread and shape against a reference, at test rows and off the data."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_bnn.data import Dataset, Split, from_arrays
from pyro_bnn.diagnostics import Probes
from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.compare import find_probes
from pyro_bnn.report.evaluation.against import against
from pyro_bnn.report.verdicts import spread_verdicts
from tests.report.conjugate import LinearPosterior, class_split, regression_split

Change = Callable[[Tensor, Tensor], Tensor]  # of x [N, I] and f [S, N, F]


class Changed(LinearPosterior):
    """The exact posterior, with its functions changed."""

    change: Change

    def function_draws(
        self, x: Tensor, num_samples: int = 1000, seed: int = 0, group_by_chain: bool = False
    ) -> Tensor:
        f = super().function_draws(x, num_samples, seed)
        mean = self._design(x) @ self.exact.mean.T
        return self.change(x, f - mean) + mean

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().predict(*args, **kwargs)
        return dataclasses.replace(found, function_draws=self.function_draws(*args, **kwargs))


def compared(split: Split, change: Change | None, **options: Any) -> Comparison:
    it = LinearPosterior(split, **options)
    if change is not None:
        it = Changed(split, **options)
        it.change = change
    posteriors = {"it": it, "NUTS": LinearPosterior(split, "NUTS", stored=2_000, num_chains=4)}
    return compare(posteriors, split, reference="NUTS")


def spoken(comparison: Comparison) -> dict[str, str]:
    """Verdicts against the reference by kind."""
    kinds = ("mean", "sd ratio", "too wide", "distance")
    return {
        found.kind: found.text.replace("\xa0", " ")
        for found in comparison.findings
        if found.kind in kinds
    }


SPLIT = regression_split(120)


@pytest.mark.slow("a second or more")
def test_the_exact_posterior_is_not_spoken_of() -> None:
    assert spoken(compared(SPLIT, None)) == {}
    assert spoken(compared(class_split(), None)) == {}


def test_half_the_rows_too_narrow_and_half_too_wide_both_speak() -> None:
    """The ratio of the mean spreads is near one."""

    def change(x: Tensor, f: Tensor) -> Tensor:
        return f * torch.where(x.double()[:, :1] > 0, 0.3, 1.7)

    texts = spoken(compared(SPLIT, change))
    assert set(texts) == {"sd ratio", "too wide"}
    num_low = int((SPLIT.test.x[:, 0] <= 0).sum())
    assert f"it at {30 - num_low} of 30 test rows (median ratio" in texts["sd ratio"]
    assert f"it at {num_low} of 30 test rows (median ratio" in texts["too wide"]


def test_a_mean_three_sds_off_speaks_and_not_of_its_spread() -> None:
    def change(_: Tensor, f: Tensor) -> Tensor:
        return f + 3 * f.std(0)

    comparison = compared(SPLIT, change)
    texts = spoken(comparison)
    assert set(texts) == {"mean"}
    assert "by more than 0.5 of its epistemic sds at a tenth of the rows or more" in texts["mean"]
    assert "it at 30 of 30 test rows (median " in texts["mean"]
    row = comparison.table.loc["it"]
    assert f"distance {row['distance']:.3g}, between halves of NUTS 0.0" in texts["mean"]
    assert abs(float(row["mean_shift"]) - 3) < 0.2


@pytest.mark.slow("about a second")
def test_a_few_rows_are_no_fault_and_a_tenth_is() -> None:
    first = SPLIT.test.x[:, 0].double()
    for rank, speaks in ((-1, False), (-6, True)):  # the largest of 30, the six largest
        limit = first.sort().values[rank]

        def change(x: Tensor, f: Tensor, limit: Tensor = limit) -> Tensor:
            inside = (x.double()[:, :1] >= limit) & (x[:, :1] <= first.max())
            return f * torch.where(inside, 0.3, 1.0)

        texts = spoken(compared(SPLIT, change))
        assert ("test rows" in texts.get("sd ratio", "")) is speaks


def test_a_posterior_too_narrow_in_the_gap_alone_is_seen_there() -> None:
    """As of independent weights: at the data all is well, and the held-out rows are at the data."""
    rng = np.random.default_rng(0)
    x = 0.3 * rng.normal(size=(120, 1)) + np.where(np.arange(120) % 2, 1.0, -1.0)[:, None]
    split = from_arrays(x, x[:, 0] + 0.1 * rng.normal(size=120), test_fraction=0.25)

    def change(x: Tensor, f: Tensor) -> Tensor:
        return f * torch.where(x.double().abs() < 0.3, 0.3, 1.0)

    comparison = compared(split, change)
    texts = spoken(comparison)
    assert set(texts) == {"sd ratio"}
    found = texts["sd ratio"]
    assert "test rows" not in found
    counts = re.search(r"it at (\d+) of 36 .*data, (\d+) of 16 between, .*, 0 of 4 beyond", found)
    assert counts is not None
    probes = comparison.probes
    assert probes is not None
    assert int(counts[1]) == int((np.abs(probes.x) < 0.3).sum())
    assert int(counts[2]) == int((np.abs(probes.x[:16]) < 0.3).sum()) >= 8


def test_another_shape_with_the_mean_and_the_spread_speaks_as_such() -> None:
    """Two modes where the reference has one: W1 between (+-1) and N(0, 1) is 0.48."""

    def change(_: Tensor, f: Tensor) -> Tensor:
        return f.sign() * f.square().mean(0).sqrt()

    texts = spoken(compared(SPLIT, change))
    assert set(texts) == {"distance"}
    assert "it at the test rows (distance " in texts["distance"]
    assert "modes or tails may be missing" in texts["distance"]


@pytest.mark.slow("a second or more")
def test_probabilities_that_hardly_vary_are_not_compared() -> None:
    """At rows where the reference is sure to 0.01, a ratio of spreads does not matter."""
    comparison = compared(class_split(), None, spread=0.2)
    at_rows = comparison.evaluations["it"].at_rows
    assert at_rows is not None
    assert at_rows.sd_ratio.values.size < 0.9 * 90 * 3
    assert "outputs at test rows" in spoken(comparison)["sd ratio"]


@pytest.mark.parametrize("shape", [(60, 1, 4, 4), (60, 5, 3)])
def test_images_and_sequences_have_no_probes(shape: tuple[int, ...]) -> None:
    data = Dataset(torch.randn(*shape), torch.zeros(60))
    probes, why = find_probes(Split(data, data, "regression", "pictures", 0))
    assert probes is None
    assert why == f"inputs of shape {list(shape)} and type torch.float32 are no table of numbers"


def test_several_outputs_are_not_counted_by_kind() -> None:
    """Those whose spread matters may be as many as the probes."""
    rng = np.random.default_rng(0)
    sd = np.full((10, 2), 1e-4)
    sd[5:] = 0.2  # ten outputs, of the last five probes
    reference, own = sd * rng.normal(size=(4, 200, 10, 2)), 0.3 * sd * rng.normal(size=(400, 10, 2))
    counts = {"between": 5, "along": 0, "beyond": 5}
    at = against(own, reference, where="outputs at probes", least_sd=0.01, counts=counts)
    assert at.sd_ratio.values.shape == (10,)
    assert spread_verdicts._narrow(at, "").startswith("at 10 of 10 outputs at probes (median")
    own, reference = own[..., 1:], reference[..., 1:]
    at = against(own, reference, where="probes", counts=counts)
    assert "at 10 of 10 probes, 5 of 5 between, 5 of 5 bey" in spread_verdicts._narrow(at, "")


def test_where_there_are_no_probes_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    none = Probes(x=np.zeros((0, 3)), counts={"between": 0, "along": 0, "beyond": 0})
    monkeypatch.setattr(sys.modules[find_probes.__module__], "probe_rows", lambda *_: none)
    comparison = compared(SPLIT, None, spread=0.5)
    assert "off data" not in comparison.summary()
    assert "test rows" in spoken(comparison)["sd ratio"]
    note = comparison.table.loc["NUTS", "notes"]
    assert "not compared with others off the data: its training inputs leave no gap" in note
