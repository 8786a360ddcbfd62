"""What the figures of the fits show is what was computed."""

import numpy as np
from numpy.testing import assert_allclose

from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.plots.fit import ess_within, rank_counts
from tests.report.conjugate import LinearPosterior, losses
from tests.report.drawn import heights, ys


def test_elbo_traces_leave_out_point_estimates_and_samplers(regression: Comparison) -> None:
    figure = regression.figures["elbo"]
    (ax,) = figure.axes
    names = {str(line.get_label()).replace("\n", "") for line in ax.lines[1::2]}
    assert names == {"narrow", "AutoLowRankMultivariateNormal", "shifted"}
    smooth = max((ys(line) for line in ax.lines[1::2]), key=lambda values: float(values[-1]))
    assert_allclose(
        smooth[-1], -regression.evaluations["narrow"].checks.losses[-27:].mean(), atol=2
    )
    low, high = ax.get_ylim()
    assert low > -400  # the first climb, from -2,300, is left out
    assert low < smooth[-1] < high


def test_the_legend_of_elbos_goes_from_the_highest_to_the_lowest(regression: Comparison) -> None:
    figure = regression.figures["elbo"]
    ends = {str(line.get_label()): float(ys(line)[-1]) for line in figure.axes[0].lines[1::2]}
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == sorted(ends, key=lambda name: -ends[name])
    assert (
        len({str(line.get_linestyle()) + str(line.get_color()) for line in legend.get_lines()}) == 3
    )
    highest, lowest = (names[place].replace("\n", "") for place in (0, -1))
    assert f"({lowest}) to " in regression.figures.alternative("elbo")
    assert f"({highest}) nats." in regression.figures.alternative("elbo")


def test_elbos_of_different_models_are_said_not_to_compare(regression: Comparison) -> None:
    posteriors = {
        name: LinearPosterior(regression.split, losses=losses(), model=name) for name in "ab"
    }
    warning = "compare shapes, not heights"
    figures = compare(posteriors, regression.split).figures
    assert warning in figures.describe("elbo")
    assert len(figures["elbo"].axes) == 2  # a panel each
    assert warning not in regression.figures.describe("elbo")


def test_rank_counts_hold_every_draw_and_are_flat_for_equal_chains() -> None:
    draws = np.random.default_rng(0).permutation(480.0 * np.ones(480)).reshape(4, 120)
    counts = rank_counts(draws + np.arange(480).reshape(120, 4).T)
    assert_allclose(counts, 10.0)
    apart = rank_counts(np.arange(480.0).reshape(4, 120))
    assert apart[0].tolist() == [40, 40, 40] + 9 * [0]


def test_the_band_of_ranks_follows_the_chains_themselves_not_their_disagreement() -> None:
    draws = np.random.default_rng(1).normal(size=(4, 400))
    alike = ess_within(draws)
    assert abs(ess_within(draws + 10 * np.arange(4)[:, None]) / alike - 1) < 0.01


def test_rank_plots_have_a_panel_a_chain(regression: Comparison, classes: Comparison) -> None:
    figure = regression.figures["ranks"]
    assert [ax.get_title(loc="left") for ax in figure.axes] == [f"chain {i}" for i in range(1, 5)]
    apart = classes.figures["ranks"].axes[0]
    band = apart.patches[0].get_extents().transformed(apart.transData.inverted())
    assert heights(apart.patches[-1]).max() > band.y1  # chains that disagree leave the band


def test_words_of_ranks_give_the_worst_chain_statistics(regression: Comparison) -> None:
    row = regression.table.loc["NUTS"]
    words = regression.figures.alternative("ranks")
    assert f"NUTS: largest R-hat {row['rhat']:.3f}, smallest ESS {row['ess']:,.0f} of" in words


def test_a_run_too_short_to_judge_is_described_as_such(regression: Comparison) -> None:
    posterior = LinearPosterior(regression.split, losses=losses(num_steps=50))
    figures = compare({"it": posterior}, regression.split).figures
    assert "it: too few steps to judge" in figures.describe("elbo")


def test_a_run_that_ended_by_itself_is_not_called_too_short(regression: Comparison) -> None:
    posterior = LinearPosterior(
        regression.split, losses=losses(num_steps=50), options={"max_sweeps": 100}
    )
    figures = compare({"it": posterior}, regression.split, num_samples=50).figures
    assert "it: it ended by itself." in figures.describe("elbo")


def test_chains_that_are_not_drawn_are_counted(regression: Comparison) -> None:
    for chains, is_said in ((8, False), (9, True)):
        posterior = LinearPosterior(
            regression.split, method="NUTS", engine="NUTS", stored=100 * chains, num_chains=chains
        )
        figures = compare({"it": posterior}, regression.split, num_samples=50).figures
        assert len(figures["ranks"].axes) == 8
        caption = figures.describe("ranks")
        assert ("Of more than 8 chains the first 8 are drawn." in caption) == is_said


def test_no_trace_is_an_elbo_under_an_improper_prior(regression: Comparison) -> None:
    posteriors = {
        "flat": LinearPosterior(regression.split, losses=losses(num_steps=50), is_flat=True),
        "proper": LinearPosterior(regression.split, losses=losses(num_steps=50)),
    }
    figures = compare(posteriors, regression.split, num_samples=50).figures
    words = figures.describe("elbo")
    assert "proper" in words
    assert "flat" not in words
