"""SVI compiled, captured and through plain Pyro: the same steps, the same complaints."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import torch._inductor
from torch import Tensor, nn

from pyro_bnn import SVI, guides, likelihoods, models, priors
from pyro_bnn.capture import Captured
from pyro_bnn.errors import CaptureError, OptionError
from pyro_bnn.infer import compiling
from pyro_bnn.infer.svi import step_loss, training
from pyro_bnn.infer.svi.bound_step import BoundStep
from pyro_bnn.posterior import GuidePosterior
from tests.collection import rest_in_soak
from tests.infer.test_svi import breaking_at, diverged, mlp, params_of, run
from tests.oracle import linear_gaussian
from tests.plain_pyro import data
from tests.test_program import branching


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "pyro_bnn"]


def partly_bayesian() -> models.BayesianModule:
    """A net whose first layer is a point estimate."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return models.bayesian(net, {"2.*": priors.Normal()}, likelihoods.Normal(0.3)).double()


def rank1() -> models.Rank1MLP:
    return models.Rank1MLP(3, hidden=(4,), activation="tanh").double()


def linear(num_inputs: int = 3) -> models.LinearRegression:
    """A model of few operations, for what takes seconds an operation to compile."""
    return models.LinearRegression(num_inputs, likelihood=likelihoods.Normal(0.3)).double()


def decayed(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.1)


PATHS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "minibatches": (
        lambda: mlp(None),
        guides.AutoNormal,
        {"batch_size": 8, "loc_warmup": 40, "kl_warmup": 60, "clip_norm": 20.0},
    ),
    "one row left over": (
        lambda: mlp(None),
        guides.AutoDelta,
        {"batch_size": 19, "schedule": "constant"},
    ),
    "draws for each row": (
        lambda: mlp(None),
        guides.AutoLowRankMultivariateNormal,
        {"batch_size": 6, "per_example_draws": True, "num_particles": 2},
    ),
    "signs of rows": (
        lambda: mlp(None),
        guides.AutoNormal,
        {"batch_size": 6, "estimator": "flipout", "num_particles": 2},
    ),
    "outputs of rows": (
        lambda: mlp(None),
        guides.AutoNormal,
        {"batch_size": 8, "estimator": "local_reparameterization"},
    ),
    "no draws": (lambda: mlp(None), guides.AutoNormal, {"estimator": "analytic"}),
    "point estimates": (
        partly_bayesian,
        guides.AutoMultivariateNormal,
        {"batch_size": 7, "num_particles": 2, "clip_norm": 5.0},
    ),
    "mixture with weight decay": (
        rank1,
        functools.partial(guides.AutoRank1Mixture, num_components=2),
        {"batch_size": 6, "kl_warmup": 60},
    ),
    "weights of components": (
        lambda: mlp(None),
        functools.partial(guides.AutoNormalMixture, num_components=3),
        {"batch_size": 6, "num_particles": 2},
    ),
    "tied scales": (
        lambda: mlp(None),
        guides.AutoKTiedNormal,
        {"batch_size": 6, "num_particles": 2},
    ),
    "directions and radii": (
        lambda: mlp(None),
        guides.AutoRadial,
        {"batch_size": 7, "num_particles": 2},
    ),
    "relaxed masks": (
        lambda: mlp(None),
        functools.partial(guides.AutoDropout, kind="concrete", drop_inputs=True),
        {"batch_size": 7, "num_particles": 2},
    ),
    "a family a layer": (
        lambda: mlp(None),
        functools.partial(
            guides.AutoComposite,
            parts={
                "layers.0": functools.partial(guides.AutoLowRankMultivariateNormal, rank=2),
                "layers.-1.weight": guides.AutoMultivariateNormal,
                "layers.-1.bias": guides.AutoDelta,
            },
        ),
        {"batch_size": 6, "num_particles": 2, "loc_warmup": 40},
    ),
    "low rank by layer": (
        lambda: mlp(None),
        functools.partial(guides.AutoLowRankMultivariateNormal, block="layer"),
        {"batch_size": 6},
    ),
    "all rows, AdamW": (
        lambda: mlp(None),
        guides.AutoNormal,
        {"optimizer": functools.partial(decayed, lr=0.02), "loc_warmup": 40},
    ),
    "SGD": (
        lambda: mlp(None),
        guides.AutoNormal,
        {
            "optimizer": torch.optim.SGD,
            "learning_rate": 1e-4,
            "batch_size": 8,
            "clip_norm": 50.0,
        },
    ),
}


