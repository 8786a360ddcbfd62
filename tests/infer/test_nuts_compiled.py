"""Compiled chains of NUTS and HMC: the same draws, and the same again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_bnn.infer import HMC, NUTS, compiling
from pyro_bnn.infer.mcmc import chains, hamiltonian
from pyro_bnn.models import MLP
from tests.oracle import linear_gaussian

ENGINES = pytest.mark.parametrize(
    "sampler", [NUTS, lambda **options: HMC(num_steps=8, **options)], ids=["NUTS", "HMC"]
)


@pytest.mark.soak  # make test: below, and a compiled run with a stop in test_nuts_checkpoint
@ENGINES
def test_compiled_the_draws_repeat_and_are_those_of_the_graph(
    sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trajectories multiply rounding; over the first draws it stays far below their spread."""
    monkeypatch.setattr(chains, "MOST_APART", 0)
    oracle = linear_gaussian()
    net = MLP(3, hidden=(4,), activation="tanh").double()
    first, again, graph = (
        sampler(num_chains=3, warmup_steps=3, num_samples=6, compile=option).run(
            net, (oracle.x, oracle.y), seed=4, progress=False
        )
        for option in (True, True, False)
    )
    draws, repeated, expected = (
        fit.unconstrained(18, group_by_chain=True) for fit in (first, again, graph)
    )
    assert "compile" in first.provenance.phases
    assert first.options["compiled"] is True
    assert torch.equal(draws, repeated)
    torch.testing.assert_close(draws, expected, rtol=1e-6, atol=1e-6)
    for name, values in graph.sample_stats.items():
        np.testing.assert_allclose(first.sample_stats[name], values, rtol=1e-5)
        np.testing.assert_array_equal(first.sample_stats[name], again.sample_stats[name])


@pytest.mark.slow("records a step for the compiler")
@pytest.mark.parametrize(
    "compiler", ["interpreted", pytest.param("inductor", marks=pytest.mark.soak)]
)
def test_compiled_each_data_set_has_its_chain(
    compiler: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws of compiled chains that are dropped as they end, against those of the graph.

    Trajectories multiply rounding; over the first draws it stays far below their spread.
    """
    monkeypatch.setattr(chains, "MOST_APART", 0)
    if compiler == "interpreted":
        request.getfixturevalue(compiler)
    oracle = linear_gaussian()
    ys = torch.stack([oracle.y + 5 * i for i in range(6)])

    def run(option: bool) -> tuple[Tensor, dict[str, Any]]:
        nuts = NUTS(warmup_steps=2, num_samples=4, max_tree_depth=2, compile=option)
        return nuts.run_each(oracle.model, oracle.x, ys, progress=False)

    (z, stats), (expected, of_graph) = run(option=True), run(option=False)
    torch.testing.assert_close(z, expected, rtol=1e-6, atol=1e-6)
    for name, values in of_graph.items():
        np.testing.assert_allclose(stats[name], values, rtol=1e-5)


@pytest.mark.usefixtures("uncaptured")
def test_auto_compiles_where_the_run_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """By sizes alone: calls by draws and the steps that each may take, numbers by all chains."""
    oracle = linear_gaussian()
    asked: list[tuple[object, int, int]] = []

    def is_compiled(option: object, num_calls: int, num_numbers: int) -> bool:
        asked.append((option, num_calls, num_numbers))
        return False

    monkeypatch.setattr(hamiltonian, "is_compiled", is_compiled)
    chains: dict[str, Any] = {"num_chains": 2, "warmup_steps": 2}
    for engine_of_draws in (
        NUTS(num_samples=1, **chains),
        NUTS(num_samples=7, **chains),
        HMC(num_samples=1, num_steps=2, **chains),
    ):
        run = engine_of_draws.run(oracle.model, (oracle.x, oracle.y), progress=False)
        assert run.options["compiled"] is False
    (option, few, numbers), (_, many, _), (_, short, _) = asked
    assert (option, numbers, many) == ("auto", 2 * 4, 3 * few)
    assert short == few * 2 / hamiltonian.TYPICAL_STEPS
    assert not compiling.is_compiled("auto", few, numbers)
    assert compiling.is_compiled("auto", 1_300 * few // 3, numbers)  # at the defaults
