"""Runs of stock Pyro brought in: draws, densities, files, reports, and what is refused."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import HMC, MCMC, NUTS, SVI, Predictive, RandomWalkKernel, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoLaplaceApproximation,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import constraints, transform_to
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import arviz_io, models
from pyro_bnn.data import Call
from pyro_bnn.errors import ModelError, OptionError, SiteError
from pyro_bnn.posterior import CallDraws, CallPosterior, DrawsPosterior, Posterior
from tests.infer.test_any_model import CALL, NOISE, Y, groups, moments
from tests.plain_pyro import default_dtype


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64):
        yield
    pyro.clear_param_store()


def run(model: Any, call: Call, kernel: Any = NUTS, **options: Any) -> MCMC:
    pyro.set_rng_seed(0)
    sizes = {"num_samples": 40, "warmup_steps": 40, "disable_progbar": True}
    mcmc = MCMC(kernel(model), **{**sizes, **options})
    mcmc.run(*call.args, **call.kwargs)
    return mcmc


@pytest.fixture(scope="module")
def mcmc() -> MCMC:
    with default_dtype(torch.float64):
        return run_two_chains(groups, CALL)


def run_two_chains(model: Any, call: Call, kernel: Any = NUTS) -> MCMC:
    """Chains one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 1)
        with pytest.warns(UserWarning, match="sequentially"):
            return run(model, call, kernel, num_chains=2)


# chains


def test_the_draws_are_those_of_the_run(mcmc: MCMC) -> None:
    posterior = bnn.from_mcmc(mcmc, groups, CALL)
    assert isinstance(posterior, CallDraws)
    draws = posterior.sample(group_by_chain=True)
    for name, value in mcmc.get_samples(group_by_chain=True).items():
        assert value.shape[:2] == (2, 40)
        assert_close(draws[name], value, rtol=1e-12, atol=1e-12)
    assert_close(draws["twice"], 2 * draws["level"])  # pyro.deterministic
    table = posterior.summary()
    assert_close(table.loc["rate", "mean"], float(draws["rate"].mean()))
    assert table["r_hat"].notna().all()


def test_densities_and_predictions_are_those_of_the_model(mcmc: MCMC) -> None:
    posterior = bnn.from_mcmc(mcmc, groups, CALL)
    draws = mcmc.get_samples()
    seen = dist.Normal(draws["level"], NOISE.double()).log_prob(Y.double())
    count = dist.Poisson(draws["rate"]).log_prob(torch.tensor(4.0))
    found = posterior.log_likelihood()
    assert_close(found["seen"], seen)
    assert_close(found["count"], count)
    prior = dist.Normal(1.0, 2.0).log_prob(draws["level"]).sum(-1)
    rate = dist.Gamma(3.0, 2.0).log_prob(draws["rate"]) + draws["rate"].log()  # the Jacobian
    lp = posterior.sample_stats["lp"]
    assert_close(torch.as_tensor(lp).flatten(), seen.sum(-1) + count + prior + rate)
    predicted = posterior.predictive(Call(None, torch.full((3,), 1e-9)))["seen"]
    assert_close(predicted, draws["level"], atol=1e-7, rtol=0)


def test_divergences_and_acceptance_are_those_of_the_run() -> None:
    def far() -> None:
        pyro.sample("x", dist.Normal(0.0, 1.0))

    steps = {"step_size": 10.0, "num_steps": 1, "adapt_step_size": False}
    kernel = functools.partial(HMC, adapt_mass_matrix=False, **steps)
    found = run_two_chains(far, Call(), kernel)
    told = found.diagnostics()
    posterior = bnn.from_mcmc(found, far, Call())
    expected = np.zeros((2, 40), dtype=bool)
    for chain in (0, 1):
        expected[chain, told["divergences"][f"chain {chain}"]] = True
    assert expected.any(1).all()
    assert (expected[0] != expected[1]).any()
    np.testing.assert_array_equal(posterior.sample_stats["diverging"], expected)
    assert posterior.options["acceptance_rate"] == [*told["acceptance rate"].values()]
    assert posterior.nature is not None
    assert posterior.nature.kind == "chains"
    tree = posterior.to_arviz()
    np.testing.assert_array_equal(tree["sample_stats/diverging"], expected)