COMPILED = ["minibatches", "signs of rows", "all rows, AdamW", "low rank by layer", "no draws"]
INTERPRETED = ["draws for each row", "weights of components"]
OF_GUIDES = [  # of which test_paths compares values and gradients
    "weights of components",
    "tied scales",
    "directions and radii",
    "relaxed masks",
    "low rank by layer",
]
CAPTURED = [name for name in PATHS if name not in OF_GUIDES]


@functools.cache  # captured ones are compared with plain and with compiled ones
def fitted(name: str, path: str) -> GuidePosterior:
    """80 steps along a path: ``"compiled"``, ``"interpreted"``, ``"captured"`` or ``"plain"``."""
    oracle = linear_gaussian()
    make, guide, options = PATHS[name]
    with torch.random.fork_rng(), pytest.MonkeyPatch.context() as patch:
        torch.manual_seed(3)
        if path == "plain":
            patch.setattr(training, "Captured", functools.partial(Captured, enabled=False))
        engine = SVI(guide, num_steps=80, compile=path in ("compiled", "interpreted"), **options)
        fit = engine.run(make(), (oracle.x, oracle.y), progress=False)
    assert isinstance(fit, GuidePosterior)
    return fit


def assert_agree(fit: GuidePosterior, plain: GuidePosterior) -> None:
    """Rounding differs in its last digit, and the steps multiply it by less than 10^4."""
    np.testing.assert_allclose(fit.losses, plain.losses, rtol=1e-9)
    torch.testing.assert_close(params_of(fit), params_of(plain), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(dict(fit.params), dict(plain.params), rtol=1e-8, atol=1e-9)


@pytest.mark.slow("whole fits")
@pytest.mark.parametrize(
    "name", rest_in_soak([(name,) for name in PATHS], [(name,) for name in CAPTURED])
)
def test_captured_and_plain_runs_agree_over_whole_runs(name: str) -> None:
    assert_agree(fitted(name, "captured"), fitted(name, "plain"))


@pytest.mark.slow("compiles")
@pytest.mark.parametrize(
    "name", rest_in_soak([(name,) for name in PATHS], [(name,) for name in COMPILED])
)
def test_compiled_and_captured_runs_agree_over_whole_runs(name: str) -> None:
    assert_agree(fitted(name, "compiled"), fitted(name, "captured"))


@pytest.mark.slow("whole fits")
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", INTERPRETED)
def test_the_graph_for_the_compiler_agrees_over_whole_runs(name: str) -> None:
    assert_agree(fitted(name, "interpreted"), fitted(name, "captured"))


@pytest.mark.slow("compiles")
@pytest.mark.parametrize(
    "options",
    [
        {"num_steps": 200, "data": 171},
        pytest.param({"num_steps": 10, "learning_rate": 1e200}, marks=pytest.mark.soak),
        pytest.param(
            {"num_steps": 10, "learning_rate": 1e200, "optimizer": torch.optim.SGD},
            marks=pytest.mark.soak,
        ),
        {"num_steps": 1, "learning_rate": 1.7e308, "clip_norm": 1e3, "optimizer": torch.optim.SGD},
    ],
    ids=["a broken batch", "a large step", "SGD", "the last step"],
)
def test_a_compiled_step_tells_the_same_of_a_divergence(options: dict[str, Any]) -> None:
    oracle = linear_gaussian()
    told = []
    for compiled in (False, True):
        own = dict(options)
        if "data" in own:
            own["data"] = breaking_at(oracle, own["data"])
        told.append(diverged(oracle, compile=compiled, **own))
    (expected, plain), (message, posterior) = told
    assert message == expected
    np.testing.assert_allclose(posterior.losses, plain.losses, rtol=1e-9)
    torch.testing.assert_close(params_of(posterior), params_of(plain), rtol=1e-9, atol=1e-12)


# The compiler


def no_compiler(*_: object, **__: object) -> None:
    raise RuntimeError("no C++ compiler")


@pytest.fixture
def compiling_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``compile="auto"`` compile a run of any length."""
    monkeypatch.setattr(compiling, "COMPILE_TIME", 0.0)
    monkeypatch.setattr(training, "C_TIME", 0.0)


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("compiling_always", "nothing_in_c")
@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD])
def test_without_a_compiler_a_long_run_says_so_once_and_goes_on(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    oracle = linear_gaussian()
    options: dict[str, Any] = {"num_steps": 20, "batch_size": 19, "learning_rate": 1e-3}
    expected = run(oracle, compile=False, optimizer=optimizer, **options)
    monkeypatch.setattr(torch._inductor, "compile", no_compiler)
    monkeypatch.setattr("pyro_bnn.capture.inductor.compiling._lowered", no_compiler)
    posterior = run(oracle, optimizer=optimizer, **options)
    np.testing.assert_allclose(posterior.losses, expected.losses, rtol=1e-9)
    torch.testing.assert_close(params_of(posterior), params_of(expected), rtol=1e-9, atol=1e-12)
    (line,) = lines(caplog)
    assert line == (
        "AutoNormal on LinearModel cannot be compiled and runs as an uncompiled graph: no C++ "
        "compiler"
    )
    with pytest.raises(CaptureError, match=r"cannot be compiled: no C\+\+ compiler"):
        run(oracle, compile=True, optimizer=optimizer, **options)


def test_few_numbers_are_compiled_by_a_c_compiler_alone_which_shorter_runs_gain_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """134 steps of 0.75 ms gain what C takes, were that 0.1 s."""
    monkeypatch.setattr("pyro_bnn.capture.inductor.compiling._lowered", no_compiler)
    monkeypatch.setattr(torch._inductor, "compile", no_compiler)
    monkeypatch.setattr(training, "C_TIME", 0.1)
    for num_steps in (133, 134):
        posterior = run(linear_gaussian(), num_steps=num_steps)
        assert posterior.options["compiled"] is (num_steps == 134)


@pytest.mark.usefixtures("nothing_in_c")
def test_what_is_not_written_in_c_is_left_as_it_is_in_a_shorter_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No other compiler is asked, parameters lie as before, and nothing is said of it."""
    asked: list[object] = []
    monkeypatch.setattr("pyro_bnn.capture.compilers.compile_graph", asked.append)
    monkeypatch.setattr(training, "C_TIME", 0.0)
    kept = []
    for option in ("auto", False):
        torch.manual_seed(0)
        svi = SVI(guides.AutoLowRankMultivariateNormal, num_steps=30, compile=option)
        kept.append(svi.run(mlp(None), data(), progress=False))
        assert kept[-1].options["compiled"] is False
    np.testing.assert_allclose(kept[0].losses, kept[1].losses, rtol=1e-9)
    assert not asked
    assert not lines(caplog)


@pytest.mark.usefixtures("compiling_always")
@pytest.mark.parametrize("option", ["auto", False])
def test_a_model_that_branches_on_a_tensor_says_so_once_and_goes_on(
    option: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = data()
    engine = SVI(guides.AutoNormal, num_steps=20, batch_size=8, compile=option)
    posterior = engine.run(branching, (x, y), progress=False)
    (line,) = lines(caplog)
    assert "cannot be captured as a graph and runs through plain Pyro, which is slower" in line
    monkeypatch.setattr(training, "Captured", functools.partial(Captured, enabled=False))
    plain = SVI(guides.AutoNormal, num_steps=20, batch_size=8, compile=False)
    expected = plain.run(branching, (x, y), progress=False)
    np.testing.assert_allclose(posterior.losses, expected.losses, rtol=1e-5)


def test_compiling_a_model_that_branches_on_a_tensor_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"AutoNormal on branching cannot be compiled: .* flow"):
        SVI(guides.AutoNormal, num_steps=2, compile=True).run(branching, data(), progress=False)


def changing(x: Tensor, y: Tensor | None = None) -> None:
    """A model of which few rows take other operations to the same end."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 1]).to_event(2))
    f = pyro.deterministic("f", x @ w if x.shape[0] > 4 else (x.unsqueeze(-1) * w).sum(-2))
    with pyro.plate("data", x.shape[0]):
        pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)


def counting(x: Tensor, y: Tensor | None = None) -> None:
    """A model whose number of rows is an integer of Python."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 1]).to_event(2))
    f = pyro.deterministic("f", x @ w)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)


