"""The SVI engine: objective, options, refusals, and what it leaves alone."""

from __future__ import annotations

import functools
import math
import random
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import autoguide
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import SVI, guides, likelihoods, models, priors
from pyro_bnn.capture import Captured
from pyro_bnn.data import Dataset
from pyro_bnn.errors import DivergenceError, ModelError, OptionError, SiteError
from pyro_bnn.infer.svi import step_loss, training
from pyro_bnn.posterior import GuidePosterior, Posterior
from tests.oracle import LinearGaussian, design, linear_gaussian

STILL: dict[str, Any] = {"optimizer": torch.optim.SGD, "learning_rate": 1e-30}
STEP: dict[str, Any] = {"optimizer": torch.optim.SGD, "learning_rate": 1.0, "num_steps": 1}


def run(oracle: LinearGaussian, guide: Any = guides.AutoNormal, **options: Any) -> GuidePosterior:
    keywords = {k: options.pop(k) for k in ("init", "seed", "data") if k in options}
    data = keywords.pop("data", (oracle.x, oracle.y))
    posterior = SVI(guide, **options).run(oracle.model, data, progress=False, **keywords)
    assert isinstance(posterior, GuidePosterior)
    return posterior


def mlp(scale: float | None = 0.3) -> models.MLP:
    return models.MLP(3, hidden=(4,), likelihood=likelihoods.Normal(scale)).double()


def params_of(posterior: GuidePosterior) -> list[Tensor]:
    return [p.detach().clone() for p in posterior.guide.parameters()]


