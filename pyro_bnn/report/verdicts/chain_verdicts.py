"""Verdicts on Markov chains, and on a reference: whether others may be measured against it."""

from __future__ import annotations

from collections.abc import Iterator

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
from pyro_bnn.plotting.numbers import number, percent
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.fit_checks import EXACT_ENGINES
from pyro_bnn.report.verdicts.verdict import Verdict


def chain_verdicts(entry: Evaluation) -> Iterator[Verdict]:
    """All that is wrong with the chains of one method."""
    yield from rhat_verdict(entry)
    yield from ess_verdict(entry)
    yield from divergence_verdict(entry)
    yield from saturation_verdict(entry)
    yield from ebfmi_verdict(entry)


def rhat_verdict(entry: Evaluation) -> Iterator[Verdict]:
    """Chains that disagree about the function, the log likelihood or a scale."""
    if (checks := entry.checks.sampling) is None or not checks.quantities:
        return
    name, worst = max(checks.quantities.items(), key=lambda item: _rhat(item[1].worst_rhat))
    if not worst.worst_rhat <= RHAT_THRESHOLD:
        yield Verdict(
            f"{entry.name}: R-hat {_rhat_text(worst.worst_rhat)} of {_where(name)}, threshold "
            f"{RHAT_THRESHOLD}: the chains have not settled on one posterior; raise warmup_steps "
            "and num_samples.",
            "rhat",
            methods=(entry.name,),
        )


def ess_verdict(entry: Evaluation) -> Iterator[Verdict]:
    """Chains that are worth too few draws, in the bulk or in the tails."""
    if (checks := entry.checks.sampling) is None:
        return
    parts = _few_draws(checks)
    if parts:
        yield Verdict(
            f"{entry.name}: {' and '.join(parts)}, threshold {MIN_ESS}: its quantiles, sds and "
            "R-hat are not precise enough to judge others; raise num_samples.",
            "ess",
            methods=(entry.name,),
        )


def divergence_verdict(entry: Evaluation) -> Iterator[Verdict]:
    """Trajectories that diverged."""
    count = entry.checks.num_divergent
    if count:
        stored = entry.posterior.num_stored_draws
        yield Verdict(
            f"{entry.name}: {count} of {stored} draws diverged, threshold 0: parts of the "
            "posterior may be missed; raise target_accept, or use a non-centred prior.",
            "divergences",
            methods=(entry.name,),
        )


def saturation_verdict(entry: Evaluation) -> Iterator[Verdict]:
    """Trees that were stopped by their largest size, before they turned."""
    checks = entry.checks.sampling
    if checks is not None and checks.saturated > MAX_SATURATED:
        yield Verdict(
            f"{entry.name}: {_saturated(checks)}: trajectories end before they turn, so that "
            "neighbouring draws are alike; raise max_tree_depth.",
            "saturated trees",
            methods=(entry.name,),
        )


def ebfmi_verdict(entry: Evaluation) -> Iterator[Verdict]:
    """Chains that move slowly between energies."""
    checks = entry.checks.sampling
    if checks is not None and checks.ebfmi < MIN_EBFMI:
        yield Verdict(
            f"{entry.name}: {_energies(checks)}: the chains move slowly between energies and may "
            "not have reached the tails; use another parametrisation, such as a non-centred prior.",
            "energy",
            methods=(entry.name,),
        )


def reference_verdict(reference: Evaluation) -> Iterator[Verdict]:
    """A reference that cannot judge others, with its defects."""
    if is_judge(reference):
        return
    checks = reference.checks.sampling
    if checks is None:
        why = "is an approximation, neither exact nor a Markov chain"
        step = "use NUTS chains as the reference"
    else:
        why = f"has defects ({'; '.join(_defects(checks))})"
        step = "mend these first"
    yield Verdict(
        f"The reference {reference.name} {why}: distances and sd ratios to it are shown but not "
        f"judged; {step}.",
        "reference",
        methods=(reference.name,),
    )


def is_judge(entry: Evaluation | None) -> bool:
    """Whether a method is the exact posterior of its model, or chains without a defect."""
    if entry is None:
        return False
    if entry.posterior.engine in EXACT_ENGINES:
        return True
    return entry.checks.sampling is not None and entry.checks.sampling.can_judge


def _defects(checks: ChainChecks) -> Iterator[str]:
    """What keeps chains from judging others, each with its number and its limit."""
    if checks.num_chains < MIN_CHAINS:
        yield f"{checks.num_chains} of at least {MIN_CHAINS} chains"
    if not checks.quantities:
        yield f"fewer than {MIN_DRAWS_A_CHAIN} draws a chain, too few for R-hat"
        return
    name, worst = max(checks.quantities.items(), key=lambda item: _rhat(item[1].worst_rhat))
    if not worst.worst_rhat <= RHAT_THRESHOLD:
        yield f"R-hat {_rhat_text(worst.worst_rhat)} of {_where(name)}, above {RHAT_THRESHOLD}"
    yield from (f"{part}, below {MIN_ESS}" for part in _few_draws(checks))
    if checks.divergent > MAX_DIVERGENT:
        yield (
            f"{percent(checks.divergent, 2)} of draws divergent, above {percent(MAX_DIVERGENT, 1)}"
        )
    if checks.saturated > MAX_SATURATED:
        yield _saturated(checks)
    if checks.ebfmi < MIN_EBFMI:
        yield _energies(checks)


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
    return (
        f"{percent(checks.saturated)} of trees as large as max_tree_depth allows, above "
        f"{percent(MAX_SATURATED, 0)}"
    )


def _energies(checks: ChainChecks) -> str:
    return f"E-BFMI {number(checks.ebfmi, 2)} of the worst chain, below {MIN_EBFMI}"


def _where(name: str) -> str:
    return "f at the worst test row" if name == "f" else f"the {name}" if " " in name else name


def _rhat(value: float) -> float:
    """As a key: undefined is the worst."""
    return float("inf") if value != value else value


def _rhat_text(value: float) -> str:
    return number(value, 4) or "undefined (all draws are equal)"
