"""The program's functions against plain Pyro, and against formulas written out by hand."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import guides, likelihoods, models, priors
from pyro_bnn.capture import Captured, value_and_grad
from pyro_bnn.errors import DataError, ModelError, ShapeError, SiteError
from pyro_bnn.program import Batch, Program
from pyro_bnn.program.batched import over_draws
from pyro_bnn.program.distributions import with_tensors
from tests.collection import rest_in_soak
from tests.oracle import linear_gaussian, log_normal
from tests.plain_pyro import (
    CASES,
    TiedNet,
    UserModel,
    conditioned,
    data,
    default_dtype,
    linear_net,
    log_joint,
    plain_function,
)

DTYPES = {"float32": (torch.float32, 1e-5), "float64": (torch.float64, 1e-10)}


class Setting:
    """A model of the collection with its data, program and some z ``[3, P]``."""

    def __init__(self, name: str, num_rows: int = 12) -> None:
        case = CASES[name]
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.model = case.build()
            self.x, self.y = data(case.target, num_rows)
            self.program = Program(self.model, self.x, self.y)
            self.batch = self.program.batch(self.x, self.y)
            noise = torch.randn(3, self.program.num_latents)
            self.z = self.program.initial + 0.3 * noise  # [S, P]

    def trace(self, row: Tensor) -> Any:
        """Plain Pyro's trace with the latent sites at z ``[P]``."""
        return conditioned(self.model, row, self.x, self.batch.y)[0]


@pytest.fixture(params=list(DTYPES.values()), ids=list(DTYPES))
def tolerance(request: pytest.FixtureRequest) -> Iterator[float]:
    """The default dtype set to each of the two, and the relative tolerance that goes with it."""
    dtype, relative = request.param
    with default_dtype(dtype):
        yield relative


def close(actual: Tensor, expected: Tensor, relative: float) -> None:
    """Equal to a relative tolerance of the largest entry: rounding is of that size in a sum."""
    largest = float(expected.detach().nan_to_num().abs().max())
    atol = relative * max(1.0, largest)
    assert_close(actual, expected, rtol=relative, atol=atol, equal_nan=True)


# --- densities against plain Pyro ----------------------------------------------------------------


# in single precision of some, the others in `make soak`: the rounding is that of every model
GRADIENTS = [(name, DTYPES[dtype]) for name in CASES for dtype in DTYPES]
KEPT = [(name, dtype) for name, dtype in GRADIENTS if dtype == DTYPES["float64"]]
KEPT += [(name, DTYPES["float32"]) for name in list(CASES)[::6]]