class FirstStepOnly(torch.optim.SGD):
    """Gradient descent that stands still after its first step."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            group["params"] = []


# The objective


@pytest.mark.parametrize("guide", ["AutoNormal", "AutoMultivariateNormal", "AutoDelta"])
def test_captured_and_uncaptured_runs_agree_step_by_step(
    guide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle, model = linear_gaussian(), mlp(None)
    engine = SVI(getattr(guides, guide), num_steps=30, batch_size=8, num_particles=2)
    captured = engine.run(model, (oracle.x, oracle.y), progress=False)
    monkeypatch.setattr(training, "Captured", functools.partial(Captured, enabled=False))
    plain = engine.run(model, (oracle.x, oracle.y), progress=False)
    np.testing.assert_allclose(captured.losses, plain.losses, rtol=1e-10)
    torch.testing.assert_close(
        captured.unconstrained(5), plain.unconstrained(5), rtol=1e-9, atol=1e-9
    )


def test_a_batch_is_scaled_by_the_rows_of_the_data() -> None:
    oracle = linear_gaussian()
    start = {"w": torch.ones(3, 1), "b": torch.ones(1)}
    full = run(oracle, guides.AutoDelta, init=start, num_steps=1, **STILL).losses[0]
    expected = -float(oracle.log_joint(torch.ones(4, dtype=torch.float64)))
    assert full == pytest.approx(expected, rel=1e-12)
    even = run(oracle, guides.AutoDelta, init=start, num_steps=4, batch_size=5, **STILL).losses
    assert even.std() > 1
    assert even.mean() == pytest.approx(full, rel=1e-12)
    uneven = run(oracle, guides.AutoDelta, init=start, num_steps=4, batch_size=6, **STILL).losses
    assert float(uneven @ np.array([6, 6, 6, 2])) / 20 == pytest.approx(full, rel=1e-12)
    loader = DataLoader(TensorDataset(oracle.x, oracle.y), batch_size=6, shuffle=True)
    loaded = run(oracle, guides.AutoDelta, init=start, num_steps=4, data=loader, **STILL).losses
    assert float(loaded @ np.array([6, 6, 6, 2])) / 20 == pytest.approx(full, rel=1e-12)


def test_the_kl_weight_grows_linearly_and_the_losses_keep_the_whole_kl() -> None:
    oracle = linear_gaussian()
    a, z = design(oracle.x), torch.ones(4, dtype=torch.float64)
    start = {"w": torch.ones(3, 1), "b": torch.ones(1)}
    likelihood_gradient = a.T @ (oracle.y - a @ z) / oracle.noise**2
    prior_gradient = -z / oracle.prior_scale**2
    for warmup, weight in ((0, 1.0), (1, 1.0), (4, 0.25)):
        once = functools.partial(FirstStepOnly, lr=1.0)
        options: dict[str, Any] = {"num_steps": 4, "kl_warmup": warmup, "optimizer": once}
        posterior = run(oracle, guides.AutoDelta, init=start, **options)
        moved = posterior.unconstrained(1)[0] - z
        torch.testing.assert_close(moved, likelihood_gradient + weight * prior_gradient)
        assert posterior.losses[0] == pytest.approx(-float(oracle.log_joint(z)), rel=1e-12)


def test_the_kl_weight_ends_at_one() -> None:
    oracle = linear_gaussian()
    a = design(oracle.x)
    options: dict[str, Any] = {"optimizer": torch.optim.SGD, "schedule": "constant"}
    start = {"w": torch.ones(3, 1), "b": torch.ones(1)}
    posterior = run(
        oracle,
        guides.AutoDelta,
        init=start,
        num_steps=4,
        kl_warmup=2,
        learning_rate=1e-3,
        **options,
    )
    z = torch.ones(4, dtype=torch.float64)
    for weight in (0.5, 1.0, 1.0, 1.0):
        gradient = a.T @ (oracle.y - a @ z) / oracle.noise**2 - weight * z / oracle.prior_scale**2
        z = z + 1e-3 * gradient
    torch.testing.assert_close(posterior.unconstrained(1)[0], z, rtol=1e-10, atol=1e-10)


@pytest.mark.slow("a second or more")
def test_particles_lower_the_variance_by_their_number() -> None:
    oracle = linear_gaussian()
    start = {"w": torch.ones(3, 1), "b": torch.ones(1)}
    one, many = (
        run(oracle, init=start, num_steps=2_000, num_particles=k, seed=k, **STILL).losses
        for k in (1, 10)
    )
    # at a scale of 0.01 the loss is nearly linear in the noise, hence Gaussian: the log of a
    # sample variance of n draws has sd sqrt(2 / n)
    ratio = one.var() / many.var() / 10
    assert abs(math.log(ratio)) < 5 * math.sqrt(2 * 2 / 2_000)
    ones = torch.ones(4, dtype=torch.float64)
    expected = -oracle.elbo(ones, 0.01**2 * ones.diag())
    for losses in (one, many):
        assert abs(losses.mean() - expected) < 5 * losses.std() / math.sqrt(2_000)


# Options


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"num_steps": 0}, "num_steps is an integer of at least 1, not 0"),
        ({"num_particles": 0}, "num_particles is an integer of at least 1, not 0"),
        ({"kl_warmup": -1}, "kl_warmup is an integer of at least 0, not -1"),
        ({"loc_warmup": -1}, "loc_warmup is an integer of at least 0, not -1"),
        ({"num_steps": 4, "loc_warmup": 4}, "loc_warmup=4 takes the whole run of num_steps=4: the"),
        ({"learning_rate": 0.0}, r"learning_rate is a positive number, not 0\.0"),
        ({"batch_size": 0}, "batch_size is an integer of at least 1, not 0"),
        ({"patience": 0}, "patience is an integer of at least 1, not 0"),
        ({"clip_norm": -1}, "clip_norm is a positive number, not -1"),
        ({"schedule": "linear"}, "schedule is one of 'rounds', 'cosine', 'constant', not 'linear'"),
        ({"compile": "always"}, "compile is \"auto\", True or False, not 'always'"),
    ],
)
def test_options_out_of_range_are_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SVI(guides.AutoNormal, **option)


def test_clip_norm_bounds_the_step() -> None:
    oracle = linear_gaussian()
    start = {"w": torch.ones(3, 1), "b": torch.ones(1)}
    posterior = run(oracle, guides.AutoDelta, init=start, clip_norm=0.1, **STEP)
    moved = posterior.unconstrained(1)[0] - 1
    assert float(moved.norm()) == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("warmup", [0, 500])
def test_patience_counts_steps_without_a_better_smoothed_elbo(warmup: int) -> None:
    oracle = linear_gaussian()
    posterior = run(
        oracle, guides.AutoDelta, num_steps=1_000, patience=250, kl_warmup=warmup, **STILL
    )
    # the loss never changes: best after 100 steps, counted from the end of the warm-up; looked at
    # every 100 steps, 300 later is too long
    assert len(posterior.losses) == warmup + 400


def test_patience_does_not_stop_a_fit_that_improves() -> None:
    oracle = linear_gaussian()
    posterior = run(oracle, guides.AutoDelta, num_steps=500, patience=100, learning_rate=1e-3)
    assert len(posterior.losses) == 500


def test_noise_made_of_a_counter_is_new_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses at a Gaussian that stands still are draws whose mean is minus its ELBO."""
    monkeypatch.setattr(step_loss, "COUNTED_NORMALS", 0)
    oracle = linear_gaussian()
    posterior = run(oracle, num_steps=200, compile=False, **STILL)
    guide, losses = posterior.guide, posterior.losses
    loc, scale = guide.loc.detach(), guide.scale.detach()
    error = losses.std(ddof=1) / 200**0.5
    assert len(set(losses)) == 200
    assert abs(losses.mean() + oracle.elbo(loc, scale.square().diag())) < 5 * error


