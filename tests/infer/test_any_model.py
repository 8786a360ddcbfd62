"""Any Pyro model on a ``Call``: draws, densities, predictions, files, and what is refused."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.errors import (
    DataError,
    FileFormatError,
    ModelError,
    OptionError,
    ShapeError,
    SiteError,
)
from pyro_bnn.posterior import CallDraws, CallPosterior, Posterior, Provenance
from pyro_bnn.program import joint_of
from tests.plain_pyro import default_dtype

EFFECTS = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12], dtype=torch.float64)
ERRORS = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18], dtype=torch.float64)
SAMPLERS = (bnn.NUTS, bnn.HMC, bnn.MAMS, bnn.MCLMC)


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64):
        yield


def groups(y: Tensor, noise: Tensor, *, count: Tensor | None = None) -> None:
    """Means of groups, observed with known noise, and a count of another rate: conjugate."""
    with pyro.plate("groups", len(noise)):
        level = pyro.sample("level", dist.Normal(1.0, 2.0))
        pyro.sample("seen", dist.Normal(level, noise), obs=y)
        pyro.deterministic("twice", 2 * level)
    rate = pyro.sample("rate", dist.Gamma(3.0, 2.0))
    pyro.sample("count", dist.Poisson(rate), obs=count)


Y, NOISE, COUNT = torch.tensor([0.5, -2.0, 4.0]), torch.tensor([1.0, 0.5, 3.0]), torch.tensor(4.0)
CALL = Call(Y.double(), NOISE.double(), count=COUNT.double())


def moments() -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and sd of each site in closed form."""
    precision = 0.25 + NOISE.double() ** -2
    level = (0.25 * 1.0 + Y.double() / NOISE.double() ** 2) / precision
    gamma = torch.tensor(3.0 + 4.0), torch.tensor(2.0 + 1.0)
    return {
        "level": (level, precision**-0.5),
        "twice": (2 * level, 2 * precision**-0.5),
        "rate": (gamma[0] / gamma[1], gamma[0].sqrt() / gamma[1]),
    }


@pytest.mark.parametrize("engine", SAMPLERS, ids=lambda cls: cls.__name__)
def test_draws_have_the_moments_of_the_closed_form(engine: Any) -> None:
    options = {"integrator": "minimal_norm", "energy_variance": 1e-5} if engine is bnn.MCLMC else {}
    posterior = engine(num_samples=2_000, **options).run(groups, CALL, seed=1, progress=False)
    assert isinstance(posterior, CallDraws)
    draws = posterior.sample(8_000, group_by_chain=True)
    table = posterior.summary(8_000)
    assert table["r_hat"].max() < 1.02
    for name, (mean, sd) in moments().items():
        assert draws[name].shape[:2] == (4, 2_000)
        ess = torch.tensor([v for k, v in table["ess_bulk"].items() if str(k).startswith(name)])
        found = draws[name].flatten(0, 1)
        error = sd / ess.reshape(mean.shape).sqrt()
        assert ((found.mean(0) - mean).abs() < 5 * error).all(), name
        assert ((found.std(0) / sd - 1).abs() < 5 / (2 * ess.min()).sqrt() + 0.02).all(), name


@pytest.fixture(scope="module")
def posterior() -> CallDraws:
    with default_dtype(torch.float64):
        found = bnn.NUTS(num_chains=2, warmup_steps=100, num_samples=200).run(
            groups, CALL, progress=False
        )
    assert isinstance(found, CallDraws)
    return found


def test_densities_are_those_of_the_model(posterior: CallDraws) -> None:
    draws = posterior.sample(40)
    found = posterior.log_likelihood(40)
    expected = dist.Normal(draws["level"], NOISE.double()).log_prob(Y.double())
    assert_close(found["seen"], expected)
    assert_close(found["count"], dist.Poisson(draws["rate"]).log_prob(COUNT.double()))
    prior = dist.Normal(1.0, 2.0).log_prob(draws["level"]).sum(-1)
    rate = dist.Gamma(3.0, 2.0).log_prob(draws["rate"]) + draws["rate"].log()  # the Jacobian
    assert_close(posterior.log_joint(40), expected.sum(-1) + found["count"] + prior + rate)
    stats = posterior.sample_stats["lp"].reshape(-1)
    assert_close(posterior.log_joint(400).numpy(), stats)


def test_predictions_are_drawn_given_the_draws(posterior: CallDraws) -> None:
    """The predictive of a conjugate Gaussian has the variance of level and of noise."""
    anew = posterior.predictive(num_samples=400)
    assert anew["seen"].shape == (400, 3)
    assert anew["count"].shape == (400,)
    assert_close(anew["twice"], posterior.sample(400)["twice"])
    mean, sd = moments()["level"]
    total = (sd**2 + NOISE.double() ** 2).sqrt()
    assert ((anew["seen"].mean(0) - mean).abs() < 5 * total / math.sqrt(400)).all()
    assert (anew["seen"].std(0) / total - 1).abs().max() < 5 / math.sqrt(800)
    elsewhere = posterior.predictive(Call(None, torch.full((3,), 1e-9)), num_samples=40)
    assert_close(elsewhere["seen"], posterior.sample(40)["level"], atol=1e-7, rtol=0)