@pytest.mark.parametrize(
    ("name", "tolerance"),
    rest_in_soak(GRADIENTS, KEPT),
    indirect=["tolerance"],
    ids=lambda value: value if isinstance(value, str) else str(value[0]).removeprefix("torch."),
)
def test_log_joint_and_gradient_equal_plain_pyro(name: str, tolerance: float) -> None:
    s = Setting(name)
    z = s.z[0].clone().requires_grad_()
    names = list(s.program.params)
    variables = [z, *s.program.params.values()]

    def fn(v: Any, rest: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        params = dict(zip(names, v[1:], strict=True))
        return s.program.log_joint(v[0], Batch(*rest), params), ()

    direct = value_and_grad(fn, len(variables))
    captured = Captured(direct, name)

    expected = log_joint(s.model, z, s.x, s.batch.y)
    leaves = [z]
    if isinstance(s.model, nn.Module):
        leaves += list(s.model.parameters())
    gradients = torch.autograd.grad(expected, leaves)

    for outputs in (direct(*variables, *s.batch), captured(*variables, *s.batch)):
        for actual, wanted in zip(outputs, [expected, *gradients], strict=False):
            close(actual.detach(), wanted.detach(), tolerance)
    assert captured.is_captured


@pytest.mark.parametrize("name", CASES)
def test_pointwise_log_likelihood_and_function_equal_plain_pyro(
    name: str, tolerance: float
) -> None:
    s = Setting(name)
    traces = [s.trace(row) for row in s.z]
    log_likelihood = torch.stack([t.nodes["y"]["log_prob"] for t in traces])  # [S, N]
    function = torch.stack([t.nodes["f"]["value"] for t in traces])  # [S, N, F]
    assert log_likelihood.shape == (3, 12)
    close(s.program.log_likelihood(s.z, s.batch), log_likelihood, tolerance)
    close(s.program.function(s.z, s.x), function, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_a_batch_of_z_equals_the_loop(name: str, tolerance: float) -> None:
    s = Setting(name)
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda z: s.program.log_joint(z, s.batch),
        lambda z: s.program.log_joint(z, s.batch, jacobian=False),
        lambda z: s.program.log_prior(z, s.x),
        lambda z: s.program.log_likelihood(z, s.batch),
        lambda z: s.program.function(z, s.x),
    ]
    for fn in functions:
        close(fn(s.z), torch.stack([fn(row) for row in s.z]), tolerance)


@pytest.mark.parametrize("name", CASES)
def test_log_joint_is_prior_plus_likelihood(name: str, tolerance: float) -> None:
    s = Setting(name)
    total = s.program.log_prior(s.z, s.x) + s.program.log_likelihood(s.z, s.batch).sum(-1)
    close(s.program.log_joint(s.z, s.batch), total, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_predictive_distribution_equals_that_of_every_draw(name: str, tolerance: float) -> None:
    s = Setting(name)
    f, y = s.program.predictive(s.z, s.x)
    each = [s.trace(row).nodes["y"]["fn"] for row in s.z]
    assert y.batch_shape == (3, 12)
    assert y.event_shape == each[0].event_shape
    close(f, s.program.function(s.z, s.x), tolerance)
    close(y.log_prob(s.batch.y), torch.stack([d.log_prob(s.batch.y) for d in each]), tolerance)
    for moment in ("mean", "variance"):
        close(getattr(y, moment), torch.stack([getattr(d, moment) for d in each]), tolerance)
    assert y.sample().shape == (3, *s.batch.y.shape)


def test_plain_function_matches_the_formula_and_its_gradient_in_the_parameter() -> None:
    with default_dtype(torch.float64):
        s = Setting("plain-function")
        z, (log_noise,) = s.z[0], s.program.params.values()
        value, *gradients = value_and_grad(
            lambda v, _: (s.program.log_joint(v[0], s.batch, {"noise": v[1]}), ()), 2
        )(z, log_noise)
        noise = 0.7
        residual = s.y[:, 0] - s.x @ z
        expected = log_normal(residual, noise).sum() + log_normal(z, 2.0).sum()
        assert_close(log_noise.detach(), torch.tensor(math.log(noise)))
        assert_close(value.detach(), expected, rtol=1e-10, atol=0)
        by_z = s.x.T @ residual / noise**2 - z / 4.0
        by_log_noise = (residual**2 / noise**2 - 1).sum()
        assert_close(gradients, [by_z, by_log_noise], rtol=1e-10, atol=0)


def test_oracle_log_joint_to_ten_digits() -> None:
    oracle = linear_gaussian()
    program = Program(oracle.model, oracle.x, oracle.y)
    z = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert_close(
        program.log_joint(z, program.batch(oracle.x, oracle.y)),
        oracle.log_joint(z),
        rtol=1e-10,
        atol=0,
    )


def test_the_jacobian_is_left_out_on_request() -> None:
    s = Setting("normal-learned")
    assert s.program.sites[-1].name == "likelihood.scale"
    difference = s.program.log_joint(s.z, s.batch) - s.program.log_joint(
        s.z, s.batch, jacobian=False
    )
    assert_close(difference, s.z[:, -1], rtol=1e-4, atol=1e-4)  # d exp(z)/dz = exp(z)


# --- N/B -----------------------------------------------------------------------------------------


def parts(batch: Batch, size: int) -> list[Batch]:
    return [Batch(*rows) for rows in zip(batch.x.split(size), batch.y.split(size), strict=True)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("name", ["normal-learned", "categorical", "user-module", "bayesian-conv"])
def test_mean_value_and_gradient_over_minibatches_do_not_depend_on_their_size(
    name: str, size: int
) -> None:
    with default_dtype(torch.float64):
        s = Setting(name)
        fn = value_and_grad(lambda v, b: (s.program.log_joint(v[0], Batch(*b)), ()), 1)
        full = fn(s.z[0], *s.batch)
        outputs = [fn(s.z[0], *part) for part in parts(s.batch, size)]
        assert len(outputs) == 12 // size
        for actual, expected in zip(zip(*outputs, strict=True), full, strict=True):
            assert_close(torch.stack(actual).mean(0), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("guide", [guides.AutoNormal, guides.AutoDelta])
def test_mean_elbo_over_minibatches_does_not_depend_on_their_size(guide: Any) -> None:
    with default_dtype(torch.float64):
        s = Setting("normal-learned")
        q = guide(s.model)
        q.setup(s.x[:1])
        noise = torch.randn(2, s.program.num_latents)
        params = {f"guide.{k}": v for k, v in q.named_parameters()}
        full = s.program.elbo(q, params, noise, s.batch)
        halves = [s.program.elbo(q, params, noise, part) for part in parts(s.batch, 4)]
        for i in (0, 1):
            mean = torch.stack([terms[:2][i] for terms in halves]).mean(0)
            assert_close(mean, full[i], rtol=1e-10, atol=0)


@pytest.mark.parametrize("num_particles", [1, 3])
def test_the_halves_of_an_elbo_by_formula(num_particles: int) -> None:
    oracle = linear_gaussian()
    program = Program(oracle.model, oracle.x, oracle.y)
    guide = guides.AutoNormal(oracle.model).double()
    guide.setup(oracle.x[:1])
    mean, sd = oracle.mean, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    guide.move_to(mean)
    guide.scale = sd  # constrained: the raw value is set behind it
    noise = torch.randn(num_particles, 4, dtype=torch.float64)
    params = {f"guide.{k}": v for k, v in guide.named_parameters()}
    terms = program.elbo(guide, params, noise, program.batch(oracle.x, oracle.y))
    z = mean + sd * noise
    likelihood = oracle.log_joint(z) - log_normal(z, oracle.prior_scale).sum(-1)
    ratio = sd / oracle.prior_scale
    kl = (0.5 * (ratio**2 + (mean / oracle.prior_scale) ** 2 - 1) - ratio.log()).sum()
    assert_close(terms.expected_log_likelihood, likelihood.mean(), rtol=1e-10, atol=0)
    assert_close(terms.kl, kl, rtol=1e-10, atol=0)


def test_num_data_sets_the_scale() -> None:
    with default_dtype(torch.float64):
        s = Setting("normal-fixed")
        program = Program(s.model, s.x, s.y, num_data=60)
        expected = log_joint(s.model, s.z[0], s.x, s.y, scale=60 / 12)
        assert_close(program.log_joint(s.z[0], s.batch), expected, rtol=1e-10, atol=0)


def subsampled(**plate: Any) -> Callable[..., Any]:
    """The plain function with a plate that scales the likelihood itself."""

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([3, 1]).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", 48, **plate):
            return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)

    return model


@pytest.mark.parametrize("plate", [{"subsample_size": 12}, {"subsample": torch.arange(12)}])
def test_a_plate_that_subsamples_is_not_scaled_twice(plate: dict[str, Any]) -> None:
    with default_dtype(torch.float64):
        x, y = data()
        program = Program(subsampled(**plate), x, y, num_data=48)
        batch = program.batch(x, y)
        z = program.initial
        before = torch.get_rng_state()
        value = program.log_joint(z.expand(2, -1), batch)
        residual = y[:, 0] - x @ z
        expected = 4 * log_normal(residual, 0.7).sum() + log_normal(z, 2.0).sum()
        assert_close(value, expected.expand(2), rtol=1e-10, atol=0)
        assert torch.equal(before, torch.get_rng_state())  # the plate draws no rows


def test_a_plate_of_other_rows_than_the_data_is_refused() -> None:
    """Rows would count 48 / 12 = 4 times: the posterior of w would have half its sd."""
    x, y = data()
    with pytest.raises(ModelError, match=r"size 48, and the data have 12 rows: each would count 4"):
        Program(subsampled(subsample_size=12), x, y)


def test_a_scale_handler_on_y_tempers_the_likelihood_only() -> None:
    with default_dtype(torch.float64):
        x, y = data()

        def model(x: Tensor, y: Tensor | None = None) -> Any:
            w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([3, 1]).to_event(2))
            f = pyro.deterministic("f", x @ w)
            with poutine.scale(scale=0.25), pyro.plate("data", x.shape[0]):
                return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)

        program = Program(model, x, y)
        batch, z = program.batch(x, y), program.initial
        rows = log_normal(y[:, 0] - x @ z, 0.7)
        assert_close(program.log_likelihood(z, batch), rows, rtol=1e-10, atol=0)
        expected = 0.25 * rows.sum() + log_normal(z, 2.0).sum()
        assert_close(program.log_joint(z, batch), expected, rtol=1e-10, atol=0)


# --- coordinates ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prior-gamma", "prior-uniform", "user-module"])
def test_unconstrain_inverts_constrain(name: str) -> None:
    with default_dtype(torch.float64):
        s = Setting(name)
        values = s.program.constrain(s.z)
        assert {k: v.shape[1:] for k, v in values.items()} == {
            site.name: site.shape for site in s.program.sites
        }
        assert_close(s.program.unconstrain(values), s.z, rtol=1e-10, atol=1e-10)


def test_unconstrain_takes_other_dtypes() -> None:
    s = Setting("plain-function")
    z = s.program.unconstrain({"w": torch.tensor([[1], [2], [3]])})
    assert_close(z, torch.tensor([1.0, 2.0, 3.0]))


def test_prior_draws_follow_the_seed_and_leave_the_random_state() -> None:
    s = Setting("prior-gamma")
    before = torch.get_rng_state()
    z = s.program.prior_draws(5, s.x[:1], seed=3)
    assert torch.equal(before, torch.get_rng_state())
    assert z.shape == (5, s.program.num_latents)
    assert_close(z, s.program.prior_draws(5, s.x[:1], seed=3), rtol=0, atol=0)
    assert not torch.equal(z, s.program.prior_draws(5, s.x[:1], seed=4))


def test_prior_draws_are_of_the_prior() -> None:
    s = Setting("plain-function")  # w ~ Normal(0, 2)
    z = s.program.prior_draws(1_000, s.x[:1])
    num = z.numel()
    assert abs(float(z.mean())) / (2 / math.sqrt(num)) < 5
    assert abs(float(z.var()) / 4 - 1) / math.sqrt(2 / num) < 5


# --- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["normal-fixed", "heteroscedastic"])
def test_y_of_one_dimension_is_one_column(name: str) -> None:
    model = CASES["normal-fixed"].build()
    x, y = data()
    program = Program(model, x, y[:, 0])
    batch = program.batch(x, y[:, 0])
    assert_close(batch.y, y)
    assert_close(
        program.log_joint(program.initial, batch),
        log_joint(model, program.initial, x, y),
        rtol=1e-5,
        atol=1e-5,
    )


def test_class_labels_come_as_a_column_or_as_floats() -> None:
    x, y = data("classes")
    program = Program(CASES["categorical"].build(), x, y)
    for labels in (y.unsqueeze(-1), y.double(), y.to(torch.int32)):
        batch = program.batch(x, labels)
        assert batch.y.dtype == torch.int64
        assert torch.equal(batch.y, y)


def test_x_and_y_are_cast_to_the_model() -> None:
    x, y = data()
    program = Program(CASES["normal-learned"].build(), x.double(), y.double())
    batch = program.batch(x.double(), y.double())
    assert (program.dtype, batch.x.dtype, batch.y.dtype) == (torch.float32,) * 3


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("categorical", [0, 1, 2, 3], r"y holds 3, outside the support .* Categorical likelihood"),
        ("categorical", [0, 1, -1, 7], "y holds -1, 7, outside the support"),
        ("categorical", [0.0, 0.5, 1.0, 2.0], r"y holds 0\.5, outside the support"),
        ("bernoulli", [0, 1, 2, 0], r"y holds 2, outside .* Bernoulli likelihood, Boolean"),
        ("normal-fixed", [0.0, math.nan, 1.0, 1.0], "y holds nan, outside .* Normal likelihood"),
    ],
)
def test_values_outside_the_support_of_the_likelihood_are_named(
    name: str, labels: list[float], message: str
) -> None:
    x, y = data(CASES[name].target, 4)
    program = Program(CASES[name].build(), x, y)
    with pytest.raises(DataError, match=message):
        program.batch(x, torch.tensor(labels))


