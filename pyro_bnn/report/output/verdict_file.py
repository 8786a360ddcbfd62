"""The answer and the verdicts of a comparison as a document for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyro_bnn.report.comparison import Evaluations

VERSION = 1


def verdict_document(comparison: Evaluations) -> dict[str, Any]:
    """What ``verdicts.json`` holds: the answer, the status of each method, and all verdicts.

    Args:
        comparison: The comparison.

    Returns:
        ``version``; ``data`` with its name, split and rows; ``reference``, ``num_draws`` and
        ``seed``; ``headline``; ``answer``, each statement with its label, text and methods;
        ``status`` by method; ``verdicts``, each with the kind of its rule, its text, whether it
        warns, the methods that it is about (none: the comparison), and what each is to do next.
    """
    split, answer = comparison.split, comparison.answer
    return {
        "version": VERSION,
        "data": {
            "name": split.name,
            "split": split.index,
            "training_rows": comparison.num_train,
            "held_out_rows": comparison.num_test,
        },
        "reference": comparison.reference,
        "num_draws": comparison.num_draws,
        "seed": comparison.seed,
        "headline": answer.headline,
        "answer": [part._asdict() for part in answer.statements],
        "status": dict(answer.status),
        "verdicts": [asdict(finding) for finding in comparison.findings],
    }