def test_a_tree_has_the_groups_of_each_observed_site(posterior: CallDraws) -> None:
    labels = ["a", "b", "c"]
    tree = posterior.to_arviz(100, predictions=CALL, coords={"groups": labels})
    assert tree["posterior/level"].dims == ("chain", "draw", "groups")
    np.testing.assert_array_equal(tree["posterior/level"].coords["groups"], labels)
    assert set(tree["log_likelihood"].data_vars) == {"seen", "count"}
    assert tree["log_likelihood/seen"].dims == ("chain", "draw", "groups")
    assert set(tree["posterior_predictive"].data_vars) == {"seen", "count"}
    assert tree["posterior_predictive/seen"].shape == (2, 50, 3)
    np.testing.assert_array_equal(tree["observed_data/seen"], Y)
    assert set(tree["constant_data"].data_vars) == {"noise"}
    assert tree["sample_stats/lp"].shape == (2, 50)
    assert set(tree["predictions"].data_vars) == {"seen", "count"}
    renamed = posterior.to_arviz(100, dims={"level": ["school"]})
    assert renamed["posterior/level"].dims == ("chain", "draw", "school")


def test_copies_and_files_have_the_same_draws(posterior: CallDraws, tmp_path: Path) -> None:
    file = tmp_path / "groups.posterior"
    posterior.predictive(num_samples=4)
    posterior.save(file)
    read = CallPosterior.load(file, groups)
    for other in (read, pickle.loads(pickle.dumps(posterior))):
        for name, value in posterior.sample(50).items():
            assert_close(other.sample(50)[name], value, rtol=0, atol=0)
        assert_close(other.log_joint(50), posterior.log_joint(50), rtol=0, atol=0)
    assert read.engine == "NUTS"

    def other_noise(y: Tensor, noise: Tensor, *, count: Tensor | None = None) -> None:
        groups(y, 2 * noise, count=count)

    with pytest.raises(SiteError, match="not its densities"):
        CallPosterior.load(file, other_noise)
    with pytest.raises(SiteError, match="is of a model with sites level"):
        CallPosterior.load(file, lambda *_, **__: pyro.sample("w", dist.Normal(0.0, 1.0)))
    with pytest.raises(FileFormatError, match="not a posterior saved by this package"):
        Posterior.load(file, groups)


def test_by_default_all_stored_draws_are_used(posterior: CallDraws) -> None:
    many = CallDraws(posterior.program, posterior.stored.repeat(1, 4, 1), posterior.provenance)
    assert many.sample()["level"].shape == (1_600, 3)
    assert posterior.sample()["level"].shape == (400, 3)


def within(y: Tensor) -> None:
    """A bound, and a site between 0 and that bound."""
    high = pyro.sample("high", dist.Uniform(1.0, 3.0))
    support: Any = dist.constraints.interval(0.0, high)
    low = pyro.sample("low", dist.ImproperUniform(support, (), ()))
    pyro.sample("y", dist.Normal(0.0, 1.0), obs=y + 0.0 * low)


def test_a_support_that_depends_on_a_site_is_sampled() -> None:
    r"""The density of (h, l) is flat on 0 < l < h, so that of h grows as h on (1, 3)."""
    posterior = bnn.NUTS(num_samples=2_000).run(within, Call(torch.tensor(0.3)), progress=False)
    draws, table = posterior.sample(), posterior.summary()
    assert (draws["low"] < draws["high"]).all()
    for name, mean in (("high", 13 / 6), ("low", 13 / 12)):
        assert abs(table.loc[name, "mean"] - mean) < 5 * table.loc[name, "mcse_mean"]
        assert table.loc[name, "mcse_mean"] < 0.03


class _StopError(Exception):
    pass