@pytest.mark.parametrize("place", [0, 3, 150, -1])
def test_a_label_beyond_the_classes_is_named_with_their_number(place: int) -> None:
    x, y = data(CASES["categorical"].target, 200)
    y = y.clone()
    y[place] = 3
    with pytest.raises(DataError, match=r"y holds 3, outside .* the 3 classes 0 \.\. 2: number"):
        Program(CASES["categorical"].build(), x, y).batch(x, y)


def test_rows_of_x_and_y_must_agree() -> None:
    x, y = data()
    with pytest.raises(ShapeError, match="x has 12 rows, but y has 11"):
        Program(plain_function, x, y[:11])


@pytest.mark.parametrize("columns", [2, 3])
def test_batch_refuses_other_numbers_of_targets(columns: int) -> None:
    x, y = data()
    program = Program(plain_function, x, y)
    with pytest.raises(
        ShapeError,
        match=rf"y has shape \(12, {columns}\), but the likelihood .* is over \(12, 1\): one row",
    ):
        program.batch(x, y.expand(-1, columns))


# --- parameters ----------------------------------------------------------------------------------


def test_the_models_own_parameters_are_cloned() -> None:
    model = UserModel()
    before = copy.deepcopy(dict(model.named_parameters()))
    x, y = data()
    program = Program(model, x, y)
    assert set(program.params) == {"first.bias", "offset", "noise_unconstrained"}
    with torch.no_grad():
        for value in program.params.values():
            value.add_(1.0)
    for name, value in model.named_parameters():
        assert value is not program.params[name]
        assert_close(value, before[name], rtol=0, atol=0)
        assert value.grad is None


