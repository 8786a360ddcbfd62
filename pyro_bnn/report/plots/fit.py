"""Figures of the checks of the fits: ELBO traces, ranks of chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pyro_bnn.plotting.numbers import number, with_error
from pyro_bnn.plotting.theme import (
    canvas,
    hide_unused,
    show_counts,
    wrap_name,
)
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.fit_checks import ELBO, objective_of
from pyro_bnn.report.plots.panels import DrawnFigure, span, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from pyro_bnn.report.comparison import Evaluations

NUM_RANK_BINS = 12
NUM_TRACE_POINTS = 150  # of the smoothed trace
MAX_CHAINS = 8


def elbo_traces(comparison: Evaluations) -> DrawnFigure:
    """Smoothed ELBO traces, a panel for each evidence; legends go from the highest end down."""
    entries = with_elbo(comparison)
    by_name = {entry.name: entry for entry in entries}
    groups = [
        [by_name[name] for name in by_name if name in names]  # best first
        for names in comparison.evidences
    ]
    groups = [group for group in groups if group]
    names = [wrap_name(entry.name) for entry in entries]
    num_lines = max(name.count("\n") + 1 for name in names) * -(-len(names) // 2)
    heights: dict[str, float] = {}
    with canvas(
        6.6, 2.6 * len(groups) + 1.0 + 0.19 * num_lines, len(groups), 1, sharex=True
    ) as (figure, axes):  # fmt: skip
        lines = [
            line
            for ax, group in zip(axes, groups, strict=True)
            for line in _draw_traces(ax, group, comparison, heights)
        ]
        axes[0].set_xlim(0, max(entry.checks.losses.size for entry in entries))
        axes[-1].set_xlabel("step")
        figure.supylabel("ELBO, nats (smoothed)")
        figure.legend(handles=lines, loc="outside lower left", ncols=2, handlelength=3.2)
    return DrawnFigure(
        figure,
        _describe_elbo(comparison, entries),
        f"ELBO over the steps of the fit, a line a method: at the end {span(heights)} nats.",
    )


def _draw_traces(
    ax: Axes, entries: Sequence[Evaluation], comparison: Evaluations, heights: dict[str, float]
) -> list[Line2D]:
    """The traces of one evidence on axes of their own; the ends go to ``heights``.

    Returns:
        Their lines, the highest end first.
    """
    styles, settled, ends = styles_of(comparison), [], []
    for entry in entries:
        losses, style = entry.checks.losses, styles[entry.name]
        steps, smooth = _smooth(-losses)
        settled.append(smooth[len(smooth) // 4 :])
        thin = slice(None, None, max(1, losses.size // 1500))
        ax.plot(
            np.arange(1, losses.size + 1)[thin], -losses[thin], color=style.colour,
            alpha=0.18, lw=0.6,
        )  # fmt: skip
        (line,) = ax.plot(
            steps, smooth, color=style.colour, ls=style.dashes, lw=2, label=wrap_name(entry.name)
        )
        ends.append((float(smooth[-1]), line))
        heights[entry.name] = float(smooth[-1])
    low = min(float(part.min()) for part in settled)
    high = max(float(part.max()) for part in settled)
    room = 0.15 * (high - low) or 1.0
    ax.set_ylim(low - room, high + room)
    return [line for _, line in sorted(ends, key=lambda end: -end[0])]


def _describe_elbo(comparison: Evaluations, entries: Sequence[Evaluation]) -> str:
    """How to read the traces, and the trends left."""
    parts = []
    for entry in entries:
        trend, doubling = entry.checks.trend, entry.checks.doubling
        if doubling is not None:
            gain = with_error(doubling.gain, doubling.error)
            parts.append(f"{entry.name} {gain} by the second half of {doubling.num_steps:,} steps")
        elif trend is None:
            is_short = bool(entry.checks.unchecked)
            parts.append(
                f"{entry.name}: {'too few steps to judge' if is_short else 'it ended by itself'}"
            )
        else:
            gain = with_error(trend.gain, trend.standard_error)
            parts.append(
                f"{entry.name} {gain} over its last {trend.num_steps:,} steps, at most "
                f"{number(trend.largest, 2)}"
            )
    apart = "" if len(comparison.evidences) == 1 else (
        "Methods of different models, or with different point estimates, bound different "
        "evidences, each in a panel of its own: compare shapes, not heights. "
    )  # fmt: skip
    return (
        "ELBO estimates of every step (thin) and their block means (thick); the axis leaves out "
        f"the first climb; with a step size that falls at the end of each round they rise there. "
        f"{apart}What the steps still gained at the end, in nats: {'; '.join(parts)}."
    )


def rank_plots(comparison: Evaluations) -> DrawnFigure:
    """Rank histograms of f at the worst test point, a panel a chain, a row a sampler."""
    entries = with_chains(comparison)
    columns = min(MAX_CHAINS, max(_chains(entry).shape[0] for entry in entries))
    styles = styles_of(comparison)
    panel = 1.9 if columns <= 4 else 1.4
    with canvas(
        max(panel * columns, 4.0) + 0.6, 2.3 * len(entries) + 0.5, len(entries), columns,
        sharex=True, sharey="row",
    ) as (figure, axes):  # fmt: skip
        for row, entry in enumerate(entries):
            panels = axes[row * columns : (row + 1) * columns]
            draws = _worst_draws(entry)  # [C, S]
            order, titles = chains_in_order(entry)
            counts = rank_counts(draws)[order[:columns]]  # [C, B]
            expected = draws.shape[1] / NUM_RANK_BINS
            share = 1 / NUM_RANK_BINS
            spread = draws.shape[1] * np.sqrt(share * (1 - share) / ess_within(draws))
            for chain, (ax, count) in enumerate(zip(panels, counts, strict=False)):
                limits = (max(expected - 2.58 * spread, 0), expected + 2.58 * spread)
                edges = np.linspace(0, 1, NUM_RANK_BINS + 1)
                show_counts(ax, count, edges, limits, styles[entry.name].colour)
                ax.set_title(titles[chain], fontsize=10)
                ax.set_xticks([0, 0.5, 1], ["0", "½", "1"])
            hide_unused(panels, len(counts), columns)
            panels[0].set_ylabel(f"{wrap_name(entry.name)}\ndraws")
        figure.supxlabel("rank of f among all chains, at the test row with the largest R-hat")
    parts = []
    for entry in entries:
        convergence = entry.checks.convergence
        assert convergence is not None
        apart = entry.checks.clusters
        among = "" if apart is None or len(apart) < 2 else f", chains in {len(apart)} clusters"
        parts.append(
            f"{entry.name}: largest R-hat {convergence.worst_rhat:.3f}, smallest ESS "
            f"{convergence.smallest_ess:,.0f} of {convergence.num_draws:,} draws{among}"
        )
    has_more = any(len(_chains(entry)) > MAX_CHAINS for entry in entries)
    more = f" Of more than {MAX_CHAINS} chains the first {MAX_CHAINS} are drawn."
    return DrawnFigure(
        figure,
        "Chains that agree have flat histograms; the grey band allows for their autocorrelation "
        "(99 % a bar). The function is shown, not weights, which symmetries alias: "
        f"{', '.join(entry.name for entry in entries)}.{more * has_more}",
        f"Rank histograms of the function, a panel a chain. {'; '.join(parts)}.",
    )


def chains_in_order(entry: Evaluation) -> tuple[list[int], list[str]]:
    """Numbers of the chains, those of one cluster side by side, and what each is called."""
    count, apart = _chains(entry).shape[0], entry.checks.clusters
    if apart is None or len(apart) < 2:
        return list(range(count)), [f"chain {chain + 1}" for chain in range(count)]
    order = sorted(range(count), key=lambda chain: (apart.labels[chain], chain))
    return order, [f"chain {chain + 1}\ncluster {apart.labels[chain] + 1}" for chain in order]


def rank_counts(draws: Float[np.ndarray, "C S"]) -> Float[np.ndarray, "C B"]:
    """Counts of each chain's draws in bins of their rank among all chains.

    Example:
        >>> rank_counts(np.arange(24.0).reshape(2, 12)).astype(int)[0].tolist()
        [2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0]
    """
    ranks = draws.ravel().argsort(kind="stable").argsort().reshape(draws.shape)
    bins = ranks * NUM_RANK_BINS // draws.size  # [C, S]
    return np.stack([np.bincount(row, minlength=NUM_RANK_BINS) for row in bins]).astype(float)


def ess_within(draws: Float[np.ndarray, "C S"]) -> float:
    """Effective draws of one chain, from its autocorrelation alone, mean over chains.

    That of all chains together falls where they disagree, which is what the band must show.

    Example:
        >>> bool(150 < ess_within(np.random.default_rng(0).normal(size=(4, 200))) < 260)
        True
    """
    from pyro_bnn import arviz_io

    return float(np.nanmean([arviz_io.ess(chain[None], kind="mean") for chain in draws]))


def _worst_draws(entry: Evaluation) -> Float[np.ndarray, "C S"]:
    convergence = entry.checks.convergence
    assert convergence is not None
    point, output = convergence.worst
    return _chains(entry)[:, :, point, output]


def _chains(entry: Evaluation) -> Float[np.ndarray, "C S N F"]:
    assert entry.checks.chains is not None
    return entry.checks.chains


def _smooth(values: Float[np.ndarray, " T"]) -> tuple[np.ndarray, np.ndarray]:
    """Block means, for a line that shows the trend: middle steps and means."""
    blocks = np.array_split(values, min(NUM_TRACE_POINTS, values.size))
    sizes = np.array([block.size for block in blocks])
    return sizes.cumsum() - sizes / 2, np.array([block.mean() for block in blocks])


def with_elbo(comparison: Evaluations) -> list[Evaluation]:
    """Methods with an ELBO trace, the best first."""
    return [
        entry
        for entry in comparison.ranked
        if entry.checks.losses.size and objective_of(entry.fit) == ELBO
    ]


def with_chains(comparison: Evaluations) -> list[Evaluation]:
    """Markov chains, the best first."""
    return [entry for entry in comparison.ranked if entry.checks.chains is not None]