@pytest.mark.parametrize(
    ("model", "compiled"),
    [
        (changing, False),
        (counting, False),
        (changing, True),
        pytest.param(counting, True, marks=pytest.mark.soak),
    ],
)
@pytest.mark.usefixtures("interpreted")
def test_models_that_know_the_number_of_rows_are_captured_for_each(
    model: Any, compiled: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = torch.randn(23, 3), torch.randn(23, 1)
    options: dict[str, Any] = {"num_steps": 6, "batch_size": 20}
    posterior = SVI(guides.AutoNormal, compile=compiled, **options).run(
        model, (x, y), progress=False
    )
    assert not lines(caplog)
    monkeypatch.setattr(training, "Captured", functools.partial(Captured, enabled=False))
    expected = SVI(guides.AutoNormal, compile=False, **options).run(model, (x, y), progress=False)
    np.testing.assert_allclose(posterior.losses, expected.losses, rtol=1e-5)


@pytest.mark.slow("compiles")
def test_a_parameter_without_effect_is_compiled() -> None:
    """The gradient by a bias before a normalisation is rounding alone, which Adam divides by."""
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv1d(1, 4, 2),
        nn.GroupNorm(4, 4),  # of 7 numbers: the sd of two may be near 0, and rounding of any size
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(28, 1),
    )
    model = models.bayesian(net, {"5.*": priors.Normal()}, likelihoods.Normal(0.3))
    x = torch.randn(20, 8)
    posterior = SVI(guides.AutoNormal, num_steps=3, compile=True).run(
        model, (x, x[:, :1]), progress=False
    )
    assert len(posterior.losses) == 3