def test_values_of_a_moving_support_are_those_of_each_draw() -> None:
    """alpha = sigmoid(z_0) and beta = (1 - alpha) sigmoid(z_1), in every method that has values."""

    def model(y: Tensor) -> None:
        alpha = pyro.sample("alpha", dist.Uniform(0.0, 1.0))
        beta = pyro.sample("beta", dist.Uniform(0.0, 1 - alpha))
        pyro.sample("y", dist.Normal(alpha + beta, 1.0), obs=y)

    z = torch.randn(2, 50, 2, generator=torch.Generator().manual_seed(0))
    alpha = z[..., 0].sigmoid()
    beta = (1 - alpha) * z[..., 1].sigmoid()
    posterior = CallDraws(joint_of(model, (torch.tensor(0.4),)), z, Provenance("draws", "none"))
    found = posterior.hyperparameters(group_by_chain=True)
    assert_close(found, {"alpha": alpha, "beta": beta})
    assert_close(posterior.sample(group_by_chain=True), found)
    tree = posterior.to_arviz()
    assert_close(torch.as_tensor(tree["posterior"]["beta"].values), beta)
    means = posterior.summary()["mean"].astype(float)
    assert means["beta"] == pytest.approx(float(beta.mean()), abs=0.005)  # of two digits


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path) -> None:
    nuts = bnn.NUTS(num_chains=2, warmup_steps=60, num_samples=150)
    whole = nuts.run(groups, CALL, progress=False)

    def stop(at: Any) -> None:
        if at.step >= 100:
            raise _StopError

    with pytest.raises(_StopError):
        nuts.run(groups, CALL, progress=False, checkpoint=tmp_path, on_step=stop)
    again = nuts.run(groups, CALL, progress=False, checkpoint=tmp_path, resume=True)
    assert_close(again.sample(300)["level"], whole.sample(300)["level"], rtol=0, atol=0)
    others = Call(Y.double() + 1, NOISE.double(), count=COUNT.double())
    with pytest.raises((SiteError, bnn.errors.DataError), match="checkpoint"):
        nuts.run(groups, others, progress=False, checkpoint=tmp_path, resume=True)


def test_starts_are_those_that_are_passed() -> None:
    start = {"level": torch.tensor([5.0, 6.0, 7.0]), "rate": torch.tensor(2.5)}
    nuts = bnn.NUTS(num_chains=1, warmup_steps=0, num_samples=1, target_accept=0.999)
    posterior = nuts.run(groups, CALL, init=start, progress=False)
    assert (posterior.sample(1)["level"] > 0).any()
    with pytest.raises(SiteError, match="init holds 'slope', but the model's sites are level"):
        nuts.run(groups, CALL, init={"slope": torch.tensor(0.0)}, progress=False)


@pytest.mark.parametrize("engine", [bnn.SWAG(), bnn.VOGN(), bnn.CAVI()])
def test_engines_that_need_a_network_say_so(engine: Any) -> None:
    name = type(engine).__name__
    with pytest.raises(ModelError, match=f"{name} needs a network on rows.*take NUTS, HMC"):
        engine.run(groups, CALL, progress=False)


def slope(x: Tensor, y: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("rent", dist.Normal(a * x, 1.0), obs=y)


ROWS = (torch.arange(4.0), torch.ones(4))


def test_a_pair_for_a_model_without_f_is_told_of_the_call() -> None:
    message = (
        r"^slope records no f, .*run\(model, bnn.data.Call\(x, y\)\). As rows of .*\[:, None\]"
    )
    with pytest.raises(ShapeError, match=message):
        bnn.NUTS().run(slope, ROWS)
    for model in (bnn.models.MLP(1), lambda x, y=None: x @ torch.ones(5)):
        with pytest.raises(ShapeError, match=r"^x must be \[N, I\]"):
            bnn.NUTS().run(model, ROWS)


def test_arguments_that_are_no_call_are_told_of_it() -> None:
    with pytest.raises(
        DataError, match=r"pass these as one Call: run\(model, bnn.data.Call\(...\)\)"
    ):
        bnn.NUTS().run(slope, ROWS[0])  # type: ignore[call-overload]
    with pytest.raises(OptionError, match=r"got 1 more: .* as one Call, .*bnn.data.Call\(x, y\)"):
        bnn.NUTS().run(slope, *ROWS)  # type: ignore[call-overload]


def test_a_likelihood_of_factors_alone_has_no_log_likelihood_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def by_factor(y: Tensor, *, both: bool = False) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.factor("fit", dist.Normal(a, 1.0).log_prob(y).sum())
        if both:
            pyro.sample("last", dist.Normal(a, 1.0), obs=y[-1])

    engine = bnn.NUTS(num_chains=1, num_samples=5, warmup_steps=5)
    line = "log_likelihood is empty: by_factor observes no site, and pyro.factor (fit)"
    posterior = engine.run(by_factor, Call(Y), progress=False)
    assert posterior.log_likelihood() == {}
    assert caplog.text.count(line) == 1
    assert "log_likelihood" not in posterior.to_arviz().children
    assert caplog.text.count(line) == 2
    assert [*engine.run(by_factor, Call(Y, both=True), progress=False).log_likelihood()] == ["last"]
    assert caplog.text.count(line) == 2


def test_one_number_is_too_few_for_velocities_of_length_one() -> None:
    def single(y: Tensor) -> None:
        pyro.sample("y", dist.Normal(pyro.sample("w", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    with pytest.raises(ModelError, match="MAMS needs at least two latent numbers"):
        bnn.MAMS().run(single, Call(torch.tensor(0.0)), progress=False)
    with pytest.raises(OptionError, match="num_samples"):
        bnn.NUTS().run(single, Call(torch.tensor(0.0)), progress=False).sample(0)


def test_a_call_is_written_by_shapes() -> None:
    assert repr(CALL) == "Call(Tensor [3], Tensor [3], count=Tensor [])"