def test_the_options_are_described() -> None:
    posterior = run(
        linear_gaussian(),
        functools.partial(guides.AutoLowRankMultivariateNormal, rank=2),
        num_steps=2,
        optimizer=torch.optim.SGD,
    )
    assert posterior.method == "AutoLowRankMultivariateNormal"
    assert posterior.engine == "SVI"
    assert posterior.options == {
        "num_steps": 2,
        "learning_rate": 0.01,
        "batch_size": None,
        "num_particles": 1,
        "per_example_draws": False,
        "estimator": "local_reparameterization",
        "kl_warmup": 0,
        "loc_warmup": 0,
        "patience": None,
        "schedule": "rounds",
        "clip_norm": None,
        "compile": "auto",
        "compiled": False,
        "optimizer": "SGD",
        "guide": "AutoLowRankMultivariateNormal",
        "init_scale": 0.01,
        "rank": 2,
    }
    assert posterior.num_parameters == 4 + 4 + 8
    assert posterior.wall_time > 0


# Guides in many forms


def test_a_guide_is_a_class_a_partial_a_callable_or_an_instance() -> None:
    oracle = linear_gaussian()
    instance = guides.AutoNormal(oracle.model, init_scale=0.2)
    forms = [
        functools.partial(guides.AutoNormal, init_scale=0.2),
        lambda model: guides.AutoNormal(model, init_scale=0.2),
        instance,
    ]
    fits = [run(oracle, form, num_steps=3) for form in forms]
    for fit in fits[1:]:
        np.testing.assert_array_equal(fit.losses, fits[0].losses)
    torch.testing.assert_close(fits[2].unconstrained(5), instance.sample(5), rtol=0, atol=0)


def test_an_instance_goes_on_from_where_it_is() -> None:
    oracle = linear_gaussian()
    guide = guides.AutoDelta(oracle.model)
    first = run(oracle, guide, num_steps=300, learning_rate=0.1)
    second = run(oracle, guide, num_steps=1, **STILL)
    assert second.losses[0] <= first.losses[-1] + 1e-9


def test_a_guide_of_another_model_is_refused() -> None:
    oracle, other = linear_gaussian(), linear_gaussian(num_inputs=2)
    guide = guides.AutoNormal(other.model)
    with pytest.raises(OptionError, match="AutoNormal instance belongs to another model; pass the"):
        run(oracle, guide, num_steps=1)


def test_a_guide_that_does_not_cover_the_model_is_refused() -> None:
    oracle = linear_gaussian()
    with pytest.raises(SiteError, match=r"does not cover 'w', 'b'"):
        run(oracle, lambda model: guides.AutoNormal(mlp()), num_steps=1)


