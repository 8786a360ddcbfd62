"""The contract of a model, its sites, and what the one pass through Pyro leaves as it was."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Callable
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from torch import Tensor, nn
from torch.distributions import biject_to
from torch.testing import assert_close

from pyro_bnn import guides, models
from pyro_bnn.errors import ModelError, ShapeError, SiteError
from pyro_bnn.priors.prior import tensors_of, unvalidated
from pyro_bnn.program import Joint, Program
from pyro_bnn.program.contract import AS_IT_IS, CORRECTED, FEW, check_model
from pyro_bnn.program.distributions import base_distribution, with_tensors
from pyro_bnn.program.handlers import evaluate, log_prob, trace_model, without_validation
from pyro_bnn.program.random_state import derived_seed, isolated
from pyro_bnn.sites import Site, is_real, require_sites
from tests.plain_pyro import data, default_dtype, plain_function

Model = Callable[..., Any]


# --- refusals ------------------------------------------------------------------------------------


def weights() -> Tensor:
    sampled: Tensor = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 1]).to_event(2))
    return sampled


def observe(f: Tensor, y: Tensor | None, name: str = "y") -> Any:
    return pyro.sample(name, dist.Normal(f, 0.1).to_event(1), obs=y)


def without_y(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", x @ weights())
    with pyro.plate("data", x.shape[0]):
        return observe(f, y, "target")


def without_plate(x: Tensor, y: Tensor | None = None) -> Any:
    return observe(pyro.deterministic("f", x @ weights()), y)


def another_plate(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", x @ weights())
    with pyro.plate("rows", x.shape[0]):
        return observe(f, y)


def without_f(x: Tensor, y: Tensor | None = None) -> Any:
    f = x @ weights()
    with pyro.plate("data", x.shape[0]):
        return observe(f, y)


def sampled_f(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.sample("f", dist.Normal(x @ weights(), 1.0).to_event(2))
    with pyro.plate("data", x.shape[0]):
        return observe(f, y)


def flat_f(x: Tensor, y: Tensor | None = None) -> Any:
    """The usual regression of Pyro's tutorials; one row is squeezed to a number."""
    f = pyro.deterministic("f", (x @ weights()).squeeze())
    with pyro.plate("data", x.shape[0]):
        return pyro.sample("y", dist.Normal(f, 0.1), obs=y)


