"""Plates with ``subsample_size=``: steps on some rows, everything else on all of them.

The mean over a partition of the rows of what a step sees is what all rows say, exactly; posteriors
of a conjugate model are known in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import config_enumerate
from torch import Tensor

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.errors import ModelError, OptionError, SiteError
from pyro_bnn.infer.call_problem import CallProblem
from pyro_bnn.program.enumerated import joint_of
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.terms import Batch

N, B = 60, 12
SD = 0.5
DATA = torch.randn(N, generator=torch.Generator().manual_seed(1)) + 2.0
WIDE = torch.randn(N, 3, generator=torch.Generator().manual_seed(2))


def normal_mean(y: Tensor, size: int | None = B) -> None:
    """Conjugate: mu | y is Normal(sum(y) / SD^2 / precision, 1 / precision)."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y), subsample_size=size) as rows:
        pyro.sample("obs", dist.Normal(mu, SD), obs=y[rows])


PRECISION = 1 + N / SD**2
MEAN, WIDTH = float(DATA.sum()) / SD**2 / PRECISION, PRECISION**-0.5


def hierarchy(y: Tensor, size: int | None = B) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(y), subsample_size=size) as rows:
        local = pyro.sample("local", dist.LogNormal(loc, scale).expand([3]).to_event(1))
        pyro.sample("obs", dist.Normal(local, SD).to_event(1), obs=y[rows])


def nested(y: Tensor, size: int | None = B) -> None:
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("columns", y.shape[1], dim=-1):
        effect = pyro.sample("effect", dist.Normal(0.0, scale))
        with pyro.plate("rows", len(y), subsample_size=size, dim=-2) as rows:
            cell = pyro.sample("cell", dist.Normal(effect, scale))
            pyro.sample("obs", dist.StudentT(4.0, cell, scale), obs=y[rows])


def by_pyro_subsample(y: Tensor, size: int | None = B) -> None:
    mu = pyro.sample("mu", dist.Cauchy(0.0, 1.0))
    with pyro.plate("rows", len(y), subsample_size=size):
        pyro.sample("obs", dist.Normal(mu, SD), obs=pyro.subsample(y, event_dim=0))


@config_enumerate
def mixture(y: Tensor, size: int | None = B) -> None:
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    places = pyro.sample("places", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with pyro.plate("rows", len(y), subsample_size=size) as rows:
        kind = pyro.sample("kind", dist.Categorical(weights))
        pyro.sample("obs", dist.Normal(places[kind], SD), obs=y[rows])


def conditioned(y: Tensor, size: int | None = B) -> None:
    def model() -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y), subsample_size=size):
            pyro.sample("obs", dist.Normal(mu, SD))

    pyro.condition(model, data={"obs": y})()


MODELS = [
    (conditioned, DATA),
    (normal_mean, DATA),
    (hierarchy, WIDE),
    (nested, WIDE),
    (by_pyro_subsample, DATA),
    (mixture, DATA),
]


