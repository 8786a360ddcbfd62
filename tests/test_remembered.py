"""Densities that are asked for again: the same numbers, unless what they are of has changed."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pyro_bnn.data import Dataset
from pyro_bnn.posterior import cache as remembered
from pyro_bnn.posterior.cache import Remembered
from pyro_bnn.predictive.map_draws import Pass
from tests.guides.exact import exact_posterior
from tests.oracle import linear_gaussian


def test_a_result_is_made_once_for_the_same_tensors() -> None:
    kept, calls = Remembered(), []
    x = torch.arange(3.0)

    def made() -> Tensor:
        calls.append(1)
        return 2 * x

    first = kept.get([x], "double", 12, made)
    first.fill_(7.0)  # what a caller does to it stays with the caller
    assert kept.get([x], "double", 12, made).tolist() == [0.0, 2.0, 4.0]
    assert len(calls) == 1
    assert kept.get([x], "other", 12, made).tolist() == [0.0, 2.0, 4.0]
    x[0] = 5.0
    assert kept.get([x], "double", 12, made).tolist() == [10.0, 2.0, 4.0]
    assert len(calls) == 3
    kept.get([x], "double", remembered.MOST_BYTES + 1, made)
    assert len(calls) == 4


def test_the_rows_of_a_report_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    data = Dataset(oracle.x, oracle.y)
    runs: list[str] = []
    together = Pass.together

    def counted(self: Pass, *args: Any, **options: Any) -> tuple[Tensor, ...]:
        runs.append(self.name)
        return together(self, *args, **options)

    monkeypatch.setattr(Pass, "together", counted)
    posterior.log_likelihood(data, 30)
    log_joint = posterior.log_joint(data, 30)
    assert runs.count("log likelihood") == 1
    z = posterior.unconstrained(30)
    torch.testing.assert_close(log_joint, oracle.log_joint(z), rtol=1e-10, atol=1e-10)
    posterior.log_likelihood(data, 30, seed=1)
    assert runs.count("log likelihood") == 2
    with torch.no_grad():
        cast(Tensor, posterior.guide.loc).add_(0.5)
    moved = posterior.log_joint(data, 30)
    torch.testing.assert_close(moved, oracle.log_joint(posterior.unconstrained(30)))