def test_a_kernel_without_diagnostics_and_of_other_runs(tmp_path: Path) -> None:
    for kernel in (RandomWalkKernel, HMC):
        posterior = bnn.from_mcmc(run(groups, CALL, kernel), groups, CALL, wall_time=1.5)
        assert (posterior.method, posterior.engine) == (kernel.__name__, "MCMC")
        assert posterior.wall_time == 1.5
        assert ("diverging" in posterior.sample_stats) == (kernel is HMC)
        posterior.save(tmp_path / "run.st")
        read = CallPosterior.load(tmp_path / "run.st", groups)
        assert_close(read.sample()["rate"], posterior.sample()["rate"], rtol=0, atol=0)


def test_chains_in_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 3)  # of which one is left
    mcmc = run(groups, CALL, num_chains=2, mp_context="fork")
    posterior = bnn.from_mcmc(mcmc, groups, CALL)
    assert posterior.num_chains == 2
    assert math.isnan(posterior.wall_time)
    posterior.save(tmp_path / "run.st")
    assert math.isnan(CallPosterior.load(tmp_path / "run.st", groups).wall_time)


def test_parameters_are_those_of_the_store(caplog: pytest.LogCaptureFixture) -> None:
    def model(y: Tensor) -> None:
        scale = pyro.param("scale", torch.tensor(1.0), constraint=constraints.positive)
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
        pyro.sample("y", dist.Normal(loc, scale), obs=y)

    y = torch.tensor(0.7)
    pyro.param("scale", torch.tensor(0.25), constraint=constraints.positive)
    mcmc = run(model, Call(y))
    posterior = bnn.from_mcmc(mcmc, model, Call(y))
    expected = dist.Normal(mcmc.get_samples()["loc"], 0.25).log_prob(y)
    assert_close(posterior.log_likelihood()["y"], expected)
    assert float(pyro.param("scale").detach()) == 0.25
    assert not caplog.text
    pyro.clear_param_store()
    posterior = bnn.from_mcmc(mcmc, model, Call(y))
    assert "'scale' is not in Pyro's store: its first value is taken" in caplog.text
    expected = dist.Normal(mcmc.get_samples()["loc"], 1.0).log_prob(y)
    assert_close(posterior.log_likelihood()["y"], expected)
    assert not list(pyro.get_param_store().keys())
    pyro.get_param_store().setdefault("scale", torch.ones(2), constraints.positive)
    with pytest.raises(SiteError, match=r"'scale' in Pyro's store has shape \(2,\)"):
        bnn.from_mcmc(mcmc, model, Call(y))