def test_parameters_that_the_user_froze_stay_frozen() -> None:
    net = linear_net()
    dict(net.named_parameters())["0.bias"].requires_grad = False
    x, y = data()
    program = Program(models.bayesian(net, {"*.weight": priors.Normal()}), x, y)
    assert {name: value.requires_grad for name, value in program.params.items()} == {
        "net.0.bias": False,
        "net.2.bias": True,
    }


def test_what_a_pyro_module_reads_itself_stays_frozen() -> None:
    """Pyro's store sets ``requires_grad`` of such a parameter when the model is traced."""
    model = models.Rank1MLP(3, hidden=(), weight_prior=None)
    dict(model.named_parameters())["layers.0.weight"].requires_grad = False
    x, y = data()
    guides.AutoNormal(model).setup(x)
    program = Program(model, x, y)
    frozen = {"layers.0.weight": False, "layers.0.bias": True}
    assert {name: value.requires_grad for name, value in program.params.items()} == frozen
    assert {name: value.requires_grad for name, value in model.named_parameters()} == frozen


def test_an_elbo_holds_parameters_it_is_not_given_where_they_are() -> None:
    s = Setting("bayesian-partial")
    guide = guides.AutoDelta(s.model)
    guide.setup(s.x[:1])
    params = {f"guide.{k}": v for k, v in guide.named_parameters()}
    given = {f"model.{k}": v for k, v in s.program.params.items()}
    noise = guide.draw_noise(1)
    expected = s.program.elbo(guide, {**params, **given}, noise, s.batch)
    with torch.no_grad():
        for value in s.model.parameters():  # type: ignore[attr-defined]
            value.zero_()  # the program's clones count, not these
    assert_close(s.program.elbo(guide, params, noise, s.batch), expected)