def test_what_is_no_guide_is_refused() -> None:
    oracle = linear_gaussian()
    with pytest.raises(OptionError, match=r"guide is a guide class such as guides.AutoNormal, not"):
        run(oracle, "AutoNormal", num_steps=1)
    with pytest.raises(OptionError, match=r"the callable <lambda> returned None, which is not a"):
        run(oracle, lambda model: None, num_steps=1)


# Data and starting points


def test_data_comes_as_a_pair_a_data_set_or_a_loader() -> None:
    oracle = linear_gaussian()
    loader = DataLoader(TensorDataset(oracle.x, oracle.y), batch_size=len(oracle.x))
    forms = [(oracle.x, oracle.y), Dataset(oracle.x, oracle.y), loader]
    fits = [run(oracle, num_steps=3, data=form) for form in forms]
    for fit in fits[1:]:
        np.testing.assert_allclose(fit.losses, fits[0].losses, rtol=1e-12)


def test_a_model_that_breaks_the_contract_is_refused() -> None:
    with pytest.raises(ModelError, match="no sample site named"):
        SVI(guides.AutoNormal).run(lambda x, y=None: x, (torch.zeros(2, 1), torch.zeros(2)))


def test_init_of_sites_a_module_and_a_posterior() -> None:
    oracle, model = linear_gaussian(), mlp()
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    engine = SVI(guides.AutoDelta, num_steps=1, **STILL)
    data = (oracle.x, oracle.y)
    from_module = engine.run(model, data, init=net, progress=False)
    f = from_module.function_draws(oracle.x, 1)[0]
    torch.testing.assert_close(f, net(oracle.x).detach())
    from_posterior = engine.run(model, data, init=from_module, progress=False)
    torch.testing.assert_close(from_posterior.unconstrained(1), from_module.unconstrained(1))
    bias = torch.full((4,), 0.7, dtype=torch.float64)
    from_sites = engine.run(model, data, init={"layers.0.bias": bias}, progress=False)
    torch.testing.assert_close(from_sites.sample(1)["layers.0.bias"][0], bias)


def test_point_parameters_are_trained_in_the_posterior_and_not_in_the_model() -> None:
    oracle = linear_gaussian()
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    model = models.bayesian(net, {"2.*": priors.Normal()}, likelihoods.Normal(0.3)).double()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    engine = SVI(guides.AutoNormal, num_steps=20, learning_rate=0.1)
    posterior = engine.run(model, (oracle.x, oracle.y), progress=False)
    assert set(posterior.params) == {"net.0.weight", "net.0.bias"}
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), before[name], rtol=0, atol=0)
        assert bool((posterior.params[name] != before[name]).all())
        assert value.grad is None
    assert posterior.num_parameters == 2 * 5 + 16


# Divergence


def diverged(oracle: LinearGaussian, **options: Any) -> tuple[str, GuidePosterior]:
    with pytest.raises(DivergenceError) as caught:
        run(oracle, **options)
    posterior = caught.value.posterior
    assert isinstance(posterior, GuidePosterior)
    assert all(bool(p.isfinite().all()) for p in posterior.guide.parameters())
    assert bool(posterior.predict(oracle.x, 10).mean.isfinite().all())
    return str(caught.value), posterior


def test_a_loss_that_is_not_finite_names_step_and_sites_and_keeps_the_last_good_state() -> None:
    oracle = linear_gaussian()
    options: dict[str, Any] = {"optimizer": torch.optim.SGD, "learning_rate": 1e200}
    message, posterior = diverged(oracle, num_steps=10, **options)
    assert message == (
        "the loss is not finite at step 1, at 'w', 'b', 'y'; the state of step 0 is kept in "
        "error.posterior. Lower learning_rate, set clip_norm, or standardise the data"
    )
    assert len(posterior.losses) == 1
    start = run(oracle, num_steps=1, **STILL)
    for kept, expected in zip(params_of(posterior), params_of(start), strict=True):
        torch.testing.assert_close(kept, expected, rtol=0, atol=1e-20)


