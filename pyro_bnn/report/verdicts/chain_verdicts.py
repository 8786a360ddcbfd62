"""Rules on Markov chains, and on a reference: whether others may be measured against it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyro_bnn.diagnostics.chain_clusters import ChainClusters
from pyro_bnn.diagnostics.convergence import (
    MAX_DIVERGENT,
    MAX_SATURATED,
    MIN_CHAINS,
    MIN_DRAWS_A_CHAIN,
    MIN_EBFMI,
    MIN_ESS,
    RHAT_THRESHOLD,
    ChainChecks,
)
from pyro_bnn.diagnostics.energy_error import MAX_BIAS, variance_bias
from pyro_bnn.plotting.numbers import number, percent
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.natures import has_members
from pyro_bnn.report.verdicts.advice import advice
from pyro_bnn.report.verdicts.verdict import FUNCTION, REFIT, UNCHECKED, VerdictRule

SMALLEST_WEIGHT = 0.005  # of a chain that is named
MAX_NAMED = 16  # chains that are named by their clusters
STACK = (
    "to predict weight the chains by bnn.stack_chains(posterior, data); for the posterior take "
    "another parametrisation or prior, as longer chains seldom join modes"
)
TOO_SHORT = f"fewer than {MIN_DRAWS_A_CHAIN} draws a chain, too few for R-hat"


def settle(entry: Evaluation) -> str:
    """What to do about chains that disagree: those in modes of their own are not joined by time.

    Islands of particles are: more of them hold the modes by their weights.
    """
    nature = entry.fit.nature
    are_chains = not (has_members(entry.fit) or nature.has_islands)
    if not (are_chains and clusters_of(entry.checks.clusters)):
        return advice(nature, "settling")
    return STACK


@VerdictRule("rhat", f"R-hat above {RHAT_THRESHOLD}", "raise warmup_steps and num_samples",
             short="chains disagree", against=REFIT, advise=settle).of_each  # fmt: skip
def rhat(entry: Evaluation) -> str:
    """Chains that disagree about the function, the log likelihood or a scale.

    Of members of an ensemble, each in a mode of its own, what a member says of itself.
    """
    checks, within = entry.checks.sampling, entry.checks.rhat_within
    if checks is None or not checks.quantities:
        return ""
    if not has_members(entry.fit):
        worst = _worst_rhat(checks)
        apart = clusters_of(entry.checks.clusters)
        found = apart or "the chains have not settled on one posterior"
        return worst and f"{worst}, threshold {RHAT_THRESHOLD}: {found}"
    if within <= RHAT_THRESHOLD:
        return ""
    return (
        f"R-hat within members {number(within, 4)} of f at the worst test row, threshold "
        f"{RHAT_THRESHOLD}: a member's chain has not settled in its mode"
    )


def clusters_of(clusters: ChainClusters | None) -> str:
    """Chains that keep to functions of their own; empty where all are in one place."""
    if clusters is None or len(clusters) < 2:
        return ""
    sizes = ", ".join(map(str, clusters.sizes))
    groups = [
        [str(chain + 1) for chain, own in enumerate(clusters.labels) if own == group]
        for group in range(len(clusters))
    ]
    named = "; ".join(f"chain{'s' * (len(own) > 1)} {', '.join(own)}" for own in groups)
    who = f": {named}" if len(clusters.labels) <= MAX_NAMED else ""
    return (
        f"{len(clusters.labels)} chains in {len(clusters)} clusters ({sizes}{who}) by their "
        "functions, each in a mode of its own or stuck where it is"
    )


@VerdictRule("stacked", "Chains weighted by stacking, which are not the posterior",
             "predict with it, and take no spread of the function from it",
             short="stacked chains, not the posterior", against=FUNCTION).of_each  # fmt: skip
def stacked(entry: Evaluation) -> str:
    """Chains that were weighted by how they predict, which is not how probable their modes are."""
    if entry.fit.nature.kind != "stacked":
        return ""
    told = entry.fit.options
    weights = ", ".join(
        f"chain {chain}: {weight:.2f}"
        for chain, weight in enumerate(told["weights"], start=1)
        if weight >= SMALLEST_WEIGHT
    )
    gain = number(float(told["log_score"]) - float(told["equal_log_score"]), 2)
    return (
        f"chains of {told['of']} weighted by stacking ({weights}): better predictions than equal "
        f"weights (by {gain} nats a row, of the {told['num_rows']:,} rows that chose them), not "
        "the posterior: weights say which chains predict, not how probable their modes are"
    )


@VerdictRule("short chains", f"Fewer than {MIN_DRAWS_A_CHAIN} draws a chain", "raise num_samples",
             short="chains too short to be checked", against=UNCHECKED,
             fault="few draws").of_each  # fmt: skip
def short_chains(entry: Evaluation) -> str:
    """Chains of too few draws for R-hat."""
    checks = entry.checks.sampling
    if checks is None or checks.quantities:
        return ""
    return f"{TOO_SHORT}: it is not known whether the chains have settled"


@VerdictRule("members", f"R-hat over the members of an ensemble above {RHAT_THRESHOLD}",
             "compare with NUTS, or weight them by bnn.stack_chains to predict",
             short="members in modes of their own").of_each  # fmt: skip
def members(entry: Evaluation) -> str:
    """Members of an ensemble that say different things, by more than each says of itself."""
    checks, within = entry.checks.sampling, entry.checks.rhat_within
    if checks is None or not has_members(entry.fit) or not (worst := _worst_rhat(checks)):
        return ""
    if checks.worst_rhat <= within:
        return ""
    apart = entry.checks.clusters
    among = "" if apart is None or len(apart) < 2 else f" ({len(apart)} clusters of functions)"
    return (
        f"over members, {worst}, threshold {RHAT_THRESHOLD}, and {number(within, 4)} within them: "
        f"members are in different modes{among}. Each member counts the same, however probable its "
        "mode is: this is a mixture of local posteriors"
    )


@VerdictRule("sampler bias", "Variances off by more than a tenth, by the energy errors",
             "lower energy_variance, or use MAMS or NUTS", short="steps too long", against=REFIT,
             fault="step bias").of_each  # fmt: skip
def sampler_bias(entry: Evaluation) -> str:
    """A sampler without a test of acceptance whose steps are too long for its spread to count."""
    bias = entry.checks.sampler_bias
    if not bias > MAX_BIAS:
        return ""
    usual = variance_bias(float(np.median(entry.fit.sample_stats["energy_variance"])))
    return (
        f"its steps are too long, everywhere or in places: if all directions are equally stiff, "
        f"its energy errors imply variances off by {percent(bias, 0)} (by {percent(usual, 0)} at "
        f"the median draw), threshold {percent(MAX_BIAS, 0)}"
    )


@VerdictRule("ess", f"Bulk or tail ESS below {MIN_ESS}", "raise num_samples",
             short="too few effective draws", against=REFIT, fault="few draws").of_each  # fmt: skip
def few_draws(entry: Evaluation) -> str:
    """Too few effective draws; more draws mend none of chains in clusters."""
    checks = entry.checks.sampling
    is_apart = bool(clusters_of(entry.checks.clusters)) and not has_members(entry.fit)
    found = "" if checks is None or is_apart else " and ".join(_few_draws(checks))
    return found and (
        f"{found}, threshold {MIN_ESS}: its quantiles, sds and R-hat are not precise enough to "
        "judge others"
    )


@VerdictRule("divergences", "Divergent trajectories",
             "raise target_accept, or use a non-centred prior", short="divergent trajectories",
             against=REFIT, fault="divergent").of_each  # fmt: skip
def divergences(entry: Evaluation) -> str | None:
    """Trajectories that diverged."""
    count = entry.checks.num_divergent
    if not count:
        return None
    return (
        f"{count} of {entry.fit.num_stored_draws} draws diverged, threshold 0: parts of the "
        "posterior may be missed"
    )


@VerdictRule("saturated trees", "Trees as large as max_tree_depth allows", "raise max_tree_depth",
             short="trees as large as allowed", against=REFIT,
             fault="saturated").of_each  # fmt: skip
def saturated_trees(entry: Evaluation) -> str:
    """Trees as large as allowed."""
    large = "" if entry.checks.sampling is None else _saturated(entry.checks.sampling)
    return large and (
        f"{large}: trajectories end before they turn, so that neighbouring draws are alike"
    )


@VerdictRule("energy", f"E-BFMI below {MIN_EBFMI}",
             "use another parametrisation, such as a non-centred prior", short="low E-BFMI",
             against=REFIT).of_each  # fmt: skip
def energy(entry: Evaluation) -> str:
    """Chains that move slowly between energies."""
    low = "" if entry.checks.sampling is None else _energies(entry.checks.sampling)
    return low and (
        f"{low}: the chains move slowly between energies and may not have reached the tails"
    )


def passed(entry: Evaluation) -> str:
    """What chains without a defect have passed, with the numbers and their limits."""
    checks = entry.checks.sampling
    if checks is None:
        return "it is the posterior itself, in closed form"
    draws = entry.fit.num_stored_draws
    divergent = entry.checks.num_divergent
    counted = "" if divergent is None else f", {divergent} of {draws:,} draws divergent"
    return (
        f"R-hat {checks.worst_rhat:.3f} (at most {RHAT_THRESHOLD}), {checks.smallest_ess:,.0f} "
        f"effective draws, {checks.smallest_ess_tail:,.0f} in the tails (at least "
        f"{MIN_ESS}){counted}"
    )


def _worst_rhat(checks: ChainChecks) -> str:
    """The largest R-hat, undefined above all; empty where all are small enough."""
    values = {name: found.worst_rhat for name, found in checks.quantities.items()}
    far = {name: value for name, value in values.items() if not value <= RHAT_THRESHOLD}
    if not far:
        return ""
    name = max(far, key=lambda name: float("inf") if far[name] != far[name] else far[name])
    value = number(far[name], 4) or "undefined (all draws are equal)"
    return f"R-hat {value} of {_where(name)}"


def _few_draws(checks: ChainChecks) -> list[str]:
    parts = []
    for kind, attribute in (("bulk", "smallest_ess"), ("tail", "smallest_ess_tail")):
        values = {name: getattr(found, attribute) for name, found in checks.quantities.items()}
        few = {name: value for name, value in values.items() if value < MIN_ESS}
        if few:
            name = min(few, key=few.__getitem__)
            parts.append(f"{kind} ESS {few[name]:,.0f} of {_where(name)}")
    return parts


def _saturated(checks: ChainChecks) -> str:
    if not checks.saturated > MAX_SATURATED:
        return ""
    return (
        f"{percent(checks.saturated)} of trees as large as max_tree_depth allows, above "
        f"{percent(MAX_SATURATED, 0)}"
    )


def _energies(checks: ChainChecks) -> str:
    if not checks.ebfmi < MIN_EBFMI:
        return ""
    return f"E-BFMI {number(checks.ebfmi, 2)} of the worst chain, below {MIN_EBFMI}"


def defects(checks: ChainChecks) -> Iterator[str]:
    """What keeps chains from judging others, each with its number and its limit."""
    if checks.num_chains < MIN_CHAINS:
        yield f"{checks.num_chains} of at least {MIN_CHAINS} chains"
    if not checks.quantities:
        yield TOO_SHORT
        return
    if worst := _worst_rhat(checks):
        yield f"{worst}, above {RHAT_THRESHOLD}"
    yield from (f"{part}, below {MIN_ESS}" for part in _few_draws(checks))
    if checks.divergent > MAX_DIVERGENT:
        yield (
            f"{percent(checks.divergent, 2)} of draws divergent, above {percent(MAX_DIVERGENT, 1)}"
        )
    yield from filter(None, (_saturated(checks), _energies(checks)))


def _where(name: str) -> str:
    return "f at the worst test row" if name == "f" else f"the {name}" if " " in name else name
