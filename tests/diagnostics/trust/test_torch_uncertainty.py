"""TorchUncertainty's values where definitions agree, kept in a file by `by_torch_uncertainty`."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pyro_bnn.diagnostics import (
    auroc,
    brier,
    class_uncertainty,
    equal_mass_ece,
    fpr95,
    novelty_scores,
    selective_risk,
)
from tests.diagnostics.trust.by_torch_uncertainty import PATH, made_rows

VALUES = json.loads(PATH.read_text())["values"]


def own_values() -> dict[str, float]:
    """The same numbers by this package."""
    draws, y, is_unknown = made_rows()
    probs = draws.mean(0)
    both = class_uncertainty(draws)
    found = selective_risk(1 - probs.max(1), probs.argmax(1) == y)
    # theirs is the trapezium rule from 1/N on, over what is left of the axis
    share = 1 - 1 / len(y)
    score = novelty_scores(draws)["one minus largest probability"]
    return {
        "nll": float(-np.log(probs[np.arange(len(y)), y]).mean()),
        "brier": float(brier(probs, y).mean()),
        "aece": equal_mass_ece(probs, y),
        "aurc": float(np.trapezoid(found.risk, found.kept)) / share,
        "augrc": float(np.trapezoid(found.joint_risk, found.kept)) / share,
        "entropy": float(both.entropy.mean()),
        "mutual_information": float(both.mutual_information.mean()),
        "fpr95": fpr95(score[~is_unknown], score[is_unknown], positive="unknown"),
        "auroc": auroc(score[~is_unknown], score[is_unknown]),
    }


@pytest.mark.parametrize("name", sorted(VALUES))
def test_numbers_are_those_of_torch_uncertainty(name: str) -> None:
    assert_allclose(own_values()[name], VALUES[name], rtol=0, atol=1e-6)