def parts(joint: Joint, size: int, z: Tensor) -> Tensor:
    """The log joint at z on each part of a partition of the rows."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    args = [joint.arguments(Batch(rows, rows)) for rows in order.split(size)]
    return torch.stack([joint.log_joint(z, some) for some in args])


@pytest.mark.parametrize(("model", "y"), MODELS)
def test_the_whole_density_is_that_of_the_model_without_subsampling(
    model: Callable[..., None], y: Tensor
) -> None:
    z = joint_of(model, (y, None)).prior_draws(3, seed=4)
    torch.testing.assert_close(
        joint_of(model, (y,)).log_joint(z), joint_of(model, (y, None)).log_joint(z)
    )


@pytest.mark.parametrize("size", [1, B, 30])
@pytest.mark.parametrize(("model", "y"), MODELS)
def test_the_mean_over_parts_is_the_whole(model: Callable[..., None], y: Tensor, size: int) -> None:
    joint = joint_of(model, (y,))
    for z in joint.prior_draws(3, seed=5):
        of_parts = parts(joint, size, z)
        assert of_parts.std() > 1e-3
        torch.testing.assert_close(of_parts.mean(), joint.log_joint(z), rtol=1e-4, atol=1e-3)


def test_parts_of_other_sizes_are_scaled_each_by_its_own() -> None:
    joint = joint_of(normal_mean, (DATA,))
    rows = torch.tensor([4, 7, 50])
    mu = torch.tensor([0.3])
    expected = dist.Normal(0.0, 1.0).log_prob(mu[0])
    expected = expected + N / 3 * dist.Normal(mu[0], SD).log_prob(DATA[rows]).sum()
    torch.testing.assert_close(joint.log_joint(mu, joint.arguments(Batch(rows, rows))), expected)


def two_plates(few: Tensor, many: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("few", len(few), subsample_size=2) as rows:
        pyro.sample("a", dist.Normal(mu, 1.0), obs=few[rows])
    with pyro.plate("many", len(many), subsample_size=5) as rows:
        pyro.sample("b", dist.Normal(mu, 1.0), obs=many[rows])


def test_of_two_plates_the_larger_takes_some_of_its_rows() -> None:
    joint = joint_of(two_plates, (DATA[:7], DATA))
    assert joint.plate is not None
    assert joint.plate == ("many", N, 5)
    z = torch.tensor([0.1])
    torch.testing.assert_close(parts(joint, 5, z).mean(), joint.log_joint(z), rtol=1e-5, atol=0)
    rows = torch.arange(5)
    run = joint.run_at(z, joint.arguments(Batch(rows, rows)))
    assert {name: tuple(msg["value"].shape) for name, msg in run.observed.items()} == {
        "a": (7,),
        "b": (5,),
    }


def sequential(y: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    for i in pyro.plate("rows", len(y), subsample_size=3):
        pyro.sample(f"obs_{i}", dist.Normal(mu, SD), obs=y[int(i)])


def test_a_plate_of_a_loop_takes_all_rows() -> None:
    joint = joint_of(sequential, (DATA[:6],))
    assert joint.plate is None
    z = torch.tensor([0.2])
    torch.testing.assert_close(
        joint.log_joint(z), joint_of(normal_mean, (DATA[:6], None)).log_joint(z)
    )


def test_stock_pyro_goes_on_to_take_some_rows() -> None:
    joint_of(normal_mean, (DATA,))
    trace: Any = pyro.poutine.trace(normal_mean).get_trace(DATA)
    assert trace.nodes["obs"]["value"].shape == (B,)
    assert trace.nodes["obs"]["scale"] == N / B


# --- what is refused ------------------------------------------------------------------------------


def of_the_first_rows(y: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y), subsample_size=B) as rows:
        obs = y[rows]
        pyro.sample("obs", dist.Normal(mu * y[: len(obs)], SD), obs=obs)


def centred(y: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y), subsample_size=B) as rows:
        some = y[rows]
        pyro.sample("obs", dist.Normal(mu + some.mean(), SD), obs=some)


def moving_support(y: Tensor) -> None:
    high = pyro.sample("high", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(y), subsample_size=B) as rows:
        low = pyro.sample("low", dist.Uniform(0.0, high))
        pyro.sample("obs", dist.Normal(low, SD), obs=y[rows])


ANOTHER = "site 'obs' another density on 12 rows of the plate 'rows'"


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (
            of_the_first_rows,
            ModelError,
            ANOTHER,
        ),
        (centred, ModelError, ANOTHER),
        (moving_support, SiteError, "the support of 'low' depends on another site"),
    ],
)
def test_a_model_that_is_no_sum_over_rows_is_refused_for_steps_on_some(
    model: Callable[[Tensor], None], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        bnn.SVI(bnn.guides.AutoNormal).run(model, Call(DATA), progress=False)


@pytest.mark.parametrize("engine", [bnn.SVI(bnn.guides.AutoNormal), bnn.NUTS()])
def test_a_plate_that_takes_more_rows_than_it_has_is_refused_by_name(engine: Any) -> None:
    """As Pyro refuses it, but of a fit alone: predictions may be of fewer rows."""
    with pytest.raises(
        ModelError, match=r"plate 'rows' has 60 rows and subsample_size=61, .*most 60"
    ):
        engine.run(normal_mean, Call(DATA, N + 1), progress=False)
    call = Call(DATA)
    few = bnn.SVI(bnn.guides.AutoNormal, num_steps=1).run(normal_mean, call, progress=False)
    assert few.predictive(Call(DATA[: B - 1]), num_samples=3)["obs"].shape == (3, B - 1)


def test_a_size_of_batches_without_a_plate_that_takes_some_is_refused() -> None:
    engines = [bnn.SVI(bnn.guides.AutoNormal, batch_size=5), bnn.infer.BAOAB(batch_size=5)]
    for engine in engines:
        with pytest.raises(OptionError, match=r"subsample_size=5\) as rows"):
            engine.run(normal_mean, Call(DATA, None), progress=False)  # type: ignore[attr-defined]


# --- posteriors in closed form --------------------------------------------------------------------

CHAINS: dict[str, Any] = {"warmup_steps": 600, "num_samples": 500, "thin": 5}


@pytest.mark.parametrize(
    "engine",
    [
        bnn.SVI(bnn.guides.AutoNormal),
        bnn.SVI(bnn.guides.AutoNormal, batch_size=25),
        bnn.infer.SGHMC(**CHAINS),
        bnn.infer.BAOAB(control="svrg", **CHAINS),
        bnn.infer.Cyclical(bnn.infer.SGLD(**CHAINS, step_size=1e-4), exploration=0.0, num_cycles=1),
        bnn.NUTS(num_samples=1_000, warmup_steps=300),
        bnn.SMC(num_particles=1_000),
        bnn.Laplace(curvature="hessian"),
    ],
    ids=lambda engine: type(engine).__name__,
)
def test_the_posterior_is_the_exact_one(engine: Any) -> None:
    posterior = engine.run(normal_mean, Call(DATA), progress=False)
    draws = posterior.sample(4_000 if posterior.num_stored_draws is None else None)["mu"]
    assert float(draws.mean()) == pytest.approx(MEAN, abs=0.15 * WIDTH)
    assert float(draws.std()) == pytest.approx(WIDTH, rel=0.12)


def test_a_posterior_of_parts_is_told_on_all_rows(tmp_path: Path) -> None:
    posterior = bnn.SVI(bnn.guides.AutoNormal).run(normal_mean, Call(DATA), progress=False)
    assert posterior.options["batch_size"] == B
    mu = posterior.sample(7)["mu"]
    expected = dist.Normal(mu.unsqueeze(-1), SD).log_prob(DATA)
    torch.testing.assert_close(posterior.log_likelihood(7)["obs"], expected)
    assert posterior.predictive(num_samples=7)["obs"].shape == (7, N)
    assert dict(posterior.to_arviz(20)["log_likelihood"].sizes)["rows"] == N
    evidence = -0.5 * (
        N * math.log(2 * math.pi * SD**2)
        + math.log(PRECISION)
        + float(DATA.square().sum()) / SD**2
        - PRECISION * MEAN**2
    )
    assert posterior.elbo(1_000)[0] == pytest.approx(evidence, abs=0.2)
    posterior.save(tmp_path / "posterior.pt")
    read = bnn.posterior.CallPosterior.load(tmp_path / "posterior.pt", normal_mean)
    assert torch.equal(read.sample(5)["mu"], posterior.sample(5)["mu"])


@pytest.mark.parametrize(
    "engine",
    [
        bnn.SVI(bnn.guides.AutoNormal, num_steps=300),
        bnn.infer.BAOAB(warmup_steps=60, num_samples=30, thin=5),
    ],
    ids=lambda engine: type(engine).__name__,
)
def test_a_stopped_run_goes_on_to_the_same_bits(engine: Any, tmp_path: Path) -> None:
    whole = engine.run(hierarchy, Call(WIDE), progress=False)

    def stop(reached: Any) -> None:
        if reached.step == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(hierarchy, Call(WIDE), progress=False, checkpoint=tmp_path, on_step=stop)
    again = engine.run(hierarchy, Call(WIDE), progress=False, checkpoint=tmp_path, resume=True)
    for name, value in whole.sample(20).items():
        assert torch.equal(again.sample(20)[name], value)


def test_draws_of_a_site_that_is_summed_out_are_of_all_rows() -> None:
    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=200)
    posterior = engine.run(mixture, Call(DATA), progress=False)
    assert posterior.discrete(5)["kind"].shape == (5, N)


def test_a_problem_without_such_a_plate_is_one_row() -> None:
    problem = CallProblem(normal_mean, Call(DATA, None), None, 0, "SVI")
    assert problem.num_rows == 1
    assert problem.own_batch_size is None