def test_params_stand_in_for_the_models_own() -> None:
    with default_dtype(torch.float64):
        s = Setting("user-module")
        moved = {name: value.detach() + 0.5 for name, value in s.program.params.items()}
        actual = s.program.log_joint(s.z[0], s.batch, moved)
        with torch.no_grad():
            for value in s.model.parameters():  # type: ignore[attr-defined]
                value.add_(0.5)
        assert_close(actual, log_joint(s.model, s.z[0], s.x, s.y), rtol=1e-10, atol=0)


def test_a_prior_that_depends_on_a_parameter_follows_it() -> None:
    class Learned(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.spread = PyroParam(torch.tensor(1.5), constraint=constraints.positive)
            self.w: Any = PyroSample(
                lambda self: dist.Normal(0.0, self.spread).expand([3, 1]).to_event(2)
            )

        def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
            f = pyro.deterministic("f", x @ self.w)
            with pyro.plate("data", x.shape[0]):
                return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)

    with default_dtype(torch.float64):
        x, y = data()
        program = Program(Learned(), x, y)
        assert not program.latents.is_closed_form()
        z = program.initial
        for spread in (1.5, 0.4):
            params = {"spread_unconstrained": torch.tensor(math.log(spread))}
            expected = log_normal(z, spread).sum()
            assert_close(program.log_prior(z, x, params), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_prior_that_depends_on_a_site_follows_it_where_no_gradients_are_recorded(
    without: Callable[[], Any],
) -> None:
    with default_dtype(torch.float64):
        x, y = data()
        model = models.MLP(3, hidden=(2,), prior=priors.HalfCauchyScale(centred=True))
        usual = Program(model, x, y)
        guide, other = guides.AutoNormal(model), guides.AutoNormal(model)
        other.setup(x)
        with without():
            program = Program(model, x, y)
            guide.setup(x)
        z = torch.randn(usual.num_latents)
        assert_close(program.log_prior(z, x), usual.log_prior(z, x), rtol=0, atol=0)
        other.load_state_dict(guide.state_dict())
        assert guide.kl(10) == other.kl(10)


def test_tied_weights_stay_tied_as_sites_and_as_parameters() -> None:
    with default_dtype(torch.float64):
        x, y = data()
        tied = Program(models.bayesian(TiedNet()), x, y)
        assert [site.name for site in tied.sites[:-1]] == [
            "a.weight", "a.bias", "b.bias", "out.weight", "out.bias",
        ]  # fmt: skip
        partial = Program(models.bayesian(TiedNet(), {"out.*": priors.Normal()}), x, y)
        assert "net.b.weight" not in partial.params
        values = partial.constrain(partial.initial)
        w = torch.randn(3, 3)
        params = {**partial.params, "net.a.weight": w}
        h = torch.tanh(x @ w.T + params["net.a.bias"])
        h = torch.tanh(h @ w.T + params["net.b.bias"])
        expected = h @ values["out.weight"].T + values["out.bias"]
        assert_close(partial.function(partial.initial, x, params), expected, rtol=1e-10, atol=0)


# --- dtype ---------------------------------------------------------------------------------------


# the user's model and the function hold their priors in tensors that no module can move
@pytest.mark.parametrize("name", [n for n in CASES if n not in ("plain-function", "user-module")])
def test_double_moves_priors_and_parameters(name: str) -> None:
    case = CASES[name]
    model: Any = case.build()
    x, y = data(case.target)
    program = Program(model.double(), x, y)
    assert program.dtype == program.initial.dtype == torch.float64
    batch = program.batch(x, y)
    assert program.log_joint(program.initial, batch).dtype == torch.float64
    expected = log_joint(model, program.initial, batch.x, batch.y)
    actual = program.log_joint(program.initial, batch)
    assert_close(actual.detach(), expected.detach(), rtol=1e-10, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["normal-learned", "prior-gamma", "flat", "bayesian-conv"])
def test_cuda_moves_priors_and_data(name: str) -> None:
    case = CASES[name]
    model: Any = case.build()
    x, y = data(case.target)
    on_cpu = Program(copy.deepcopy(model).double(), x, y)
    program = Program(model.double().cuda(), x, y)
    batch = program.batch(x, y)
    assert program.device.type == program.initial.device.type == batch.y.device.type == "cuda"
    z = on_cpu.initial.expand(3, -1)
    actual = program.log_joint(z.cuda(), batch).cpu()
    assert_close(actual, on_cpu.log_joint(z, on_cpu.batch(x, y)), rtol=1e-9, atol=0)


def test_dtype_is_read_from_a_pyro_sample_where_there_is_nothing_else() -> None:
    class Weights(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            zeros = torch.zeros(3, 1, dtype=torch.float64)
            self.w: Any = PyroSample(dist.Normal(zeros, 1.0).to_event(2))

        def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
            f = pyro.deterministic("f", x @ self.w)
            with pyro.plate("data", x.shape[0]):
                return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)

    x, y = data()
    assert Program(Weights(), x, y).dtype == torch.float64


# --- models that cannot be batched ---------------------------------------------------------------


def branching(x: Tensor, y: Tensor | None = None) -> Any:
    """A branch on a sampled value: neither vmap nor a graph can follow it."""
    w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([3, 1]).to_event(2))
    f = pyro.deterministic("f", x @ w * (2.0 if w.sum() > 0 else 1.0))
    with pyro.plate("data", x.shape[0]):
        return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)


