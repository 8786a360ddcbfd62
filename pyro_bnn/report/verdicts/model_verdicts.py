"""Verdicts on models: which methods answer under which, and what must not be compared for it.

They are no warnings: to compare models is a fair question, and the held-out score answers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.shared_models import (
    same_evidence,
    same_model,
    same_posterior,
    shared_evidences,
    shared_models,
)
from pyro_bnn.report.verdicts.verdict import Judged, Verdict

MAX_SITES = 3  # named; more are counted


def model_verdicts(judged: Judged) -> Iterator[Verdict]:
    """Which methods share a model, which ELBOs compare, which distances are between models.

    Args:
        judged: All methods, and the reference.
    """
    yield from _several_models(judged.entries)
    yield from _several_evidences(judged.entries)
    if judged.reference is not None:
        yield from _other_reference(judged.entries, judged.reference)


def _several_models(evaluations: Sequence[Evaluation]) -> Iterator[Verdict]:
    models = shared_models({entry.name: entry.fit for entry in evaluations})
    if len(models) > 1:
        parts = "; ".join(
            f"{number}, {model.label}: {', '.join(model.methods)}"
            for number, model in enumerate(models, start=1)
        )
        yield Verdict(
            f"The methods answer under {len(models)} models. Model {parts}. Held-out scores "
            "compare them all; ELBOs, and whether a guide did worse than one it contains, only "
            "within a model.",
            "models",
            is_warning=False,
        )


def _several_evidences(evaluations: Sequence[Evaluation]) -> Iterator[Verdict]:
    """Guides of one model whose ELBOs are conditional on point estimates of their own."""
    with_elbo = {e.name: e.fit for e in evaluations if e.fit.elbo_kind != "none"}
    for model in shared_models(with_elbo):
        evidences = shared_evidences({name: with_elbo[name] for name in model.methods})
        if len(evidences) == 1:
            continue
        sites = list(with_elbo[model.methods[0]].point_estimates)
        more = f" and {len(sites) - MAX_SITES} more" if len(sites) > MAX_SITES else ""
        parts = [" and ".join(group) for group in evidences]
        yield Verdict(
            f"The ELBOs of {', '.join(parts[:-1])} and of {parts[-1]} bound different evidences: "
            f"each is conditional on its own trained values of {', '.join(sites[:MAX_SITES])}"
            f"{more}, which are point estimates. They are shown and not compared.",
            "models",
            is_warning=False,
            methods=tuple(model.methods),
        )


def _other_reference(evaluations: Sequence[Evaluation], reference: Evaluation) -> Iterator[Verdict]:
    """Distances that are between models, or between point estimates, and not between posteriors."""
    rest = {e.name: e.fit for e in evaluations if e.at_rows is not None}
    for is_alike, under, cause in (
        (same_model, "answers under another model", "the prior or the network"),
        (same_evidence, "holds other values of the point estimates", "those values"),
        (same_posterior, "answers under other scales of the priors", "these scales"),
    ):
        names = [name for name, own in rest.items() if not is_alike(own, reference.fit)]
        rest = {name: own for name, own in rest.items() if name not in names}
        if names:
            yield Verdict(
                f"Distances and sd ratios of {', '.join(names)} are to {reference.name}, which "
                f"{under}: a difference may come from {cause} and not from the guide. They are "
                "shown and not judged.",
                "models",
                is_warning=False,
                methods=tuple(names),
            )
