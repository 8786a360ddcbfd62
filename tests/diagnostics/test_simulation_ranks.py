"""What simulation-based calibration shows and writes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from pyro_bnn.diagnostics import SimulationRanks


def made_up() -> SimulationRanks:
    generator = np.random.default_rng(0)
    uniform = generator.integers(0, 20, 100)
    return SimulationRanks(
        ranks=np.stack([uniform, np.repeat([0, 19], 50)], 1),
        names=("f(x[0])", "b"),
        num_draws=19,
        method="NUTS",
        ess=12.0,
        num_failed=2,
    )


def test_files_and_summary(tmp_path: Path) -> None:
    found = made_up()
    paths = found.save(tmp_path / "sbc")
    assert [path.name for path in paths] == ["ranks.png", "ranks.csv", "table.csv"]
    ranks = pd.read_csv(paths[1], index_col="simulation")
    np.testing.assert_array_equal(ranks.to_numpy(), found.ranks)
    table = pd.read_csv(paths[2], index_col="quantity")
    assert list(table["verdict"]) == ["uniform", "too narrow"]
    assert paths[0].read_bytes()[:4] == b"\x89PNG"
    lines = found.summary().splitlines()
    assert lines[0] == "NUTS: 100 simulated data sets, ranks among 19 draws"
    assert max(map(len, lines)) <= 100
    assert "bias z above 0: draws too high; width z below 0: too narrow" in found.summary()
    text = " ".join(found.summary().split())
    assert "! b: too narrow, chi-square p = " in text
    assert "- Draws are autocorrelated: the chains of the median simulation hold 12" in text
    assert "- NUTS failed on 2 of 102 simulated data sets" in text


def test_the_chance_of_an_error_is_shared_by_two_tests_a_quantity() -> None:
    assert made_up().threshold == 0.01 / 4  # of two quantities


def test_the_figure_has_a_panel_for_each_quantity_and_no_pyplot() -> None:
    pyplot = sys.modules.get("matplotlib.pyplot")
    before = [] if pyplot is None else pyplot.get_fignums()
    figure = made_up().figure
    figure.draw_without_rendering()
    titles = [ax.get_title(loc="left").splitlines() for ax in figure.axes if ax.get_visible()]
    assert [title[0] for title in titles] == ["f(x[0])", "b"]
    assert titles[1][1].startswith("too narrow, p = ")
    # binomial(100, 1/20) leaves 0 .. 11 to chance at 99 %: cdf(11) = 0.9957, cdf(10) = 0.9885
    heights = {float(np.asarray(line.get_ydata())[0]) for line in figure.axes[0].lines}
    assert heights == {0, 11}
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == before