def test_a_model_that_cannot_be_batched_runs_draw_by_draw_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with default_dtype(torch.float64):
        x, y = data()
        program = Program(branching, x, y)
        batch = program.batch(x, y)
        z = torch.tensor([[1.0, 2.0, 0.5], [-1.0, 0.3, 0.1]])
        slope = z * torch.tensor([[2.0], [1.0]])
        rows = log_normal(y[:, 0] - slope @ x.T, 0.7)  # [S, N]
        assert_close(program.log_likelihood(z, batch), rows, rtol=1e-10, atol=1e-10)
        expected = rows.sum(-1) + log_normal(z, 2.0).sum(-1)
        assert_close(program.log_joint(z, batch), expected, rtol=1e-10, atol=0)
        f, predictive = program.predictive(z, x)
        assert_close(f[..., 0], slope @ x.T, rtol=1e-10, atol=1e-10)
        assert_close(predictive.log_prob(y), rows, rtol=1e-10, atol=1e-10)
    (record,) = [r for r in caplog.records if r.name == "pyro_bnn"]
    assert "branching cannot be batched over draws and runs draw by draw" in record.message
    assert "\n" not in record.message


def test_an_error_of_the_users_own_is_not_taken_for_one_of_batching(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x, y = data()
    program = Program(plain_function, x, y)
    z = program.initial.expand(2, -1)
    message = r"rows of shape \(7,\); .* rows of shape \(3,\).*shapes cannot be multiplied"
    with pytest.raises(ShapeError, match=message):
        program.function(z, torch.ones(4, 7))
    program.function(z, x)
    assert not [r for r in caplog.records if r.name == "pyro_bnn"]


def test_a_distribution_of_y_that_cannot_be_batched_is_refused() -> None:
    class Shared(dist.Normal):
        """Its tensors have fewer dimensions than its batch, behind the back of its parameters."""

        def __init__(self, loc: Tensor, scale: Tensor) -> None:
            super().__init__(loc, scale.expand_as(loc))
            self.hidden = scale.expand(1)

        def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
            return self

        def log_prob(self, value: Tensor) -> Tensor:
            density: Tensor = dist.Normal(self.loc, self.hidden[..., 0]).log_prob(value)
            return density

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([3, 1]).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", x.shape[0]):
            shared: Any = Shared(f, w[0, 0].exp())
            return pyro.sample("y", shared.to_event(1), obs=y)

    x, y = data()
    program = Program(model, x, y)
    with pytest.raises(
        ModelError, match="the Shared distribution of y cannot be batched over draws: write it"
    ):
        program.predictive(program.initial.expand(2, -1), x)


def test_a_gumbel_distribution_of_y_is_batched_over_draws() -> None:
    """Its transforms and their inverses hold each other."""

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([3, 1]).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", x.shape[0]):
            gumbel: Any = dist.Gumbel(f, torch.full_like(f, 2.0))
            return pyro.sample("y", gumbel.to_event(1), obs=y)

    x, y = data()
    program = Program(model, x, y)
    z = torch.stack([program.initial, program.initial + 1])
    f, *tensors = program.predictive_tensors(z, x)
    fn, _ = program.observed(z[0], x)
    observed = y.reshape(-1, 1)
    standard = (observed - f).squeeze(-1) / 2
    exact = -standard - (-standard).exp() - math.log(2)  # log density of Gumbel(f, 2)
    torch.testing.assert_close(with_tensors(fn, tensors, 2).log_prob(observed), exact)


# --- what is left as it was ----------------------------------------------------------------------


def joint(program: Program, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor]:
    return (program.log_joint(z, Batch(x, y)),)


def test_building_and_using_a_program_leaves_random_state_store_and_settings() -> None:
    pyro.clear_param_store()
    kept = pyro.param("noise", torch.tensor(9.0))
    leaf = pyro.get_param_store()._params["noise"]
    torch.manual_seed(5)
    flags = (True, False, True)
    try:
        pyro.settings.set(validate_poutine=flags[0], validate_infer=flags[2])
        torch.distributions.Distribution.set_default_validate_args(flags[1])
        before = torch.get_rng_state()
        x, y = data()
        for name in ("plain-function", "user-module", "normal-learned"):
            s_model = CASES[name].build()
            torch.set_rng_state(before)
            program = Program(s_model, x, y)
            batch = program.batch(x, y)
            captured = Captured(partial(joint, program), name)
            captured(program.initial, *batch)
            assert captured.is_captured
            program.predictive(program.initial.expand(2, -1), x)
            assert torch.equal(torch.get_rng_state(), before)
        assert pyro.settings.get("validate_poutine") is flags[0]
        assert pyro.settings.get("validate_infer") is flags[2]
        assert torch.distributions.Distribution._validate_args is flags[1]
        store = pyro.get_param_store()
        assert list(store.keys()) == ["noise"]
        assert store._params["noise"] is leaf
        assert float(kept.detach()) == float(store["noise"].detach()) == 9.0
    finally:
        pyro.enable_validation(is_validate=True)
        pyro.clear_param_store()


def test_state_is_restored_after_an_error_in_the_model() -> None:
    def broken(x: Tensor, y: Tensor | None = None) -> Any:
        pyro.param("inner", torch.tensor(1.0))
        raise ValueError("broken on purpose")

    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="broken on purpose"):
        Program(broken, *data())
    assert torch.equal(torch.get_rng_state(), before)
    assert "inner" not in pyro.get_param_store()
    assert torch.distributions.Distribution._validate_args


