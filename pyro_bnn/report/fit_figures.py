"""Figures of the checks of the fits: ELBO traces, ranks of chains, k-hat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.khat import KHAT_THRESHOLD
from pyro_bnn.report.evaluate import Evaluation
from pyro_bnn.report.numbers import number, with_error
from pyro_bnn.report.theme import (
    Theme,
    canvas,
    colours_of,
    hide_unused,
    name_rows,
    show_counts,
    wrap_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pyro_bnn.report.compare import Comparison

NUM_RANK_BINS = 12
NUM_TRACE_POINTS = 150  # of the smoothed trace
MAX_CHAINS = 8


def has_losses(comparison: Comparison) -> bool:
    """Whether any method has an ELBO trace."""
    return bool(_with_elbo(comparison))


def has_chains(comparison: Comparison) -> bool:
    """Whether any method has Markov chains."""
    return bool(_with_chains(comparison))


def has_khat(comparison: Comparison) -> bool:
    """Whether any method has a k-hat."""
    return any(not np.isnan(entry.checks.khat) for entry in comparison.evaluations.values())


def elbo_traces(comparison: Comparison, theme: Theme) -> Figure:
    """Smoothed ELBO traces, named at their ends."""
    entries = _with_elbo(comparison)
    colours = colours_of(comparison, theme)
    with canvas(theme, 8.2, 3.6) as (figure, (ax,)):
        settled, ends = [], []
        for entry in entries:
            losses = entry.checks.losses
            steps, smooth = _smooth(-losses)
            settled.append(smooth[len(smooth) // 4 :])
            ends.append((smooth[-1], entry.name))
            thin = slice(None, None, max(1, losses.size // 1500))
            ax.plot(
                np.arange(1, losses.size + 1)[thin], -losses[thin], color=colours[entry.name],
                alpha=0.18, lw=0.6, rasterized=True,
            )  # fmt: skip
            ax.plot(steps, smooth, color=colours[entry.name], lw=2)
        low = min(float(part.min()) for part in settled)
        high = max(float(part.max()) for part in settled)
        room = 0.15 * (high - low) or 1.0
        ax.set_ylim(low - room, high + room)
        longest = max(entry.checks.losses.size for entry in entries)
        ax.set_xlim(0, longest)
        _label_ends(ax, ends, colours, gap=0.075 * (high - low + 2 * room))
        ax.set_xlabel("step")
        ax.set_ylabel("ELBO, nats (smoothed)")
    return figure


def describe_elbo(comparison: Comparison) -> str:
    """Words for `elbo_traces`."""
    parts = []
    for entry in _with_elbo(comparison):
        trend = entry.checks.trend
        if trend is None:
            parts.append(f"{entry.name}: too few steps to judge")
        else:
            gain = with_error(trend.gain, trend.standard_error)
            parts.append(f"{entry.name} {gain} over its last {trend.num_steps:,} steps")
    return (
        "ELBO estimates of every step (thin) and their block means (thick); the axis leaves out "
        "the first climb. The trend left at the end, in nats, with the effect of a falling "
        f"learning rate removed: {'; '.join(parts)}."
    )


def rank_plots(comparison: Comparison, theme: Theme) -> Figure:
    """Rank histograms of f at the worst test point, a panel a chain, a row a sampler."""
    entries = _with_chains(comparison)
    columns = min(MAX_CHAINS, max(_chains(entry).shape[0] for entry in entries))
    colours = colours_of(comparison, theme)
    with canvas(
        theme, max(1.9 * columns, 4.0) + 0.6, 2.3 * len(entries) + 0.5, len(entries), columns,
        sharex=True, sharey="row",
    ) as (figure, axes):  # fmt: skip
        for row, entry in enumerate(entries):
            panels = axes[row * columns : (row + 1) * columns]
            draws = _worst_draws(entry)  # [C, S]
            counts = rank_counts(draws)[:columns]  # [C, B]
            expected = draws.shape[1] / NUM_RANK_BINS
            share = 1 / NUM_RANK_BINS
            spread = draws.shape[1] * np.sqrt(share * (1 - share) / ess_within(draws))
            for chain, (ax, count) in enumerate(zip(panels, counts, strict=False)):
                limits = (max(expected - 2.58 * spread, 0), expected + 2.58 * spread)
                edges = np.linspace(0, 1, NUM_RANK_BINS + 1)
                show_counts(ax, count, edges, limits, colours[entry.name], theme)
                ax.set_title(f"chain {chain + 1}", fontsize=10)
                ax.set_xticks([0, 0.5, 1], ["0", "½", "1"])
            hide_unused(panels, len(counts), columns)
            panels[0].set_ylabel(f"{entry.name}\ndraws")
        figure.supxlabel(
            "rank of f among all chains, at the test row with the largest R-hat", fontsize=11
        )
    return figure


def describe_ranks(comparison: Comparison) -> str:
    """Words for `rank_plots`."""
    parts = []
    for entry in _with_chains(comparison):
        convergence = entry.checks.convergence
        assert convergence is not None
        parts.append(
            f"{entry.name}: largest R-hat {convergence.worst_rhat:.3f}, smallest ESS "
            f"{convergence.smallest_ess:,.0f} of {convergence.num_draws:,} draws"
        )
    return (
        "Chains that agree have flat histograms; the grey band allows for their autocorrelation "
        f"(99 % a bar). The function is shown, not weights, which symmetries alias. "
        f"{'; '.join(parts)}."
    )


def khats(comparison: Comparison, theme: Theme) -> Figure:
    """k-hat of every guide with the threshold."""
    entries = [e for e in comparison.ranked if not np.isnan(e.checks.khat)]
    colours = colours_of(comparison, theme)
    with canvas(theme, 8.2, 0.55 * len(entries) + 1.2) as (figure, (ax,)):
        for place, entry in enumerate(entries):
            shape = entry.checks.khat
            ax.plot([0, shape], [place, place], color=colours[entry.name], lw=2.2)
            ax.plot(shape, place, "o", ms=7, color=colours[entry.name])
            ax.annotate(
                number(shape, 2),
                (shape, place),
                xytext=(9, 0),
                textcoords="offset points",
                va="center",
            )
        ax.axvspan(min(0, ax.get_xlim()[0]), KHAT_THRESHOLD, color=theme.band, lw=0, zorder=0)
        right = 1.12 * max(1.0, *(entry.checks.khat for entry in entries))
        ax.set_xlim(min(0.0, *(1.2 * entry.checks.khat for entry in entries)), right)
        name_rows(ax, [entry.name for entry in entries])
        ax.set_xlabel(f"k-hat (grey: below {KHAT_THRESHOLD}, draws can be reweighted)")
    return figure


def describe_khat(comparison: Comparison) -> str:
    """Words for `khats`."""
    parts = [
        f"{entry.name} {number(entry.checks.khat)}"
        for entry in comparison.ranked
        if not np.isnan(entry.checks.khat)
    ]
    return (
        "Pareto k-hat of the importance ratios between posterior and guide over ALL weights: below "
        f"{KHAT_THRESHOLD} the guide's draws can be corrected by weights. Symmetries of the "
        "network count in full, so a large value need not mean poor predictions. "
        f"{'; '.join(parts)}."
    )


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


def _label_ends(
    ax: Axes, ends: list[tuple[float, str]], colours: dict[str, str], gap: float
) -> None:
    """Names lines at their right ends, moved apart where they would overlap."""
    height, last_lines = -np.inf, 1
    for value, name in sorted(ends):
        text = wrap_name(name)
        lines = text.count("\n") + 1
        height = max(value, height + gap * (lines + last_lines) / 2)
        last_lines = lines
        ax.annotate(
            text, (1.015, height), xycoords=("axes fraction", "data"), va="center",
            color=colours[name], fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def _with_elbo(comparison: Comparison) -> list[Evaluation]:
    return [
        entry
        for entry in comparison.ranked
        if entry.checks.losses.size and entry.posterior.elbo_kind != "none"
    ]


def _with_chains(comparison: Comparison) -> list[Evaluation]:
    return [entry for entry in comparison.ranked if entry.checks.chains is not None]