def test_a_guide_of_stock_pyro_is_not_compiled_and_says_so() -> None:
    oracle = linear_gaussian()
    svi = SVI(pyro.infer.autoguide.AutoNormal, num_steps=2, compile=True)
    with pytest.raises(OptionError, match="compile=True is not built for guides of stock Pyro"):
        svi.run(oracle.model, (oracle.x, oracle.y), progress=False)


def test_draws_for_each_row_and_minibatches_share_one_graph(
    caplog: pytest.LogCaptureFixture,
) -> None:
    svi = SVI(guides.AutoNormal, num_steps=6, batch_size=5, per_example_draws=True, compile=False)
    x, y = data()
    posterior = svi.run(mlp(None), (x, y), progress=False)
    assert len(x) % 5  # the last batch is smaller
    assert not lines(caplog)
    assert posterior.options["compiled"] is False


@pytest.mark.slow("compiles")
def test_an_adam_of_some_parameters_leaves_the_others_as_they_are() -> None:
    def first_alone(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(list(parameters)[:1], lr=0.05)

    kept = []
    for compile_ in (True, False):
        svi = SVI(
            guides.AutoNormal, num_steps=3, loc_warmup=0, optimizer=first_alone, compile=compile_
        )
        torch.manual_seed(0)
        posterior = svi.run(mlp(None), data(), progress=False)
        assert isinstance(posterior, GuidePosterior)
        assert posterior.options["compiled"] is compile_
        kept.append(params_of(posterior))
    for compiled, plain in zip(*kept, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-9, atol=1e-12)


def low_rank_run(num_steps: int, *, compile_: bool) -> GuidePosterior:
    """A run of a graph that is compiled once for two tests, with a factor and many draws."""
    torch.manual_seed(0)
    model = linear()
    guide = guides.AutoLowRankMultivariateNormal(model, rank=3)
    svi = SVI(guide, num_steps=num_steps, num_particles=5, compile=compile_)
    posterior = svi.run(model, data(), progress=False)
    assert isinstance(posterior, GuidePosterior)
    return posterior


@pytest.mark.slow("compiles")
@pytest.mark.usefixtures("nothing_in_c")
def test_noise_of_a_counter_is_the_same_in_and_out_of_a_compiled_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_loss, "COUNTED_NORMALS", 10)  # of 35
    losses = [low_rank_run(30, compile_=compile_).losses for compile_ in (True, False)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)
    monkeypatch.setattr(step_loss, "COUNTED_NORMALS", 10**9)
    assert (low_rank_run(30, compile_=False).losses != losses[1]).all()


