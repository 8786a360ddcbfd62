"""Simulated parameters and data: what is drawn, drawn again, and refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn import models, priors
from pyro_bnn.diagnostics import simulation_based_calibration
from pyro_bnn.diagnostics.simulation import simulations
from pyro_bnn.diagnostics.simulation.simulations import (
    ENGINE,
    PRIOR,
    proper_program,
    simulate,
    stream_seed,
)
from pyro_bnn.errors import DataError, ModelError, SiteError
from pyro_bnn.program.handlers import Model
from tests.diagnostics.made_engines import LINEAR, Conjugate, X


def test_no_engine_starts_at_the_truth() -> None:
    program = proper_program(LINEAR, X)
    made = simulate(program, X, 20, seed=0)
    for number, truth in enumerate(made.z):
        (start,) = program.prior_draws(1, X, stream_seed(0, ENGINE, number))
        assert not torch.equal(start, truth)
        (own,) = program.prior_draws(1, X, stream_seed(0, PRIOR, number, 0))
        assert torch.equal(own, truth)


def coin(x: Tensor, y: Tensor | None = None) -> None:
    """Two classes whose log odds b are N(0, 4), the same for all rows."""
    b = pyro.sample("b", dist.Normal(torch.tensor(0.0).double(), torch.tensor(2.0).double()))
    f = pyro.deterministic("f", b.expand(x.shape[0], 1))
    with pyro.plate("data", x.shape[0]):
        pyro.sample("y", dist.Bernoulli(logits=f.squeeze(-1)), obs=y)


class GridPosterior:
    """The posterior of `coin` on a grid."""

    def run_each(
        self, model: Model, x: Tensor, ys: Tensor, *, seed: int = 0, progress: bool = True
    ) -> tuple[Tensor, Mapping[str, NDArray[Any]]]:
        assert ((ys.sum(1) > 0) & (ys.sum(1) < ys.shape[1])).all()  # two classes in each
        b = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
        heads = ys.sum(1, keepdim=True)
        log_p = heads * b - ys.shape[1] * b.exp().log1p() - b**2 / 8  # [C, grid]
        generator = torch.Generator().manual_seed(seed)
        places = torch.multinomial(
            (log_p - log_p.max()).exp(), 99, replacement=True, generator=generator
        )
        return b[places].unsqueeze(-1), {}


@pytest.mark.slow("a second or more")
def test_data_of_one_class_are_drawn_again_and_ranks_stay_uniform() -> None:
    found = simulation_based_calibration(
        coin, X[:3], GridPosterior(), num_simulations=120, progress=False
    )
    assert found.num_redrawn > 30
    assert found.uniformities["b"].p_value > 0.001
    assert abs(found.uniformities["b"].width) < 4
    assert found.verdicts[-1].startswith(f"{found.num_redrawn} simulated data sets with one value")


def test_data_that_never_vary_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulations, "MAX_REDRAWS", 20)

    def sure(x: Tensor, y: Tensor | None = None) -> None:
        b = pyro.sample("b", dist.Normal(torch.tensor(0.0), torch.tensor(1.0)))
        f = pyro.deterministic("f", 60 + b.expand(x.shape[0], 1))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("y", dist.Bernoulli(logits=f.squeeze(-1)), obs=y)

    with pytest.raises(
        DataError, match="20 draws from the prior gave no data of 8 rows with two values"
    ):
        simulation_based_calibration(sure, X, Conjugate(), num_simulations=20)


def scaled(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.poutine.scale(scale=0.1):
        LINEAR(x, y)


def test_models_that_simulate_nothing_are_refused() -> None:
    with pytest.raises(SiteError, match=r"flat prior of layers.0.*: give it a proper one"):
        simulation_based_calibration(
            models.MLP(1, hidden=(2,), prior=priors.Flat()), X.float(), Conjugate()
        )
    rank1 = models.Rank1MLP(1, hidden=(2,))
    with pytest.raises(ModelError, match=r"point estimates: give them priors"):
        simulation_based_calibration(rank1, X.float(), Conjugate())
    with pytest.raises(ModelError, match="the model scales its likelihood"):
        simulation_based_calibration(scaled, X, Conjugate(), num_simulations=20)