# --- failure reports -----------------------------------------------------------------------------


def test_non_finite_terms_name_the_sites() -> None:
    s = Setting("normal-learned")
    assert s.program.non_finite_terms(s.z[0], s.batch) == []
    z = s.z[0].clone()
    bias = next(site for site in s.program.sites if site.name == "layers.1.bias")
    z[bias.start] = math.nan
    assert s.program.non_finite_terms(z, s.batch) == ["layers.1.bias", "y"]


def test_pyro_module_in_a_plain_function_is_refused() -> None:
    net = linear_net()

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        pyro.module("net", net)
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        f = pyro.deterministic("f", net(x) + shift)
        with pyro.plate("data", x.shape[0]):
            return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)

    with pytest.raises(
        ModelError,
        match=r"parameter 'net\$\$\$0.weight' belongs to a pyro.module\(...\) statement in a plain "
        r"function; make the model a pyro.nn.PyroModule",
    ):
        Program(model, *data())


def test_a_support_that_depends_on_another_site_is_refused() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Any:
        width = pyro.sample("width", dist.LogNormal(0.0, 1.0))
        w = pyro.sample("w", dist.Uniform(-width, width).expand([3, 1]).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", x.shape[0]):
            return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)

    with pytest.raises(SiteError, match="support of the latent site 'w' depends on another site"):
        Program(model, *data())


def test_likelihood_family_and_number_of_outputs_are_read_from_the_model() -> None:
    for name, family, outputs in [
        ("heteroscedastic", dist.Normal, 4),
        ("categorical", dist.Categorical, 3),
        ("bernoulli", dist.Bernoulli, 1),
        ("user-module", dist.StudentT, 1),
    ]:
        program = Setting(name).program
        assert program.likelihood_family is family
        assert program.num_function_outputs == outputs


def test_likelihoods_of_two_models_from_one_object_are_apart() -> None:
    shared = likelihoods.Normal(0.5)
    first, second = (models.MLP(3, hidden=(4,), likelihood=shared) for _ in range(2))
    with torch.no_grad():
        first.likelihood.scale.fill_(9.0)
    assert float(second.likelihood.scale) == float(shared.scale) == 0.5


# --- what the model is besides its sites ----------------------------------------------------------