def breaking_at(oracle: LinearGaussian, number: int) -> DataLoader[Any]:
    """A data set of one row a batch, whose batch of this number has an infinite y."""

    class Loader(DataLoader[Any]):
        passes = 0

        def __iter__(self) -> Any:
            for _ in range(20):
                self.passes += 1
                broken = self.passes == 20 + number  # 20 were read to see the data
                yield oracle.x[:1], oracle.y[:1] + (math.inf if broken else 0.0)

    return Loader(TensorDataset(oracle.x, oracle.y))


@pytest.mark.slow("about a second")
def test_the_last_good_state_is_at_most_one_window_old() -> None:
    """With a data set whose 171st batch is broken, the state of step 100 is kept."""
    oracle = linear_gaussian()
    message, posterior = diverged(oracle, num_steps=200, data=breaking_at(oracle, 171))
    assert "not finite at step 170, at 'y'; the state of step 100 is kept" in message
    assert len(posterior.losses) == 170


@pytest.mark.slow("about a second")
@pytest.mark.parametrize(("broken", "kept"), [(99, 0), (100, 100), (199, 100)])
def test_parameters_that_an_update_broke_are_not_the_last_good_state(
    broken: int, kept: int
) -> None:
    class Breaking(torch.optim.SGD):
        updates = 0

        def step(self, *args: Any) -> None:  # type: ignore[override]
            super().step(*args)
            if self.updates == broken:  # updates are numbered as their steps
                for parameter in self.param_groups[0]["params"]:
                    parameter.data.fill_(math.nan)
            self.updates += 1

    message, _ = diverged(linear_gaussian(), num_steps=300, optimizer=Breaking, learning_rate=1e-4)
    assert f"not finite at step {broken + 1}, " in message
    assert f"the state of step {kept} is kept" in message


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("compile", [False, True])
def test_an_infinite_kl_is_named(compile: bool) -> None:  # noqa: A002
    oracle = linear_gaussian()
    guide = guides.AutoNormal(oracle.model)
    guide.setup(oracle.x)
    with torch.no_grad():
        guide.scale_unconstrained.fill_(-1e5)  # a scale of zero
    with pytest.raises(DivergenceError, match="the loss is not finite at step 0, in the KL; the"):
        run(oracle, guide, num_steps=1, compile=compile)


def test_parameters_that_break_at_the_last_step_are_named() -> None:
    oracle = linear_gaussian()
    options: dict[str, Any] = {"optimizer": torch.optim.SGD, "learning_rate": 1.7e308}
    options["estimator"] = "weight_sampling"
    message, _ = diverged(oracle, num_steps=1, clip_norm=1e3, **options)
    assert message.startswith(
        "parameters guide.loc are not finite after the last step; the state of step 0 is kept in "
        "error.posterior. Lower learning_rate, set clip_norm, or standardise the data"
    )


# What it leaves alone