@pytest.mark.slow("compiles")
@pytest.mark.usefixtures("nothing_in_c")
def test_a_full_covariance_over_more_than_255_weights_is_compiled() -> None:
    model, x = linear(260), torch.randn(6, 260, dtype=torch.float64)  # positions beyond 8 bits
    svi = SVI(guides.AutoMultivariateNormal, num_steps=2, compile=True)
    torch.manual_seed(0)
    posterior = svi.run(model, (x, x[:, :1]), progress=False)
    assert posterior.program.num_latents > 255
    svi = SVI(guides.AutoMultivariateNormal, num_steps=2, compile=False)
    torch.manual_seed(0)
    np.testing.assert_allclose(
        posterior.losses, svi.run(model, (x, x[:, :1]), progress=False).losses, rtol=1e-9
    )


@pytest.mark.slow("compiles")
@pytest.mark.usefixtures("nothing_in_c")
def test_a_factor_lies_by_columns_while_steps_are_compiled_and_then_by_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_loss, "COUNTED_NORMALS", 10)
    strides, advance = [], training.Training._advance

    def looked_at(self: training.Training, step: int, batch: Any) -> None:
        advance(self, step, batch)
        strides.append(params_by_name(self.guide)["cov_factor"].stride())

    monkeypatch.setattr(training.Training, "_advance", looked_at)
    kept = []
    for compile_ in (True, False):
        guide = low_rank_run(3, compile_=compile_).guide
        kept.append(params_by_name(guide)["cov_factor"].detach())
    assert strides == 3 * [(1, len(kept[0]))] + 3 * [(3, 1)]
    assert [factor.stride() for factor in kept] == [(3, 1), (3, 1)]
    torch.testing.assert_close(kept[0], kept[1], rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("compiling_always", "nothing_in_c")
def test_a_factor_by_columns_is_trained_where_there_is_no_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch._inductor, "compile", no_compiler)
    monkeypatch.setattr("pyro_bnn.capture.inductor.compiling._lowered", no_compiler)
    kept = []
    for compile_ in ("auto", False):
        torch.manual_seed(0)
        svi = SVI(guides.AutoLowRankMultivariateNormal, num_steps=5, compile=compile_)
        kept.append(svi.run(mlp(None), data(), progress=False))
    np.testing.assert_allclose(kept[0].losses, kept[1].losses, rtol=1e-9)


def params_by_name(guide: guides.Guide) -> dict[str, Tensor]:
    return dict(guide.named_parameters())


@pytest.mark.slow("compiles")
@pytest.mark.parametrize("in_c", [True, False])
def test_a_step_is_bound_once_for_each_number_of_rows(
    in_c: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """20 rows in batches of 8: two numbers of rows. Bound steps replace all but the first two."""
    if not in_c:
        request.getfixturevalue("interpreted")
    made = []
    of = BoundStep.of

    def counted(*args: Any) -> BoundStep | None:
        made.append(of(*args))
        return made[-1]

    monkeypatch.setattr(BoundStep, "of", counted)
    options: dict[str, Any] = {"num_steps": 12, "batch_size": 8}
    engine = SVI(guides.AutoNormal, compile=True, **options)
    bound = engine.run(mlp(None), data(), progress=False)
    assert [step is not None for step in made] == [in_c, in_c]
    monkeypatch.setattr(BoundStep, "of", lambda *_: None)
    plain = engine.run(mlp(None), data(), progress=False)
    assert np.array_equal(bound.losses, plain.losses)