def model_after_x(x: Tensor, y: Tensor | None = None) -> Any:
    w = pyro.sample("w", dist.Normal(x.new_zeros(3, 1), 1.0).to_event(2))
    f = pyro.deterministic("f", x @ w)
    with pyro.plate("data", x.shape[0]):
        return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)


class LambdaModel(PyroModule):
    def __init__(self) -> None:
        super().__init__()
        zeros = torch.zeros
        self.w: Any = PyroSample(
            lambda _: dist.Normal(zeros(3, 1, dtype=torch.float64), 1.0).to_event(2)
        )

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        f = pyro.deterministic("f", x @ self.w)
        with pyro.plate("data", x.shape[0]):
            return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (model_after_x, torch.float64, torch.float64),
        (model_after_x, torch.float32, torch.float32),
        (LambdaModel(), torch.float64, torch.float64),
        (LambdaModel(), torch.float32, torch.float64),
        (plain_function, torch.float64, torch.float32),  # it samples in the default dtype
    ],
)
def test_a_model_that_names_no_tensor_runs_in_the_dtype_it_samples(
    model: Any, given: torch.dtype, expected: torch.dtype
) -> None:
    x, y = data()
    program = Program(model, x.to(given), y.to(given))
    assert (program.dtype, program.initial.dtype) == (expected, expected)


@pytest.mark.parametrize(
    ("name", "label", "family"), [("bernoulli", 1, "1"), ("categorical", 2, "2")]
)
def test_one_class_only_is_refused_in_the_rows_of_a_fit(name: str, label: int, family: str) -> None:
    x, y = data(CASES[name].target, 6)
    same = torch.full_like(y, label)
    with pytest.raises(DataError, match=f"all 6 rows of y are of one class, {family}: from one"):
        Program(CASES[name].build(), x, same)
    program = Program(CASES[name].build(), x, same, num_data=60)  # rows of a larger data set
    assert len(program.batch(x, same).y) == 6


@pytest.mark.parametrize("change", ["buffer", "dtype", "prior", "mode"])
def test_later_changes_of_the_model_change_nothing(change: str) -> None:
    x, y = data()
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 1)).eval()
    model = models.bayesian(net, likelihood=likelihoods.Normal(0.5)).eval()
    program = Program(model, x, y)
    batch, z = program.batch(x, y), program.initial.expand(2, -1)
    expected, draws = program.log_joint(z, batch), program.prior_draws(3, x[:1])
    likelihood: Any = model.likelihood
    if change == "buffer":
        likelihood.scale.fill_(5.0)
    elif change == "dtype":
        model.double()
    elif change == "prior":
        prior: Any = model.priors[0]
        prior.distribution.base_dist.scale = prior.distribution.base_dist.scale * 3
    else:
        model.train()
    assert_close(program.log_joint(z, batch), expected)
    assert_close(program.prior_draws(3, x[:1]), draws)
    assert model.training == (change == "mode")
    if change == "buffer":
        assert float(likelihood.scale) == 5.0


def test_prior_draws_follow_the_parameters_they_are_given() -> None:
    class Scaled(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.t = PyroParam(torch.tensor(1.0), constraint=constraints.positive)
            self.w: Any = PyroSample(lambda m: dist.Normal(0.0, m.t).expand([3, 1]).to_event(2))

        def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
            f = pyro.deterministic("f", x @ self.w)
            with pyro.plate("data", x.shape[0]):
                return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)

    x, y = data()
    program = Program(Scaled(), x, y)
    (name,) = program.params
    trained = {name: torch.tensor(7.0).log()}
    draws = program.prior_draws(5, x[:1], seed=3)
    assert_close(program.prior_draws(5, x[:1], seed=3, params=trained), 7 * draws)
    program.params = trained
    assert_close(program.prior_draws(5, x[:1], seed=3), 7 * draws)


@pytest.mark.parametrize("message", [("no batches",), ()], ids=["with a reason", "without"])
def test_draws_that_cannot_be_batched_are_taken_one_by_one(message: tuple[str, ...]) -> None:
    def double(z: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(z):
            raise NotImplementedError(*message)
        return 2 * z

    z = torch.arange(6.0).view(3, 2)
    assert torch.equal(over_draws(double, z), 2 * z)


def test_tensors_of_a_distribution_over_draws_are_freed_with_it() -> None:
    """At once, and not when garbage is collected, which is seldom where blocks are few objects."""
    tensors = [torch.zeros(4, 3), torch.ones(4, 3)]
    first = weakref.ref(tensors[0])
    gc.collect()
    gc.disable()
    try:
        assert with_tensors(dist.Normal(torch.zeros(3), 1.0), tensors, 4).batch_shape == (4, 3)
        del tensors
        assert first() is None
    finally:
        gc.enable()