def test_random_state_settings_store_and_model_are_left_alone() -> None:
    oracle = linear_gaussian()
    pyro.clear_param_store()
    pyro.param("mine", torch.ones(2))
    states = (torch.get_rng_state(), random.getstate(), str(np.random.get_state()))  # noqa: NPY002
    settings = pyro.settings.get()
    loader = DataLoader(TensorDataset(oracle.x, oracle.y), batch_size=5, shuffle=True)
    for data in ((oracle.x, oracle.y), loader):
        run(oracle, num_steps=3, data=data)
        diverged(oracle, num_steps=3, optimizer=torch.optim.SGD, learning_rate=1e200)
    torch.testing.assert_close(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert str(np.random.get_state()) == states[2]  # noqa: NPY002
    assert pyro.settings.get() == settings
    assert list(pyro.get_param_store()) == ["mine"]
    torch.testing.assert_close(pyro.param("mine").detach(), torch.ones(2))
    pyro.clear_param_store()


def test_a_seed_gives_one_result_whatever_the_global_state() -> None:
    oracle, model = linear_gaussian(), mlp(None)
    engine = SVI(guides.AutoNormal, num_steps=10, batch_size=7)

    def fit(seed: int, global_seed: int) -> Posterior:
        with torch.random.fork_rng():
            torch.manual_seed(global_seed)
            return engine.run(model, (oracle.x, oracle.y), seed=seed, progress=False)

    first, again, other = fit(3, 0), fit(3, 1), fit(4, 0)
    np.testing.assert_array_equal(first.losses, again.losses)
    torch.testing.assert_close(first.unconstrained(5), again.unconstrained(5), rtol=0, atol=0)
    assert (first.losses != other.losses).all()


def test_a_second_guide_of_a_model_trains_as_the_first(request: pytest.FixtureRequest) -> None:
    """peers.md, M5: under one parameter store the second guide starts where the first ended."""
    oracle = linear_gaussian()
    alone = run(oracle, guides.AutoMultivariateNormal, num_steps=50, learning_rate=0.1)
    run(oracle, guides.AutoNormal, num_steps=50, learning_rate=0.1)
    after = run(oracle, guides.AutoMultivariateNormal, num_steps=50, learning_rate=0.1)
    np.testing.assert_array_equal(alone.losses, after.losses)
    assert after.losses[-1] < after.losses[0]


def test_the_progress_bar_is_silent_when_off(capsys: pytest.CaptureFixture[str]) -> None:
    oracle = linear_gaussian()
    engine = SVI(guides.AutoNormal, num_steps=3)
    engine.run(oracle.model, (oracle.x, oracle.y), progress=False)
    assert capsys.readouterr() == ("", "")
    engine.run(oracle.model, (oracle.x, oracle.y), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "AutoNormal" in shown.err
    assert "ELBO -" in shown.err


# Frozen parameters, copies, gradients that are one tensor


def frozen_model() -> models.BayesianModule:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    net[0].weight.requires_grad = False
    return models.bayesian(net, {"2.*": priors.Normal()}, likelihoods.Normal(0.3)).double()


def test_frozen_parameters_stay_as_they_are_and_are_not_counted() -> None:
    oracle, model = linear_gaussian(), frozen_model()
    engine = SVI(guides.AutoNormal, num_steps=5, learning_rate=0.1)
    posterior = engine.run(model, (oracle.x, oracle.y), progress=False)
    own = dict(model.named_parameters())
    weight = posterior.params["net.0.weight"]
    torch.testing.assert_close(weight, own["net.0.weight"].detach(), rtol=0, atol=0)
    assert bool((posterior.params["net.0.bias"] != own["net.0.bias"]).all())
    assert posterior.num_parameters == 2 * 5 + 4  # the guide's, and the bias


def test_a_frozen_parameter_takes_its_value_from_init() -> None:
    """The loss is at the value that init gives it, not at the model's own."""
    oracle, model, other = linear_gaussian(), frozen_model(), frozen_model()
    engine = SVI(guides.AutoDelta, num_steps=1, **STILL)
    data = (oracle.x, oracle.y)
    init = engine.run(other, data, progress=False)
    posterior = engine.run(model, data, init=init, progress=False)
    torch.testing.assert_close(
        posterior.params["net.0.weight"], init.params["net.0.weight"], rtol=0, atol=0
    )
    assert posterior.losses[0] == pytest.approx(init.losses[0], rel=1e-12)


def test_an_instance_trained_again_leaves_the_earlier_posterior() -> None:
    oracle = linear_gaussian()
    guide = guides.AutoNormal(oracle.model)
    first = run(oracle, guide, num_steps=2)
    before = first.unconstrained(5)
    second = run(oracle, guide, num_steps=5, learning_rate=0.1)
    torch.testing.assert_close(first.unconstrained(5), before, rtol=0, atol=0)
    torch.testing.assert_close(second.unconstrained(5), guide.sample(5), rtol=0, atol=0)
    assert bool((second.unconstrained(5) != before).any())


class TwinModel(PyroModule):
    """f = (a + b + w) x with point parameters a and b, whose gradients are the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros_like(x[0, 0]), 1.0))
        f = pyro.deterministic("f", (self.a + self.b + w) * x)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, 0.1).to_event(1), obs=y)
        return sampled


def test_gradients_that_are_one_tensor_are_clipped_once() -> None:
    x = torch.ones(4, 1, dtype=torch.float64)
    posterior = SVI(guides.AutoDelta, clip_norm=0.3, **STEP).run(
        TwinModel(), (x, 100 * x), init={"w": torch.zeros(())}, progress=False
    )
    moved = torch.stack([*posterior.params.values(), posterior.unconstrained(1)[0, 0]])
    # the three gradients are equal up to the prior's, 0 at w = 0: 0.3 / sqrt(3) each
    torch.testing.assert_close(
        moved, torch.full((3,), 0.3 / math.sqrt(3)).double(), rtol=1e-6, atol=0
    )


# Options without effect


def test_options_without_effect_are_refused() -> None:
    oracle = linear_gaussian()
    with pytest.raises(OptionError, match=r"kl_warmup=5 is longer than the run of num_steps=4"):
        SVI(guides.AutoNormal, num_steps=4, kl_warmup=5)
    own_rate = functools.partial(torch.optim.SGD, lr=1.0)
    for optimizer in (own_rate, lambda parameters: torch.optim.SGD(parameters, lr=1.0)):
        with pytest.raises(OptionError, match=r"learning_rate=0\.5 would have no effect, as this"):
            SVI(guides.AutoNormal, optimizer=optimizer, learning_rate=0.5)
        posterior = run(oracle, optimizer=optimizer, num_steps=1)
        assert posterior.options["learning_rate"] == 1.0
    loader = DataLoader(TensorDataset(oracle.x, oracle.y), batch_size=6)
    with pytest.raises(OptionError, match="batch_size=5 would have no effect, as a DataLoader"):
        run(oracle, data=loader, batch_size=5)


def test_a_partial_of_an_optimizer_takes_the_learning_rate() -> None:
    momentum = functools.partial(torch.optim.SGD, momentum=0.9)
    options: dict[str, Any] = {"num_steps": 1, "learning_rate": 0.125}
    posterior = run(linear_gaussian(), optimizer=momentum, **options)
    expected = run(linear_gaussian(), optimizer=torch.optim.SGD, **options)  # the first step's
    torch.testing.assert_close(posterior.unconstrained(3), expected.unconstrained(3))
    assert posterior.options["learning_rate"] == 0.125


@pytest.mark.parametrize("seed", [-1, None])
def test_seeds_are_checked(seed: Any) -> None:
    with pytest.raises(OptionError, match=f"seed is an integer of at least 0, not {seed}"):
        run(linear_gaussian(), seed=seed)


def test_patience_forgets_the_elbo_of_the_warm_up() -> None:
    """An ELBO that only falls: without its best of the warm-up, patience counts from the end."""
    oracle = linear_gaussian()
    optimizer = functools.partial(torch.optim.SGD, lr=1e-4, maximize=True)
    posterior = run(
        oracle, guides.AutoDelta, num_steps=700, patience=200, kl_warmup=300, optimizer=optimizer
    )
    assert len(posterior.losses) == 600  # best at step 400, the first after the warm-up


@pytest.mark.usefixtures("few_stock_draws")
@pytest.mark.parametrize("guide", ["ours", "stock"])
def test_a_frozen_parameter_of_a_pyro_module_stays_frozen(guide: str) -> None:
    """Pyro's store sets requires_grad of what a PyroModule reads, in the user's model too."""
    oracle, model = linear_gaussian(), TwinModel()
    model.a.requires_grad = False
    kind = guides.AutoNormal if guide == "ours" else autoguide.AutoNormal
    posterior = SVI(kind, num_steps=3).run(
        model, (oracle.x[:, :1], oracle.x[:, :1]), progress=False
    )
    assert float(posterior.params["a"]) == 0 != float(posterior.params["b"])
    assert posterior.num_parameters == 2 + 1
    assert not model.a.requires_grad


# Means before scales


NEW_GAUSSIANS = ["AutoNormal", "AutoLowRankMultivariateNormal", "AutoMultivariateNormal"]


class Recorder(torch.optim.Adam):
    """Adam that notes which parameters have moved after each step."""

    moved: ClassVar[list[tuple[bool, ...]]] = []

    def step(self, closure: Any = None) -> Any:
        params = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in params]
        super().step(closure)
        pairs = zip(params, before, strict=True)
        self.moved.append(tuple(not torch.equal(p, old) for p, old in pairs))


@pytest.mark.parametrize("guide", NEW_GAUSSIANS)
def test_the_means_are_trained_before_the_scales(
    guide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "moved", [])
    posterior = run(linear_gaussian(), getattr(guides, guide), num_steps=20, optimizer=Recorder)
    names = [name for name, _ in posterior.guide.named_parameters()]
    assert posterior.options["loc_warmup"] == 2  # a tenth
    alone = tuple(name == "loc" for name in names)
    assert [all(step) for step in Recorder.moved] == [False] * 2 + [True] * 18
    assert Recorder.moved[:2] == [alone, alone]


def test_the_first_step_of_the_scales_has_the_length_of_a_first_step() -> None:
    """Had Adam counted the held steps, its first step of the scales would be 2 % shorter."""
    oracle = linear_gaussian()
    guide = guides.AutoNormal(oracle.model)
    options: dict[str, Any] = {"learning_rate": 1e-3, "schedule": "constant"}
    run(oracle, guide, num_steps=101, loc_warmup=100, **options)
    # loc_warmup leaves the scales at their start, and one step of Adam is the learning rate long
    start = math.log(math.expm1(0.01))
    moved = guide.scale_unconstrained.detach() - start
    torch.testing.assert_close(moved.abs(), torch.full_like(moved, 1e-3), rtol=1e-4, atol=0)


def test_point_estimates_are_trained_with_the_means() -> None:
    oracle = linear_gaussian()
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    model = models.bayesian(net, {"2.*": priors.Normal()}, likelihoods.Normal(0.3)).double()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    guide = guides.AutoNormal(model)
    posterior = SVI(guide, num_steps=2, loc_warmup=1, schedule="constant").run(
        model, (oracle.x, oracle.y), progress=False
    )
    for name, value in posterior.params.items():
        assert float((value - before[name]).abs().min()) > 0.0101  # two steps of 0.01


@pytest.mark.slow("about a second")
def test_what_was_fitted_before_keeps_its_scales_in_training() -> None:
    oracle = linear_gaussian()
    first = run(oracle, num_steps=20)
    assert first.options["loc_warmup"] == 2
    assert run(oracle, num_steps=20, init=first).options["loc_warmup"] == 0
    guide = guides.AutoNormal(oracle.model)
    assert run(oracle, guide, num_steps=20).options["loc_warmup"] == 2
    assert run(oracle, guide, num_steps=20).options["loc_warmup"] == 0  # goes on from where it is
    assert run(oracle, guides.AutoDelta, num_steps=20).options["loc_warmup"] == 0
    assert run(oracle, num_steps=20, loc_warmup=0).options["loc_warmup"] == 0
    assert run(oracle, num_steps=20, patience=5).options["loc_warmup"] == 0
    assert run(oracle, num_steps=20, init=first, loc_warmup=7).options["loc_warmup"] == 7


def test_loc_warmup_without_effect_is_refused() -> None:
    oracle = linear_gaussian()
    for guide, name in ((guides.AutoDelta, "AutoDelta"), (autoguide.AutoNormal, "AutoNormal")):
        with pytest.raises(
            OptionError, match=rf"loc_warmup=2 would have no effect, as {name} has no means loc"
        ):
            run(oracle, guide, num_steps=4, loc_warmup=2)


def test_patience_counts_from_the_end_of_the_held_scales() -> None:
    oracle = linear_gaussian()
    optimizer = functools.partial(torch.optim.SGD, lr=1e-4, maximize=True)
    posterior = run(oracle, num_steps=700, patience=200, loc_warmup=300, optimizer=optimizer)
    assert len(posterior.losses) == 600  # best at step 400, the first after the warm-up


def test_draws_for_each_row_need_a_model_that_can_be_batched() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        f = pyro.deterministic("f", x * w + float(w.detach().clone().numpy() > 0))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)

    x = torch.randn(6, 1)
    with pytest.raises(ModelError, match="leave per_example_draws at False"):
        SVI(guides.AutoNormal, num_steps=1, per_example_draws=True).run(
            model, (x, x), progress=False
        )
