"""Calibration of plain Pyro models: uniform ranks of exact posteriors, planted errors, refusals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from torch import Tensor

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.diagnostics import SimulationRanks, simulation_based_calibration
from pyro_bnn.diagnostics.simulation.calls import Simulator
from pyro_bnn.errors import (
    DataError,
    DivergenceError,
    ModelError,
    OptionError,
    SiteError,
    UnknownNameError,
)
from pyro_bnn.posterior import CallDraws, Nature, Provenance
from pyro_bnn.program import joint_of
from tests.diagnostics.made_engines import LINEAR, X
from tests.plain_pyro import default_dtype

N, PRIOR, NOISE, OTHER = 4, 2.0, 1.0, 0.5


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with default_dtype(torch.float64):
        yield


def level(y: Tensor, x: Tensor) -> None:
    """A level that two sites observe, with known noise: its posterior is normal."""
    loc = pyro.sample("loc", dist.Normal(0.0, PRIOR))
    pyro.deterministic("square", loc**2)
    with pyro.plate("data", N):
        pyro.sample("y", dist.Normal(loc, NOISE), obs=y)
    pyro.sample("x", dist.Normal(loc, OTHER), obs=x)


CALL = Call(torch.zeros(N), torch.tensor(0.0))


class Conjugate:
    """Draws of the posterior of `level`, or of a wrong one.

    Args:
        shift: Of the mean, in sds.
        widen: Factor of the sd.
        sees: Observed sites that it takes.
    """

    def __init__(
        self, shift: float = 0.0, widen: float = 1.0, sees: tuple[str, ...] = ("y", "x")
    ) -> None:
        self.shift, self.widen, self.sees = shift, widen, sees

    def run(self, model: Any, data: Call, *, seed: int = 0, progress: bool = True) -> CallDraws:
        assert not progress
        joint = joint_of(model, data.args, data.kwargs)
        observed = joint.run_at(joint.initial).observed
        precision, total = PRIOR**-2, 0.0
        for name, noise in (("y", NOISE), ("x", OTHER)):
            if name in self.sees:
                precision += observed[name]["value"].numel() * noise**-2
                total += float(observed[name]["value"].sum()) * noise**-2
        sd = precision**-0.5
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(1, 99, 1, generator=generator) * sd * self.widen
        z = z + total / precision + self.shift * sd
        return CallDraws(joint, z, Provenance("made", "made", nature=Nature(kind="chains")))


def calibrate(
    engine: Any, model: Any = level, call: Call = CALL, **options: Any
) -> SimulationRanks:
    return simulation_based_calibration(model, call, engine, progress=False, **options)


def test_ranks_of_the_exact_posterior_are_uniform() -> None:
    ranks = calibrate(Conjugate(), num_simulations=200)
    assert ranks.names == ("loc", "log likelihood", "log joint")
    assert ranks.is_calibrated, ranks.summary()
    assert ranks.ranks.shape == (200, 3)
    assert ranks.num_failed == 0
    assert ranks.ess > 80  # of 99 independent draws


@pytest.mark.parametrize(
    ("engine", "name", "words"),
    [
        (Conjugate(widen=0.5), "loc", "too narrow"),
        (Conjugate(widen=2.0), "loc", "too wide"),
        (Conjugate(shift=1.0), "loc", "biased high"),
        (Conjugate(sees=("x",)), "log likelihood", "biased low"),
        (Conjugate(sees=("y",)), "log likelihood", "biased low"),
    ],
)
def test_a_wrong_posterior_is_named(engine: Conjugate, name: str, words: str) -> None:
    """One that leaves out a site has uniform ranks of the level: the log likelihood tells."""
    ranks = calibrate(engine, num_simulations=100)
    assert words in ranks.shape_of(name)
    assert not ranks.is_calibrated
    if engine.sees != ("y", "x"):
        assert ranks.is_uniform("loc")


def test_all_observed_sites_are_simulated_at_the_latent_ones() -> None:
    """Moments of (loc, y, x), also where what is held at a value is drawn anew."""
    held = pyro.condition(level, data={"loc": torch.tensor(3.0)})

    def outer(y: Tensor, x: Tensor) -> None:
        pyro.sample("free", dist.Normal(0.0, 1.0))
        held(y, x)

    for model, name in ((level, "latents"), (outer, "data")):
        simulator = Simulator.of(model, CALL)
        made = [simulator.draw(0, number) for number in range(2_000)]
        loc = torch.stack([getattr(one, name)["loc"] for one in made])
        y, x = (torch.stack([one.data[site] for one in made]) for site in ("y", "x"))
        assert y.shape == (2_000, N)
        sds = {"loc": (loc, PRIOR), "y": (y[:, 0] - loc, NOISE), "x": (x - loc, OTHER)}
        for values, sd in sds.values():
            assert abs(values.mean()) < 5 * sd / math.sqrt(2_000)
            assert values.std().item() == pytest.approx(sd, rel=5 / math.sqrt(4_000))
        correlation = np.corrcoef(np.stack([v.numpy() for v, _ in sds.values()]))
        assert np.abs(correlation - np.eye(3)).max() < 5 / math.sqrt(2_000)


def test_sites_are_chosen_by_name() -> None:
    def model(y: Tensor) -> None:
        with pyro.plate("groups", 6):
            z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        scale = pyro.sample("scale", dist.Gamma(2.0, 2.0))
        pyro.deterministic("sum", z.sum())
        pyro.sample("y", dist.Normal(z[..., 0].sum(), scale), obs=y)

    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=1, compile=False)
    few: Any = {"num_simulations": 20, "num_draws": 19}
    call = Call(torch.tensor(0.0))
    names = calibrate(engine, model, call, **few).names
    assert names == (
        *("z[0,0]", "z[2,0]", "z[3,1]", "z[5,1]"),
        *("scale", "log likelihood", "log joint"),
    )
    quantities = {"twice": lambda sites: 2 * sites["sum"]}
    ranks = calibrate(engine, model, call, sites=["sum", "scale"], quantities=quantities, **few)
    assert ranks.names == ("sum", "scale", "log likelihood", "log joint", "twice")
    np.testing.assert_array_equal(ranks.ranks[:, 0], ranks.ranks[:, 4])
    assert math.isnan(ranks.ess)  # draws of a guide are independent
    with pytest.raises(UnknownNameError, match="unknown site 'scales'"):
        calibrate(engine, model, call, sites=["scales"], **few)
    with pytest.raises(OptionError, match="the quantity 'scale' is there already"):
        calibrate(engine, model, call, quantities={"scale": lambda sites: sites["sum"]}, **few)


@pytest.mark.slow("60 runs of NUTS")
def test_nuts_is_calibrated_where_supports_move_and_sites_are_discrete() -> None:
    @config_enumerate
    def model(y: Tensor) -> None:
        alpha = pyro.sample("alpha", dist.Uniform(0.0, 1.0))
        beta = pyro.sample("beta", dist.Uniform(0.0, 1 - alpha))
        with pyro.plate("data", 8):
            kind = pyro.sample(
                "kind", dist.Categorical(torch.stack([alpha, beta, 1 - alpha - beta]))
            )
            pyro.sample("y", dist.Normal(2.0 * kind, 1.0), obs=y)

    engine = bnn.NUTS(num_chains=2, warmup_steps=200, num_samples=500)
    ranks = calibrate(engine, model, Call(torch.zeros(8)), num_simulations=60, num_draws=19)
    assert ranks.names == ("alpha", "beta", "log likelihood", "log joint")
    assert ranks.is_calibrated, ranks.summary()


def test_the_random_state_stays_and_a_seed_repeats() -> None:
    few: Any = {"num_simulations": 20, "num_draws": 19}
    state = torch.get_rng_state()
    first = calibrate(Conjugate(), seed=3, **few)
    assert torch.equal(state, torch.get_rng_state())
    np.testing.assert_array_equal(first.ranks, calibrate(Conjugate(), seed=3, **few).ranks)
    assert (first.ranks != calibrate(Conjugate(), seed=4, **few).ranks).any()


def test_runs_that_fail_are_left_out() -> None:
    class Fails(Conjugate):
        count = 0

        def run(self, *args: Any, **kwargs: Any) -> CallDraws:
            self.count += 1
            if self.count <= 3:
                raise (DivergenceError, DataError)[self.count % 2]("no")
            return super().run(*args, **kwargs)

    ranks = calibrate(Fails(), num_simulations=40, num_draws=19)
    assert ranks.num_failed == 3
    assert len(ranks.ranks) == 37


class Flat:
    def __call__(self, y: Tensor) -> None:
        loc = pyro.sample("loc", dist.ImproperUniform(dist.constraints.real, (), ()))
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)


class _DensityAlone(dist.Normal):
    def rsample(self, sample_shape: Any = ()) -> Tensor:
        raise NotImplementedError

    sample = rsample


def without_draws(y: Tensor) -> None:
    loc = pyro.sample("loc", _DensityAlone(0.0, 1.0))
    pyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def masked(y: Tensor) -> None:
    with poutine.mask(mask=False):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def scaled(y: Tensor) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with poutine.scale(scale=3.0):
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def with_factor(y: Tensor) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    pyro.factor("fixed", torch.tensor(2.0))
    pyro.factor("soft", -(loc**2))
    pyro.sample("y", dist.Normal(loc, 1.0), obs=y)


@config_enumerate
def with_discrete_factor(y: Tensor) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    kind = pyro.sample("kind", dist.Bernoulli(0.5))
    pyro.factor("soft", kind)
    pyro.sample("y", dist.Normal(loc + kind, 1.0), obs=y)


def of_nothing(y: Tensor) -> None:
    pyro.sample("loc", dist.Normal(0.0, 1.0) if y is None else dist.Normal(y, 1.0))


def trained(y: Tensor) -> None:
    scale = pyro.param("scale", torch.tensor(1.0))
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(loc, scale), obs=y)


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (Flat(), SiteError, "nothing can be drawn from the flat prior of loc"),
        (without_draws, SiteError, "nothing can be drawn from the flat prior of loc"),
        (masked, SiteError, "the density of loc under poutine.scale or poutine.mask"),
        (scaled, ModelError, "the density of y is scaled"),
        (with_factor, ModelError, "the factor 'soft' depends on latent sites"),
        (with_discrete_factor, ModelError, "the factor 'soft' depends on latent sites"),
        (of_nothing, ModelError, "the model observes nothing"),
        (trained, ModelError, "there is no prior to draw scale from"),
    ],
)
def test_models_that_simulate_nothing_are_refused(
    model: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        calibrate(Conjugate(), model, Call(torch.tensor(0.0)), num_simulations=20, num_draws=19)


def test_what_stands_for_x_is_told() -> None:
    split = bnn.data.from_arrays(torch.randn(30, 1), torch.randn(30))
    engine = Conjugate()
    few: Any = {"num_simulations": 20, "num_draws": 19}
    pairs = (split.train.x, split.train.y)
    mends = ((split.train, "pass data.x"), (split, "pass split.train.x"), (pairs, "pass x"))
    for wrong, mend in (*mends, ("x", "as a data.Call")):
        for of_guides in (False, True):
            run: Any = simulation_based_calibration
            if of_guides:
                run = bnn.diagnostics.variational_calibration
            with pytest.raises(DataError, match=rf"x takes the inputs of a network .* {mend}"):
                run(LINEAR, cast(Any, wrong), engine, progress=False, **few)
    with pytest.raises(DataError, match=r"simulation_based_calibration takes a data\.Call"):
        bnn.diagnostics.variational_calibration(LINEAR, cast(Any, CALL), cast(Any, engine), **few)
    with pytest.raises(OptionError, match="sites would have no effect on a network on rows"):
        simulation_based_calibration(LINEAR, X, cast(Any, engine), sites=["weight"])


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="the engine keeps 99 draws, fewer than"):
        calibrate(Conjugate(), num_simulations=20, num_draws=199)
    with pytest.raises(OptionError, match="num_simulations"):
        calibrate(Conjugate(), num_simulations=2)

    class Each:
        def run_each(self) -> None:
            raise NotImplementedError

    with pytest.raises(OptionError, match="Each has no method run"):
        calibrate(Each(), num_simulations=20, num_draws=19)