class Offset(PyroModule):
    """A model with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.tensor(0.5))
        self.scale: Any = PyroParam(torch.tensor(2.0), constraint=constraints.positive)

    def forward(self, y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
        pyro.sample("y", dist.Normal(loc + self.offset, self.scale), obs=y)


def test_parameters_of_a_module_are_its_own_unless_the_store_has_others() -> None:
    model, y = Offset(), torch.tensor(0.7)
    guide = AutoNormal(model)
    train_guide(model, guide, Call(y), 3)
    posterior = bnn.from_guide(guide, model, Call(y), num_samples=20)
    offset, scale = model.offset.detach(), model.scale.detach()
    assert float(offset) != 0.5
    expected = dist.Normal(posterior.sample()["loc"] + offset, scale).log_prob(y)
    assert_close(posterior.log_likelihood()["y"], expected)
    for name in ("offset", "scale"):
        pyro.get_param_store()[name] = torch.tensor(0.25)
        with pytest.raises(SiteError, match=f"the parameters {name} of Offset have other values"):
            bnn.from_guide(guide, model, Call(y))
        pyro.get_param_store()[name] = {"offset": offset, "scale": scale}[name]


def without_rate(y: Tensor, noise: Tensor, *, count: Any = None) -> None:
    del count
    with pyro.plate("groups", len(noise)):
        pyro.sample("seen", dist.Normal(pyro.sample("level", dist.Normal(1.0, 2.0)), noise), obs=y)


def with_more(y: Tensor, noise: Tensor, *, count: Any = None) -> None:
    groups(y, noise, count=count)
    pyro.sample("more", dist.Normal(0.0, 1.0))


def in_a_range(y: Tensor, noise: Tensor, *, count: Tensor) -> None:
    with pyro.plate("groups", len(noise)):
        pyro.sample("seen", dist.Normal(pyro.sample("level", dist.Normal(1.0, 2.0)), noise), obs=y)
    rate = pyro.sample("rate", dist.Uniform(0.0, 2.0))
    pyro.sample("count", dist.Poisson(rate), obs=count)


def wider(y: Tensor, noise: Tensor, *, count: Any = None) -> None:
    groups(y, 2 * noise, count=count)


def test_another_model_or_other_data_are_refused_by_name(mcmc: MCMC) -> None:
    with pytest.raises(SiteError, match="the run of NUTS has no draws of 'more'"):
        bnn.from_mcmc(mcmc, with_more, CALL)
    with pytest.raises(SiteError, match="NUTS has draws of 'rate', but the latent sites of with"):
        bnn.from_mcmc(mcmc, without_rate, CALL)
    two = Call(Y.double()[:2], NOISE.double()[:2], count=CALL.kwargs["count"])
    with pytest.raises(SiteError, match=r"'level' of shape \(3,\), but .* in groups is \(2,\)"):
        bnn.from_mcmc(mcmc, groups, two)
    num_above = int((mcmc.get_samples()["rate"] > 2).sum())
    assert 0 < num_above < 80
    with pytest.raises(
        SiteError, match=f"{num_above} of 80 draws of 'rate' by the run of NUTS are outside"
    ):
        bnn.from_mcmc(mcmc, in_a_range, CALL)
    with pytest.raises(ModelError, match=r"the log joint of wider on these data is .* in the run"):
        bnn.from_mcmc(mcmc, wider, CALL)
    other = Call(Y.double() + 1e-4, NOISE.double(), count=CALL.kwargs["count"])
    with pytest.raises(ModelError, match="the arguments that"):
        bnn.from_mcmc(mcmc, groups, other)


def test_draws_of_no_density_are_refused_by_site(mcmc: MCMC, monkeypatch: Any) -> None:
    def strict(y: Tensor, noise: Tensor, *, count: Any = None) -> None:
        groups(y, noise, count=count)
        level = pyro.sample("low", dist.Delta(torch.tensor(0.0)), obs=torch.tensor(0.0))
        pyro.sample("edge", dist.Uniform(level, 1.0), obs=torch.tensor(0.5))

    monkeypatch.setattr(mcmc.kernel, "potential_fn", None)  # as of a kernel that has none
    samples = mcmc.get_samples(group_by_chain=True)
    far = {**samples, "level": samples["level"].clone()}
    far["level"][1, 3] = 1e200
    monkeypatch.setattr(mcmc, "_samples", far)
    with pytest.raises(SiteError, match="1 of 80 draws have no density at 'level', 'seen'"):
        bnn.from_mcmc(mcmc, groups, CALL)
    far["level"][1, 3] = math.nan
    with pytest.raises(SiteError, match="1 of 80 draws of 'level' by the run of NUTS are outside"):
        bnn.from_mcmc(mcmc, groups, CALL)
    far["level"], far["rate"] = samples["level"], samples["rate"].clone()
    far["rate"][0, 0] = 0.0
    with pytest.raises(SiteError, match=r"1 of 80 draws of 'rate' .* on its edge .* \[0.0\]"):
        bnn.from_mcmc(mcmc, groups, CALL)


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(OptionError, match=r"a pyro.infer.MCMC that has run, not dict"):
        bnn.from_mcmc({}, groups, CALL)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match=r"call mcmc.run"):
        bnn.from_mcmc(MCMC(NUTS(groups), num_samples=5), groups, CALL)


# networks on rows


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator)
    return x, x @ torch.tensor([1.0, -0.5]) + 0.1 * torch.randn(30, generator=generator)


@pytest.mark.slow("a run by stock Pyro and a report")
def test_a_network_has_a_posterior_of_rows_and_a_report(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)  # of the model
    data = bnn.data.from_arrays(*rows(), seed=0)
    model = models.LinearRegression(2)
    train = data.train
    mcmc = run(model, Call(train.x, train.y))
    posterior = bnn.from_mcmc(mcmc, model, train)
    assert isinstance(posterior, DrawsPosterior)
    predicted = Predictive(model, mcmc.get_samples())(data.test.x)["f"]
    assert_close(posterior.function_draws(data.test.x, 40), predicted.squeeze(1))
    posterior.save(tmp_path / "run.st")
    assert_close(Posterior.load(tmp_path / "run.st", model).sample(), posterior.sample())
    guide = AutoNormal(model)
    losses = train_guide(model, guide, Call(train.x, train.y), 60)
    mean_field = bnn.from_guide(guide, model, train, losses=losses)
    assert isinstance(mean_field, DrawsPosterior)
    comparison = bnn.compare(
        {"run": posterior, "guide": mean_field}, data, reference="run", num_samples=40
    )
    assert "run" in comparison.summary()
    assert (comparison.save(tmp_path / "report", with_draws=False) / "index.html").exists()


def test_a_model_without_f_is_told_of_a_call() -> None:
    def plain(x: Tensor, y: Any = None) -> None:
        pyro.sample("y", dist.Normal(x @ pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1)), 1.0).to_event(1), obs=y)  # fmt: skip  # noqa: E501

    mcmc = run(plain, Call(*rows()))
    with pytest.raises(ModelError, match=r"pass its arguments as data.Call"):
        bnn.from_mcmc(mcmc, plain, rows())
    assert isinstance(bnn.from_mcmc(mcmc, plain, Call(*rows())), CallDraws)


# guides


def train_guide(model: Any, guide: Any, call: Call, num_steps: int, rate: float = 0.05) -> Any:
    pyro.set_rng_seed(0)
    svi = SVI(model, guide, cast(Any, pyro.optim).Adam({"lr": rate}), Trace_ELBO(num_particles=4))
    return [float(svi.step(*call.args, **call.kwargs)) for _ in range(num_steps)]


def test_draws_of_a_trained_guide_are_of_its_gaussian() -> None:
    guide = AutoNormal(groups)
    losses = train_guide(groups, guide, CALL, 10)
    before = {name: value.clone() for name, value in guide.named_parameters()}
    posterior = bnn.from_guide(guide, groups, CALL, num_samples=1_000, losses=losses)
    z = posterior.unconstrained()
    for site, entries in {"level": z[:, :3], "rate": z[:, 3:]}.items():
        loc, scale = getattr(guide.locs, site).detach(), getattr(guide.scales, site).detach()
        assert ((entries.mean(0) - loc).abs() < 5 * scale / math.sqrt(1_000)).all()
        assert (entries.std(0) / scale - 1).abs().max() < 5 / math.sqrt(2_000)
    parts = [(guide.locs.level, guide.scales.level), (guide.locs.rate, guide.scales.rate)]
    loc, scale = (torch.cat([p[i].detach().reshape(-1) for p in parts]) for i in (0, 1))
    assert_close(posterior.log_q(), dist.Normal(loc, scale).log_prob(z).sum(-1))
    np.testing.assert_array_equal(posterior.losses, losses)
    for name, value in guide.named_parameters():
        assert_close(value, before[name], rtol=0, atol=0)


def test_a_guide_is_an_approximation_of_independent_draws() -> None:
    guide = AutoMultivariateNormal(groups)
    train_guide(groups, guide, CALL, 2)
    mean, sd = moments()["level"]
    with torch.no_grad():
        guide.loc.copy_(torch.cat([mean, torch.tensor([7.0 / 3.0]).log()]))
        scale = torch.cat([sd, torch.tensor([7.0]).rsqrt()])
        guide.scale_unconstrained.copy_(transform_to(dist.constraints.softplus_positive).inv(scale))
    posterior = bnn.from_guide(guide, groups, CALL, seed=2)
    assert (posterior.num_chains, posterior.num_stored_draws) == (1, 1_000)
    assert posterior.nature is not None
    assert posterior.nature.kind == "approximation"
    assert posterior.num_parameters == sum(p.numel() for p in guide.parameters())
    assert list(posterior.summary().columns) == ["mean", "sd", "eti89_lb", "eti89_ub"]
    assert ((posterior.sample()["level"].mean(0) - mean).abs() < 5 * sd / 1_000**0.5).all()
    again = bnn.from_guide(guide, groups, CALL, seed=2)
    assert_close(again.sample(), posterior.sample(), rtol=0, atol=0)
    tree = posterior.to_arviz(500)
    log_q = np.asarray(tree["sample_stats/log_q"]).flatten()
    np.testing.assert_allclose(log_q, posterior.log_q(500))
    np.testing.assert_allclose(
        np.asarray(tree["sample_stats/log_p"]).flatten(), posterior.log_joint(500)
    )
    del tree["log_likelihood"]["count"]
    assert arviz_io.loo_approximate(tree).khat.shape == (3,)


def test_a_guide_function_with_its_parameters_and_the_models() -> None:
    def model(y: Tensor) -> None:
        scale = pyro.param("noise", torch.tensor(1.0), constraint=constraints.positive)
        pyro.sample("y", dist.Normal(pyro.sample("rate", dist.Exponential(1.0)), scale), obs=y)

    def guide(y: Tensor) -> None:
        del y
        loc = pyro.param("loc", torch.tensor(0.3))
        pyro.sample("rate", dist.LogNormal(loc, 0.5))

    y = torch.tensor(0.7)
    train_guide(model, guide, Call(y), 3)
    noise = float(pyro.param("noise").detach())
    assert noise != 1.0
    posterior = bnn.from_guide(guide, model, Call(y), num_samples=50)
    rate = posterior.sample()["rate"]
    assert_close(posterior.log_likelihood()["y"], dist.Normal(rate, noise).log_prob(y))
    q = dist.Normal(float(pyro.param("loc").detach()), 0.5)  # of log rate, which is z
    assert_close(posterior.log_q(), q.log_prob(rate.log()))
    store = pyro.get_param_store()
    del store["loc"]
    with pytest.raises(SiteError, match="the parameters loc of guide are neither"):
        bnn.from_guide(guide, model, Call(y))
    del store["noise"]
    with pytest.raises(SiteError, match="the parameters noise of the model are not in"):
        bnn.from_guide(guide, model, Call(y))
    assert not list(store.keys())


def test_points_and_modes() -> None:
    delta, laplace = AutoDelta(groups), AutoLaplaceApproximation(groups)
    train_guide(groups, delta, CALL, 5)
    posterior = bnn.from_guide(delta, groups, CALL, num_samples=4)
    assert posterior.nature is not None
    assert posterior.nature.kind == "point"
    assert not posterior.has_log_prob
    train_guide(groups, laplace, CALL, 1)
    mean, sd = moments()["level"]  # which is Gaussian
    with torch.no_grad():  # the mode, of a Gamma(7, 3) that of its log
        laplace.loc.copy_(torch.cat([mean, torch.tensor([7.0 / 3.0]).log()]))
    found = bnn.from_guide(laplace, groups, CALL, num_samples=500)
    draws = found.sample()["level"]
    assert ((draws.mean(0) - mean).abs() < 5 * sd / math.sqrt(500)).all()
    assert (draws.std(0) / sd - 1).abs().max() < 5 / math.sqrt(1_000)


def test_guides_that_do_not_fit_are_refused() -> None:
    y = torch.tensor(0.7)

    def model(y: Tensor) -> None:
        pyro.sample("y", dist.Normal(pyro.sample("rate", dist.Exponential(1.0)), 1.0), obs=y)

    def negative(y: Tensor) -> None:
        del y
        pyro.sample("rate", dist.Normal(-9.0, 1.0), infer={"is_auxiliary": False})

    with pytest.raises(
        SiteError, match="1000 of 1000 draws of 'rate' by the guide negative are outside"
    ):
        bnn.from_guide(negative, model, Call(y))
    with pytest.raises(SiteError, match=r"'rate' of shape \(2,\), but"):
        bnn.from_guide(lambda y: pyro.sample("rate", dist.Exponential(y.new_ones(2)).to_event(1)), model, Call(y))  # fmt: skip  # noqa: E501
    with pytest.raises(SiteError, match="the guide does not cover 'rate'"):
        bnn.from_guide(lambda y: pyro.sample("other", dist.Exponential(y)), model, Call(y))
    with pytest.raises(SiteError, match=r"AutoNormal.locs.rate.* of AutoNormal are neither"):
        bnn.from_guide(AutoNormal(model), model, Call(y))
    with pytest.raises(OptionError, match="a guide that has been trained, not dict"):
        bnn.from_guide({}, model, Call(y))
    with pytest.raises(OptionError, match="num_samples"):
        bnn.from_guide(negative, model, Call(y), num_samples=0)


def test_two_guides_of_one_name_are_told_apart() -> None:
    """Stock Pyro would take the store's parameters for those of the first guide."""
    first, second = AutoNormal(groups), AutoNormal(groups)
    train_guide(groups, first, CALL, 5)
    own = first.locs.rate.detach().clone()
    pyro.clear_param_store()
    train_guide(groups, second, CALL, 9)
    with pytest.raises(SiteError, match=r"of AutoNormal have other values in Pyro's store"):
        bnn.from_guide(first, groups, CALL)
    assert_close(first.locs.rate.detach(), own)
    pyro.clear_param_store()
    found = bnn.from_guide(first, groups, CALL, num_samples=500).unconstrained()[:, 3]
    error = float(first.scales.rate.detach()) / math.sqrt(500)
    assert abs(float(found.mean()) - float(own)) < 5 * error
    assert not list(pyro.get_param_store().keys())