def flat_event(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", (x @ weights()).squeeze(-1))
    with pyro.plate("data", x.shape[0]):
        return observe(f, y)


def flat_against_columns(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", (x @ weights()).squeeze(-1))
    with pyro.plate("data", x.shape[0]):
        return pyro.sample("y", dist.Normal(f, 0.1 * torch.ones(x.shape[0], 1)), obs=y)


def summed_f(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", (x @ weights()).sum())
    with pyro.plate("data", x.shape[0]):
        return pyro.sample("y", dist.Normal(f, 0.1), obs=y)


def transposed_f(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", (x @ weights()).T)
    with pyro.plate("data", x.shape[0]):
        return pyro.sample("y", dist.Normal(f.T, 0.1).to_event(1), obs=y)


def broadcasting(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", x @ weights())
    with pyro.plate("data", x.shape[0]):
        return pyro.sample("y", dist.Normal(f, 0.1), obs=y)


def not_observing(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", x @ weights())
    with pyro.plate("data", x.shape[0]):
        return observe(f, None)


def two_observed(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", x @ weights())
    with pyro.plate("data", x.shape[0]):
        pyro.sample("z", dist.Normal(f, 0.1).to_event(1), obs=y)
        return observe(f, y)


def factored(x: Tensor, y: Tensor | None = None) -> Any:
    w = weights()
    pyro.factor("penalty", -w.abs().sum())
    f = pyro.deterministic("f", x @ w)
    with pyro.plate("data", x.shape[0]):
        return observe(f, y)


def factor_a_row(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", x @ weights())
    with pyro.plate("data", x.shape[0]):
        pyro.factor("penalty", -torch.ones(x.shape[0]))
        return observe(f, y)


def per_row(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", x @ weights())
    with pyro.plate("data", x.shape[0]):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        return observe(f + shift.unsqueeze(-1), y)


def discrete(x: Tensor, y: Tensor | None = None) -> Any:
    sign = pyro.sample("sign", dist.Bernoulli(0.5))
    f = pyro.deterministic("f", x @ weights() * sign)
    with pyro.plate("data", x.shape[0]):
        return observe(f, y)


def without_latents(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", x[:, :1])
    with pyro.plate("data", x.shape[0]):
        return observe(f, y)


def fixed_f(x: Tensor, y: Tensor | None = None) -> Any:
    """What is recorded is not what y depends on, and has no row for each of x."""
    f = x @ weights()
    pyro.deterministic("f", torch.zeros(12, 1))
    with pyro.plate("data", x.shape[0]):
        return observe(f, y)


def own_plate(x: Tensor, y: Tensor | None = None) -> Any:
    """A latent site of rows in a plate of its own, before f."""
    w = weights()
    with pyro.plate("shifts", x.shape[0]):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
    f = pyro.deterministic("f", x @ w + shift.unsqueeze(-1))
    with pyro.plate("data", x.shape[0]):
        return observe(f, y)


REFUSED: dict[str, tuple[Model, type[Exception], str, bool]] = {
    "no y": (without_y, ModelError, 'the model has no sample site named "y"; it should', True),
    "no plate": (without_plate, ModelError, 'the site "y" is not inside pyro.plate("data"', True),
    "another plate": (another_plate, ModelError, 'site "y" is not inside pyro.plate("data"', True),
    "no f": (without_f, ModelError, 'does not record its network output "f"; add the first', True),
    "sampled f": (sampled_f, ModelError, 'the model does not record its network output "f"', True),
    "f of all rows": (summed_f, ModelError, "f has shape (), but", True),
    "f of one dimension, an event": (
        flat_event,
        ShapeError,
        "y has shape (12, 1), but the likelihood of this network output is over (12, 12)",
        False,
    ),
    "f of one dimension, broadcast": (
        flat_against_columns,
        ShapeError,
        'the distribution of "y" has batch shape (12, 12), not (12,): ',
        True,
    ),
    "f of fixed rows": (fixed_f, ModelError, "f has shape (12, 1), but", True),
    "a plate of its own": (
        own_plate,
        SiteError,
        "the latent site 'shift' has shape (12,) where x has 12 rows, and (1,) where it has one",
        False,
    ),
    "f transposed": (transposed_f, ModelError, "f has shape (1, 12), but", True),
    "f broadcasts": (
        broadcasting,
        ShapeError,
        'the distribution of "y" has batch shape (12, 12), not (12,): f [N, 1] in a plate',
        True,
    ),
    "y not observed": (not_observing, ModelError, 'the site "y" does not observe y: pass', True),
    "two observed": (two_observed, ModelError, "the model observes 'z' beside \"y\"; one", True),
    "a factor": (
        factored,
        ModelError,
        "the factor 'penalty' depends on a latent site: write its density into that site's",
        False,
    ),
    "a factor a row": (
        factor_a_row,
        ModelError,
        "the factor 'penalty' lies inside the plate \"data\", which scales it with the rows",
        False,
    ),
    "per row": (
        per_row,
        SiteError,
        "the latent site 'shift' lies inside the plate \"data\"",
        False,
    ),
    "discrete": (discrete, SiteError, "latent site 'sign' is discrete (Bernoulli); sum it", False),
    "no latents": (without_latents, SiteError, "the model has no latent sample site: give", False),
}


@pytest.mark.parametrize(("model", "error", "message", "shows"), REFUSED.values(), ids=REFUSED)
def test_models_outside_the_contract_are_refused(
    model: Model, error: type[Exception], message: str, shows: bool
) -> None:
    with pytest.raises(error) as caught:
        Program(model, *data())
    assert type(caught.value) is error
    assert message in str(caught.value)
    assert (CORRECTED in str(caught.value)) is shows


RUN_AS_THEY_ARE = ("no y", "no plate", "no f", "two observed", "per row", "a plate of its own")


@pytest.mark.parametrize("name", RUN_AS_THEY_ARE)
def test_what_is_no_network_on_rows_is_told_of_a_call_and_runs_on_it(name: str) -> None:
    model, error, _, _ = REFUSED[name]
    x, y = data()
    with pytest.raises(error) as caught:
        Program(model, x, y)
    assert AS_IT_IS.strip() in str(caught.value)
    joint = Joint(model, (x, y))
    assert joint.log_joint(joint.initial).isfinite()


POINTS: dict[str, Any] = {
    "an event": dist.Delta(torch.tensor(2.0)).to_event(0),
    "expanded": dist.Delta(torch.tensor(2.0)).expand([2]).to_event(1),
    "masked": dist.Delta(torch.ones(2), event_dim=1).mask(torch.ones(()) > 0),
    "transformed": dist.TransformedDistribution(
        dist.Delta(torch.ones(2)).to_event(1), [dist.transforms.ExpTransform()]
    ),
    "values": dist.Empirical(torch.arange(3.0), torch.zeros(3)),
}


@pytest.mark.parametrize("prior", POINTS.values(), ids=POINTS)
def test_a_prior_without_a_density_is_refused(prior: Any) -> None:
    """A sampler went on for minutes without a word, at densities of minus infinity."""

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        scale = pyro.sample("scale", prior).sum()
        f = pyro.deterministic("f", x @ weights() * scale)
        with pyro.plate("data", x.shape[0]):
            return observe(f, y)

    kind = "Empirical" if isinstance(prior, dist.Empirical) else "Delta"
    expected = f"the prior of 'scale' is {kind}, which has no density .*deterministic.'scale', val"
    for taken in (model, poutine.scale(model, 2.0)):
        with pytest.raises(SiteError, match=expected):
            Program(taken, *data())
    with pytest.raises(SiteError, match=expected):
        guides.AutoNormal(model).setup(data()[0])


def test_what_is_to_be_written_for_a_point_is_a_model() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Any:
        scale = pyro.deterministic("scale", torch.tensor(2.0))
        f = pyro.deterministic("f", x @ weights() * scale)
        with pyro.plate("data", x.shape[0]):
            return observe(f, y)

    x, y = data()
    program, z = Program(model, x, y), torch.tensor([0.5, -1.0, 2.0])
    assert [site.name for site in program.sites] == ["w"]
    assert_close(program.function(z, x), 2.0 * (x @ z)[:, None])


@pytest.mark.parametrize("columns", [1, None])
def test_f_of_one_dimension_is_a_column(columns: int | None) -> None:
    x, y = data()
    y = y if columns else y[:, 0]
    flat, whole = Program(flat_f, x, y), Program(plain_function, x, y)
    assert flat.num_function_outputs == 1
    z = torch.linspace(-1, 1, 6).reshape(2, 3)
    assert_close(flat.function(z, x), (z @ x.T).unsqueeze(-1))
    rows = flat.log_likelihood(z, flat.batch(x, y))
    expected = dist.Normal(z @ x.T, 0.1).log_prob(y.reshape(-1))  # [2, 12]
    assert_close(rows, expected)
    assert whole.function(z, x).shape == flat.function(z, x).shape == (2, 12, 1)
    assert flat.predictive(z, x[:1]).f.shape == (2, 1, 1)


def test_the_corrected_lines_are_a_model() -> None:
    source = f"def model(x, y=None):\n    f = x @ weights(){CORRECTED}\n"
    scope: dict[str, Any] = {"pyro": pyro, "dist": dist, "weights": weights}
    exec(textwrap.dedent(source), scope)
    x, y = data()
    program = Program(scope["model"], x, y[:, 0])
    assert program.log_likelihood(program.initial, program.batch(x, y[:, 0])).shape == (12,)


MODULES: dict[str, tuple[nn.Module, str]] = {
    "BatchNorm1d": (
        nn.BatchNorm1d(4),
        "net.1 is a BatchNorm1d in training mode: its output for a row depends on the other rows "
        "of the batch; use torch.nn.GroupNorm instead, or call .eval() on it",
    ),
    "Dropout": (
        nn.Dropout(0.1),
        "net.1 is a Dropout in training mode: f would be random given the weights; take it out, "
        "or call .eval() on it",
    ),
    "LSTM": (
        nn.LSTM(4, 4),
        "net.1 is a LSTM, whose kernel cannot be batched over draws; use "
        "pyro_bnn.layers.GRUCell, or a cell in plain operations",
    ),
    "GRU": (nn.GRU(4, 4), "net.1 is a GRU, whose kernel cannot be batched"),
    "LSTMCell": (nn.LSTMCell(4, 4), "net.1 is a LSTMCell, whose kernel cannot be batched"),
}


@pytest.mark.parametrize(("module", "message"), MODULES.values(), ids=MODULES)
def test_modules_that_cannot_be_batched_are_refused(module: nn.Module, message: str) -> None:
    net = nn.Sequential(nn.Linear(3, 4), module, nn.Linear(4, 1))
    with pytest.raises(ModelError) as caught:
        Program(models.bayesian(net), *data())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "module", [nn.BatchNorm1d(4).eval(), nn.Dropout(0.1).eval(), nn.Dropout(0)]
)
def test_the_same_modules_out_of_training_are_taken(module: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(3, 4), module, nn.Linear(4, 1))
    x, y = data()
    program = Program(models.bayesian(net), x, y)
    z = program.initial.expand(2, -1)
    batch = program.batch(x, y)
    one = program.log_joint(program.initial, batch)
    assert_close(program.log_joint(z, batch), one.expand(2))


class Dropped(nn.Module):
    """Dropout as a function, on or off as the module is."""

    def forward(self, h: Tensor) -> Tensor:
        return nn.functional.dropout(h, 0.1, training=self.training)


@pytest.mark.parametrize("rows", [12, FEW + 20])
@pytest.mark.parametrize("module", [Dropped(), nn.RReLU()])
def test_a_network_that_draws_random_numbers_is_refused(module: nn.Module, rows: int) -> None:
    net = nn.Sequential(nn.Linear(3, 4), module, nn.Linear(4, 1))
    x, y = torch.randn(rows, 3), torch.randn(rows, 1)
    with pytest.raises(ModelError, match=r"f would be random given the weights; take it out, or"):
        Program(models.bayesian(net.train()), x, y)
    Program(models.bayesian(net.eval()), x, y)


def test_y_of_another_shape_is_refused() -> None:
    x, _ = data()
    with pytest.raises(ShapeError, match=r"y has shape \(12, 2\), but .* is over \(12, 1\): one"):
        check_model(plain_function, x, torch.zeros(12, 2))


def test_check_model_returns_y_as_the_likelihood_takes_it() -> None:
    x, y = data()
    trace, matched, _ = check_model(plain_function, x, y[:, 0].double())
    assert [site.name for site in trace.sites] == ["w"]
    assert list(trace.param_messages) == ["noise"]
    assert matched.dtype == torch.float32
    assert_close(matched, y)


def test_a_guide_that_misses_a_site_is_named() -> None:
    trace = trace_model(models.MLP(3, hidden=(2,)), (torch.zeros(1, 3),))
    names = [site.name for site in trace.sites]
    require_sites(names, trace.sites)
    with pytest.raises(
        SiteError,
        match=r"does not cover 'layers.0.weight', 'likelihood.scale': every latent site of the "
        "model needs a sample statement of the same name",
    ):
        require_sites(names[1:-1], trace.sites)


# --- sites ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda: dist.Normal(torch.zeros(2, 3), 1.0).to_event(2),
        lambda: dist.LogNormal(torch.zeros(2, 3), 1.0).to_event(2),
        lambda: dist.Uniform(-torch.ones(4), 2.0).to_event(1),
        lambda: dist.Dirichlet(torch.ones(4)),
        lambda: dist.LKJCholesky(3, 1.0),
    ],
    ids=["Normal", "LogNormal", "Uniform", "Dirichlet", "LKJCholesky"],
)
def test_a_site_maps_its_slice_of_z_and_counts_the_volume(build: Callable[[], Any]) -> None:
    with default_dtype(torch.float64):
        fn = build()

        def model() -> None:
            pyro.sample("before", dist.Normal(0.0, 1.0))
            pyro.sample("site", fn)

        site = trace_model(model).sites[1]
        n = site.stop - site.start
        assert (site.name, site.start) == ("site", 1)
        z = torch.randn(5, 1 + n, generator=torch.Generator().manual_seed(0))
        value = site.value(z)
        assert value.shape == (5, *fn.shape())
        assert fn.support.check(value).all()
        assert_close(site.flatten(value), z[:, 1:], rtol=1e-8, atol=1e-8)
        # the volume of the map: by autograd where value and z have as many entries
        for row, log_det in zip(z, site.log_abs_det_jacobian(z), strict=True):
            if isinstance(fn, dist.Dirichlet | dist.LKJCholesky):
                t = biject_to(fn.support)
                u = row[1:]
                assert_close(log_det, t.log_abs_det_jacobian(u, t(u)))
                continue
            jacobian = torch.func.jacrev(lambda r: site.value(r).flatten())(row)[:, 1:]
            assert_close(log_det, jacobian.det().abs().log(), rtol=1e-10, atol=1e-10)


def test_real_sites_are_left_as_they_are() -> None:
    site = Site(
        "w", torch.Size([2]), constraints.independent(constraints.real, 1), 1, 3, torch.Size([2])
    )
    z = torch.arange(8.0).reshape(2, 4)
    assert site.is_real
    assert_close(site.value(z), z[:, 1:3])
    assert_close(site.log_abs_det_jacobian(z), torch.zeros(2))


@pytest.mark.parametrize(
    ("support", "expected"),
    [
        (constraints.real, True),
        (constraints.independent(constraints.real, 2), True),
        (constraints.positive, False),
        (constraints.unit_interval, False),
    ],
)
def test_is_real(support: constraints.Constraint, expected: bool) -> None:
    assert is_real(support) is expected


def test_auxiliary_sites_are_no_latents() -> None:
    def model() -> None:
        pyro.sample("noise", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
        pyro.sample("w", dist.Normal(0.0, 1.0))

    assert [site.name for site in trace_model(model).sites] == ["w"]


# --- state ---------------------------------------------------------------------------------------


def test_isolated_restores_random_state_and_store_even_after_an_error() -> None:
    pyro.clear_param_store()
    kept = pyro.param("kept", torch.tensor(1.0))
    before = torch.get_rng_state()

    def draw(seed: int | None) -> Tensor:
        with isolated(seed):
            assert "kept" not in pyro.get_param_store()
            pyro.param("inner", torch.tensor(2.0))
            return torch.randn(3)

    try:
        assert_close(draw(1), draw(1), rtol=0, atol=0)
        assert not torch.equal(draw(1), draw(2))
        assert_close(draw(None), draw(None), rtol=0, atol=0)  # from the state outside
        with contextlib.suppress(ZeroDivisionError), isolated(3):
            torch.randn(3)
            raise ZeroDivisionError
        assert torch.equal(torch.get_rng_state(), before)
        assert list(pyro.get_param_store().keys()) == ["kept"]
        assert pyro.param("kept") is kept
    finally:
        pyro.clear_param_store()


@pytest.mark.parametrize("torch_validates", [True, False])
def test_validation_flags_come_back(torch_validates: bool) -> None:
    flag = torch.distributions.Distribution.set_default_validate_args
    try:
        pyro.enable_validation(is_validate=True)
        flag(torch_validates)
        with contextlib.suppress(ZeroDivisionError), without_validation():
            assert not pyro.settings.get("validate_infer")
            assert not torch.distributions.Distribution._validate_args
            raise ZeroDivisionError
        assert pyro.settings.get("validate_infer")
        assert pyro.settings.get("validate_poutine")
        assert torch.distributions.Distribution._validate_args is torch_validates
    finally:
        pyro.enable_validation(is_validate=True)


def test_two_guides_of_one_model_do_not_meet_in_the_store() -> None:
    pyro.clear_param_store()
    x, y = data()
    model = models.MLP(3, hidden=(2,))
    program = Program(model, x, y)
    first, second = guides.AutoNormal(model), guides.AutoNormal(model)
    for guide in (first, second):
        guide.setup(x[:1])
    with torch.no_grad():
        first.loc.fill_(7.0)
    params = {f"guide.{k}": v for k, v in second.named_parameters()}
    program.elbo(second, params, torch.zeros(1, program.num_latents), program.batch(x, y))
    assert not (second.loc == 7.0).any()
    assert not pyro.get_param_store().keys()


# --- evaluation ----------------------------------------------------------------------------------


def test_evaluate_holds_sites_at_their_values() -> None:
    x, y = data()
    w = torch.tensor([[1.0], [2.0], [-1.0]])
    log_noise = torch.tensor(math.log(0.2))
    run = evaluate(
        plain_function, {"w": w}, x, y, store={"noise": (log_noise, constraints.positive)}
    )
    assert run.f is not None
    assert_close(run.f, x @ w)
    expected = dist.Normal(x @ w, 0.2).log_prob(y)[:, 0]
    assert_close(log_prob(run.y), expected)
    assert list(run.latent) == ["w"]


def test_evaluate_without_y_samples_nothing() -> None:
    x, _ = data()
    before = torch.get_rng_state()
    run = evaluate(plain_function, {"w": torch.zeros(3, 1)}, x)
    assert torch.equal(torch.get_rng_state(), before)
    assert_close(run.y["value"], torch.zeros(len(x), 1))


def test_masked_rows_have_no_log_density() -> None:
    x, y = data()
    x[:, 0] = x[:, 0].sort(descending=True).values
    fifth = x[4, 0]

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        f = pyro.deterministic("f", x @ weights())
        mask = cast(Any, x[:, 0] >= fifth)
        with pyro.plate("data", x.shape[0]), pyro.poutine.mask(mask=mask):
            return observe(f, y)

    program = Program(model, x, y)
    rows = program.log_likelihood(program.initial, program.batch(x, y))
    assert (rows[5:] == 0).all()
    assert (rows[:5] != 0).all()


# --- distributions over draws --------------------------------------------------------------------


def per_draw(kind: str, row: Tensor, num_rows: int = 4) -> Any:
    """A distribution over rows whose parameters depend on a draw, some of them shared by rows."""
    f = row[:2] + torch.arange(2.0 * num_rows).reshape(num_rows, 2)  # [N, 2]
    spread = row[2].exp()
    tril = torch.stack([torch.stack([spread, spread * 0]), torch.stack([row[0], spread])])
    affine: Any = torch.distributions.AffineTransform(f, spread)
    builders: dict[str, Callable[[], Any]] = {
        "Normal": lambda: dist.Normal(f, spread).to_event(1),
        "StudentT": lambda: dist.StudentT(4.0, f, spread).to_event(1),
        "LogNormal": lambda: dist.LogNormal(f, spread).to_event(1),
        "Categorical": lambda: dist.Categorical(logits=f),
        "Bernoulli": lambda: dist.Bernoulli(logits=f).to_event(1),
        "Poisson": lambda: dist.Poisson(f.abs()).to_event(1),
        "MultivariateNormal": lambda: dist.MultivariateNormal(f, scale_tril=tril),
        "LowRankMultivariateNormal": lambda: dist.LowRankMultivariateNormal(
            f, row[:2].unsqueeze(-1), spread.expand(2)
        ),
        "TransformedDistribution": lambda: dist.TransformedDistribution(
            dist.Normal(torch.zeros(num_rows, 2), 1.0), [affine]
        ).to_event(1),
        "SharedMixture": lambda: dist.MixtureSameFamily(
            dist.Categorical(logits=f), dist.Normal(f, spread)
        ),
    }
    return builders[kind]()


KINDS = (
    "Normal", "StudentT", "LogNormal", "Categorical", "Bernoulli", "Poisson", "MultivariateNormal",
    "LowRankMultivariateNormal", "TransformedDistribution", "SharedMixture",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_distribution_over_draws_equals_that_of_each(kind: str) -> None:
    rows = torch.tensor([[0.3, -0.2, 0.1], [1.0, 0.4, -0.5], [0.0, 0.7, 0.2], [0.1, 0.2, 0.3]])
    each = [unvalidated(per_draw(kind, row)) for row in rows]
    skeleton: list[Any] = []

    def tensors(row: Tensor) -> tuple[Tensor, ...]:
        skeleton[:] = [unvalidated(per_draw(kind, row))]
        return tuple(tensors_of(skeleton[0]))

    with without_validation():
        values = torch.func.vmap(tensors)(rows)
        batched = with_tensors(skeleton[0], values, 4)  # S = N: only the right dimension will do
        y = each[1].sample()
        assert batched.batch_shape == (4, *each[0].batch_shape)
        assert_close(batched.log_prob(y), torch.stack([fn.log_prob(y) for fn in each]))
        if kind != "TransformedDistribution":
            assert_close(batched.mean, torch.stack([fn.mean for fn in each]), equal_nan=True)
        assert batched.sample().shape == (4, *y.shape)


def test_unvalidated_reaches_into_expanded_and_nested_distributions() -> None:
    fn = dist.Normal(0.0, 1.0, validate_args=True).expand([3]).to_event(1)
    copy = unvalidated(fn)
    assert fn.base_dist._validate_args is True
    assert copy.base_dist._validate_args is False
    with pytest.raises(ValueError, match="within the support"):
        fn.log_prob(torch.full((3,), math.nan))
    assert copy.log_prob(torch.full((3,), math.nan)).isnan()


def test_base_distribution_takes_off_to_event() -> None:
    base = dist.Laplace(torch.zeros(2, 3), 1.0)
    assert base_distribution(base.to_event(1).to_event(1)) is base


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_may_read_the_y_it_returns(dtype: torch.dtype) -> None:
    def reading(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(x.new_zeros(3, 2), 1.0).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", x.shape[0]):
            y = pyro.sample("y", dist.Categorical(logits=f), obs=y)
        return torch.eye(2)[y]

    x = data()[0].to(dtype)
    run = evaluate(reading, {"w": torch.zeros(3, 2, dtype=dtype)}, x)
    assert_close(run.y["value"], torch.zeros(len(x), dtype=torch.long))


def fixed_plate(x: Tensor, y: Tensor | None = None) -> Any:
    f = pyro.deterministic("f", x @ weights())
    with pyro.plate("data", 12):
        return observe(f, y)


def test_a_plate_of_a_fixed_size_is_refused() -> None:
    message = r'the plate "data" has 12 rows whatever x has(.|\n)*x\.shape\[0\]'
    with pytest.raises(ModelError, match=message):
        check_model(fixed_plate, *data())


@pytest.mark.parametrize(("num_columns", "most"), [(3, 2_000), (100, 1_000), (1_000, FEW)])
def test_many_rows_are_not_all_run_to_look_at_a_model(num_columns: int, most: int) -> None:
    """Of rows of few numbers 100,000 numbers or 2,000 rows are run, once; of images, 100 rows."""
    seen = []

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        seen.append(len(x))
        return plain_function(x[:, :3], y)

    x, y = torch.zeros(12_000, num_columns), torch.randn(12_000)
    program = Program(model, x, y)
    assert max(seen) == most
    assert seen.count(most) == 1 or most == FEW
    assert program.num_data == 12_000
    assert_close(program.initial, Program(plain_function, x[:20, :3], y[:20]).initial)
    assert program.batch(x, y).y.shape == (12_000, 1)


def test_words_on_many_rows_are_of_all_of_them() -> None:
    x = torch.randn(1_000, 3)
    with pytest.raises(ShapeError, match=r"y has shape \(1000, 2\)"):
        check_model(plain_function, x, torch.zeros(1_000, 2))

    def of_all(x: Tensor, y: Tensor | None = None) -> Any:
        f = pyro.deterministic("f", x @ weights())
        with pyro.plate("data", 1_000):
            return observe(f, y)

    with pytest.raises(ModelError, match='the plate "data" has 1000 rows whatever x has'):
        check_model(of_all, x, torch.zeros(1_000))


def by_the_largest_row(x: Tensor, y: Tensor | None = None) -> Any:
    tau = pyro.sample("tau", dist.Uniform(0.0, float(x.max())))
    f = pyro.deterministic("f", torch.sigmoid(x - tau))
    with pyro.plate("data", len(x)):
        return observe(f, y)


def test_sites_that_depend_on_the_rows_are_those_of_all_rows() -> None:
    rows = torch.linspace(0.1, 1.0, 1_000)[:, None]
    for x in (rows, rows.flip(0)):
        trace, _, _ = check_model(by_the_largest_row, x, torch.zeros(1_000))
        bounds: Any = trace.sites[0].support
        assert float(bounds.upper_bound) == 1.0


def by_the_size_of_all_rows(x: Tensor, y: Tensor | None = None) -> Any:
    w = pyro.sample("w", dist.Normal(torch.zeros(1, 1), 1 / x.square().mean().sqrt()).to_event(2))
    f = pyro.deterministic("f", x @ w)
    with pyro.plate("data", len(x)):
        return observe(f, y)


def by_the_number_of_rows(x: Tensor, y: Tensor | None = None) -> Any:
    tau = pyro.sample("tau", dist.HalfCauchy(torch.tensor(1.0 / len(x) ** 0.5)))  # of a horseshoe
    f = pyro.deterministic("f", tau * x)
    with pyro.plate("data", len(x)):
        return observe(f, y)


@pytest.mark.parametrize("num_rows", [2, 1_000])
@pytest.mark.parametrize(
    ("model", "name"),
    [(by_the_largest_row, "tau"), (by_the_size_of_all_rows, "w"), (by_the_number_of_rows, "tau")],
)
def test_a_prior_made_of_the_rows_is_refused(model: Any, name: str, num_rows: int) -> None:
    """It is evaluated on other rows: of a batch, or, where a draw is from the prior, of one."""
    rows = torch.linspace(0.1, 1.0, num_rows)[:, None]
    with pytest.raises(ModelError, match=f"the prior of '{name}' is made of the rows of x"):
        Program(model, rows, torch.zeros(num_rows))

    def constant(x: Tensor, y: Tensor | None = None) -> Any:
        scale = pyro.sample("scale", dist.HalfCauchy(torch.tensor(100.0)))
        # of the shape of x, and of the value of another site
        w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1], 1), scale).to_event(2))
        # a transform that keeps the draw it has made
        shift = dist.transforms.AffineTransform(0.0, 2.0, cache_size=1)
        b = pyro.sample("b", dist.TransformedDistribution(dist.Normal(0.0, 1.0), [shift]))
        f = pyro.deterministic("f", x @ w + b)
        with pyro.plate("data", len(x)):
            return observe(f, y)

    assert Program(constant, rows, torch.zeros(num_rows)).num_latents == 3


@pytest.mark.parametrize("num_drawn", [64, 100, 128])
def test_a_plate_that_draws_its_own_rows_is_refused_for_many_too(num_drawn: int) -> None:
    def subsampled(x: Tensor, y: Tensor | None = None) -> Any:
        f = pyro.deterministic("f", x @ weights())
        with pyro.plate("data", len(x), subsample_size=min(num_drawn, len(x))) as index:
            return observe(f[index], None if y is None else y[index])

    x, y = torch.randn(1_000, 3), torch.zeros(1_000, 1)
    with pytest.raises(ShapeError, match=rf"batch shape \({num_drawn},\), not \(1000,\)"):
        check_model(subsampled, x, y)


def test_handlers_of_the_caller_change_nothing() -> None:
    x, y = data()
    with isolated(1):
        program = Program(plain_function, x, y)
    batch, z = program.batch(x, y), program.initial
    expected = program.log_joint(z, batch)
    with poutine.trace() as tracer, poutine.scale(scale=0.1), poutine.mask(mask=False):
        actual = program.log_joint(z, batch)
        program.predictive(z.expand(2, -1), x)
        Program(plain_function, x, y)
        trace_model(plain_function, (x,))
    assert_close(actual, expected)
    assert set(tracer.trace.nodes) <= {"_INPUT", "_RETURN"}


def test_derived_streams_are_apart_and_follow_the_seed() -> None:
    seeds = [derived_seed(seed, stream) for seed in (0, 1, -1) for stream in (1, 2)]
    assert len({*seeds, 0, 1}) == 8
    assert derived_seed(1, 2) == seeds[3]
