"""Natural-gradient engines as engines: options, seeds, checkpoints, posteriors, refusals."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import (
    IVON,
    SLANG,
    SVI,
    VOGN,
    VON,
    Interrupted,
    Posterior,
    Vadam,
    data,
    guides,
    likelihoods,
    models,
    priors,
)
from pyro_bnn.errors import DivergenceError, FileFormatError, OptionError
from pyro_bnn.infer.curvature.precision import Dense, Diagonal, LowRank, Precision
from pyro_bnn.infer.natural.run import NaturalRun
from pyro_bnn.infer.starting_points import one_start
from pyro_bnn.posterior import GuidePosterior
from pyro_bnn.program import Program
from pyro_bnn.program.random_state import isolated
from tests.kills import assert_same
from tests.oracle import linear_gaussian
from tests.saves import document_of, end_state, write_document

ORACLE = linear_gaussian()
DATA = (ORACLE.x, ORACLE.y)  # 20 rows
STEPS = 12
LENGTH: dict[str, Any] = {"num_steps": STEPS, "descent_steps": 0}
ENGINES: dict[str, Any] = {
    "VON": VON(**LENGTH, batch_size=8),
    "VON, full": VON(**LENGTH, batch_size=8, covariance="full"),
    "VOGN": VOGN(**LENGTH, batch_size=8, kl_warmup=9, num_particles=2, antithetic=True),
    "Vadam": Vadam(**LENGTH, batch_size=8),
    "IVON": IVON(**LENGTH, learning_rate=0.01),
    "SLANG": SLANG(**LENGTH, batch_size=8, rank=3),
}
EACH = pytest.mark.parametrize("name", ENGINES)
quick = pytest.mark.usefixtures("nothing_captured")


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    """Ctrl-C as in a foreground process, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def mlp(**options: Any) -> models.MLP:
    return models.MLP(3, hidden=(4,), likelihood=likelihoods.Normal(0.5), **options).double()


def fit(engine: Any, **options: Any) -> Any:
    options = {"model": mlp(), "data": DATA, "progress": False, **options}
    model, rows = options.pop("model"), options.pop("data")
    return engine.run(model, rows, **options)


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the step of this number, once."""
    advance = NaturalRun.advance

    def stopped(self: Any, batch: Any) -> None:
        advance(self, batch)
        if self.step == step:
            monkeypatch.setattr(NaturalRun, "advance", advance)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(NaturalRun, "advance", stopped)


@pytest.mark.slow("about a second")
@quick
@EACH
def test_a_run_that_is_resumed_equals_one_that_was_not_stopped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice stopped, before the smaller last batch of an epoch and in the next."""
    engine = ENGINES[name]
    state = torch.get_rng_state()
    whole = fit(engine, checkpoint=tmp_path / "whole")
    assert torch.equal(torch.get_rng_state(), state)
    for i, step in enumerate((2, 7)):
        stop_after(step, monkeypatch)
        with pytest.raises(Interrupted, match=f"stopped at step {step} of {STEPS}") as stopped:
            fit(engine, checkpoint=tmp_path / "parts", resume=i > 0)
        reached: Any = stopped.value.posterior
        np.testing.assert_array_equal(reached.losses, whole.losses[:step])
    parts = fit(engine, checkpoint=tmp_path / "parts", resume=True)
    assert_same(end_state(tmp_path / "parts"), end_state(tmp_path / "whole"))
    np.testing.assert_array_equal(parts.losses, whole.losses)
    assert torch.equal(parts.unconstrained(7), whole.unconstrained(7))
    again = fit(engine, checkpoint=tmp_path / "whole", resume=True)
    assert torch.equal(again.unconstrained(7), whole.unconstrained(7))
    assert (whole.method, whole.engine) == (type(engine).__name__,) * 2
    assert whole.options == dataclasses.asdict(engine)
    assert np.isfinite(whole.losses).all()


@quick
@EACH
def test_posteriors_have_a_density_a_file_and_a_tree(name: str, tmp_path: Path) -> None:
    posterior = fit(ENGINES[name], seed=3)
    z = posterior.unconstrained(50)
    assert posterior.has_log_prob
    q = posterior.guide.get_posterior()
    np.testing.assert_allclose(posterior.log_q(50), q.log_prob(z).detach(), rtol=1e-9)
    elbo, error = posterior.elbo(DATA, 400)
    kl, is_exact = posterior.guide.kl()
    assert is_exact
    nll = -posterior.log_likelihood(DATA, 400).sum(-1)
    assert abs(-float(nll.mean()) - kl - elbo) < 4 * error + 4 * float(nll.std()) / 20
    posterior.save(tmp_path / "fit.pt")
    again = Posterior.load(tmp_path / "fit.pt", mlp())
    assert (again.method, again.options) == (posterior.method, posterior.options)
    assert isinstance(again, GuidePosterior)
    assert torch.equal(again.unconstrained(7), posterior.unconstrained(7))
    tree = posterior.to_arviz(data.Dataset(*DATA), num_samples=20)
    assert "log_q" in tree["sample_stats"]
    assert tree["optimization"].sizes["step"] == STEPS


def test_a_fit_is_started_from_at_its_centre() -> None:
    """Whatever the seed: a draw of it would be another one each time."""
    first = fit(VOGN(num_steps=STEPS))
    still = VOGN(num_steps=1, learning_rate=1e-14)
    for seed in (1, 2):
        found = fit(still, init=first, seed=seed)
        torch.testing.assert_close(found.guide.loc, first.guide.loc, rtol=0, atol=1e-10)


@pytest.mark.slow("about a second")
@quick
@EACH
def test_one_seed_is_one_fit_in_either_precision(name: str) -> None:
    engine = ENGINES[name]
    first, second, other = (fit(engine, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.unconstrained(5), second.unconstrained(5))
    assert not torch.equal(first.unconstrained(5), other.unconstrained(5))
    rows = (ORACLE.x.float(), ORACLE.y.float())
    single = fit(engine, model=mlp().float(), data=rows, seed=1)
    assert single.unconstrained(5).dtype == torch.float32


@pytest.mark.parametrize(
    ("precision", "det"),
    [
        (Diagonal(torch.tensor([2.0, 8.0])), 16.0),
        (Dense(torch.tensor([[4.0, 2.0], [2.0, 5.0]])), 16.0),
        (LowRank(torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [2.0]])), 8.0),  # [[2, 2], [2, 6]]
    ],
    ids=["diagonal", "dense", "of low rank"],
)
def test_the_log_determinant_of_a_precision(precision: Precision, det: float) -> None:
    assert float(precision.log_det()) == pytest.approx(math.log(det), rel=1e-6)


@quick
def test_the_loss_is_minus_the_elbo_of_the_gaussian_that_the_step_began_with() -> None:
    """Mean over seeds of the first loss, and of the one at temperature and data factor."""
    model = models.LinearRegression(
        3, prior=priors.Normal(ORACLE.prior_scale), likelihood=likelihoods.Normal(0.5)
    ).double()
    start = {"weight": ORACLE.mean[:3].reshape(1, 3), "bias": ORACLE.mean[3:]}
    expected = -ORACLE.elbo(ORACLE.mean, 0.2**2 * torch.eye(4, dtype=torch.float64))
    weights: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.1, "data_factor": 2.0})
    for options in weights:
        engine = VOGN(num_steps=1, num_particles=400, init_scale=0.2, **options)
        found = [fit(engine, model=model, init=start, seed=s).losses[0] for s in range(5)]
        error = np.std(found, ddof=1) / 5**0.5
        assert abs(np.mean(found) - expected) < 6 * error
        assert error < 0.01 * expected


def test_a_data_loader_is_gone_through() -> None:
    rows = TensorDataset(*DATA)
    loader = DataLoader(rows, batch_size=6, shuffle=True)
    posterior = fit(VOGN(num_steps=6), data=loader)
    assert len(posterior.losses) == 6
    with pytest.raises(OptionError, match="batch_size=3 would have no effect, as a DataLoader"):
        fit(VOGN(num_steps=6, batch_size=3), data=loader)


def test_point_estimates_are_held_and_told(caplog: pytest.LogCaptureFixture) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    net = net.double()
    model = models.bayesian(net, {"2.*": priors.Normal()}, likelihoods.Normal(0.3)).double()
    posterior = fit(VOGN(num_steps=3), model=model)
    assert any(
        message.startswith("VOGN holds point-estimated parameters at their values: ")
        for message in caplog.messages
    )
    for name, value in model.named_parameters():
        assert torch.equal(posterior.params[name], value)


def test_frozen_parameters_are_held_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    first = torch.nn.Linear(3, 4).requires_grad_(requires_grad=False)
    net = torch.nn.Sequential(first, torch.nn.Tanh(), torch.nn.Linear(4, 1))
    model = models.bayesian(net, {"2.*": priors.Normal()}, likelihoods.Normal(0.3)).double()
    posterior = fit(VOGN(num_steps=3), model=model)
    assert not [message for message in caplog.messages if "point-estimated" in message]
    assert torch.equal(posterior.params["net.0.weight"], first.weight.double())


def test_a_list_of_held_parameters_ends_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    layers = [torch.nn.Linear(3, 3) for _ in range(6)]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(3, 1)).double()
    model = models.bayesian(net, {"6.*": priors.Normal()}, likelihoods.Normal(0.3)).double()
    fit(VOGN(num_steps=3), model=model)
    (message,) = (m for m in caplog.messages if "point-estimated" in m)
    assert message.endswith("net.3.weight, net.3.bias and 4 more")


@pytest.mark.slow("about a second")
def test_a_hessian_that_is_not_positive_is_told_and_the_last_good_state_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(20, generator=generator, dtype=torch.float64)
    options: dict[str, Any] = {"covariance": "full", "expectation": "mean", "learning_rate": 0.9}
    engine = VON(
        num_steps=200, descent_steps=0, curvature="hessian", precision_learning_rate=0.2, **options
    )
    with pytest.raises(
        DivergenceError,
        match=r"the precision of q is not positive definite at step \d+; the state of step 0 is "
        r'kept in error\.posterior\. Take curvature="ggn"',
    ) as told:
        fit(engine, data=(ORACLE.x, y))
    kept: Any = told.value.posterior
    assert kept.unconstrained(3).isfinite().all()
    assert len(fit(dataclasses.replace(engine, curvature="ggn"), data=(ORACLE.x, y)).losses) == 200


def test_a_loss_that_is_not_finite_is_told() -> None:
    with pytest.raises(DivergenceError, match=r"at step \d+; the state of step \d+ is kept"):
        fit(Vadam(num_steps=300, learning_rate=1e200))


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    engine = VOGN(num_steps=3)
    fit(engine, checkpoint=tmp_path)
    for key, value in (
        ("mean", torch.zeros(2, dtype=torch.float64)),
        ("average", torch.full((21,), -1e9, dtype=torch.float64)),
    ):
        document = document_of(tmp_path)
        document["state"]["values"][key] = value
        write_document(document, tmp_path)
        with pytest.raises(FileFormatError, match="is no state of this run"):
            fit(engine, checkpoint=tmp_path, resume=True)
    with pytest.raises(OptionError, match=r"momentum=0\.9 where this run has 0.5"):
        fit(dataclasses.replace(engine, momentum=0.5), checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: VOGN(num_steps=0), "num_steps is an integer of at least 1"),
        (lambda: VOGN(learning_rate=0.0), "learning_rate is a positive number"),
        (lambda: VOGN(temperature=-1.0), "temperature is a positive number"),
        (lambda: VOGN(data_factor=0), "data_factor is a positive number"),
        (lambda: VOGN(batch_size=0), "batch_size is an integer of at least 1"),
        (lambda: VOGN(kl_warmup=9, num_steps=5), "kl_warmup=9 is longer than the run"),
        (lambda: VOGN(learning_rate=1.5), "rate of 1.5: set precision_learning_rate to at most 1"),
        (lambda: VON(precision_learning_rate=0.0), "precision_learning_rate is a positive number"),
        (lambda: VOGN(antithetic=True), "take an even num_particles, not 1"),
        (lambda: VOGN(schedule="step"), "schedule is"),  # type: ignore[arg-type]
        (lambda: VOGN(expectation="median"), "expectation is"),  # type: ignore[arg-type]
        (lambda: VOGN(momentum=1.0), "momentum is a number of at least 0 and below 1, not 1.0"),
        (lambda: SLANG(damping=-1.0), "damping is a number of at least 0, not -1.0"),
        (lambda: SLANG(rank=0), "rank is an integer of at least 1"),
        (lambda: VOGN(init_scale=0.0), "init_scale is a positive number"),
        (lambda: Vadam(init_scale=-1.0), "init_scale is a positive number"),
        (lambda: VON(covariance="low"), "covariance is"),  # type: ignore[arg-type]
        (lambda: VON(curvature="fisher"), "curvature is"),  # type: ignore[arg-type]
        (lambda: IVON(init_curvature=0.0), "init_curvature is a positive number"),
        (lambda: IVON(clip_radius=0.0), "clip_radius is a positive number"),
    ],
)
def test_options_out_of_their_range_are_refused(make: Any, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        make()


def test_schedules() -> None:
    steps = [0, 50, 99]
    vogn = VOGN(num_steps=100)
    assert [vogn.decay(t) for t in steps] == pytest.approx([1.0, 1.0, 0.02])
    cosine = dataclasses.replace(vogn, schedule="cosine")
    assert [cosine.decay(t) for t in steps] == pytest.approx([1.0, 0.5, 2.467e-4], rel=1e-3)
    power = dataclasses.replace(vogn, schedule="power")
    assert [power.decay(t) for t in steps] == pytest.approx([1.0, 51**-0.55, 100**-0.55])
    assert dataclasses.replace(vogn, schedule="constant").decay(50) == 1.0


FAMILIES: dict[str, tuple[Any, float]] = {
    "VON": (VON(), ORACLE.mean_field_gap),
    "VON, full": (VON(covariance="full"), 0.0),
    "IVON": (IVON(), ORACLE.mean_field_gap),
}


def moments(posterior: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q = posterior.guide.get_posterior()
    if hasattr(q, "covariance_matrix"):
        return q.mean.detach(), q.covariance_matrix.detach()
    return q.mean.detach(), q.variance.detach().diag()


@pytest.mark.slow("whole fits")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_ends_by_itself_near_the_optimum_of_its_family(name: str) -> None:
    engine, gap = FAMILIES[name]
    for seed in range(3):
        posterior = engine.run(ORACLE.model, DATA, seed=seed, progress=False)
        assert ORACLE.elbo(*moments(posterior)) > ORACLE.log_evidence - gap - 0.5
        assert posterior.doubling is not None
        assert posterior.doubling.has_converged
        assert posterior.doubling.num_steps == posterior.options["num_steps"] < 16_000


def test_the_gain_of_a_run_is_that_of_its_ends_in_closed_form() -> None:
    """The first half of the steps is a run of its own, as its rates fall to 0 too."""
    options: dict[str, Any] = {"descent_steps": 0, "learning_rate": 0.02}
    half, whole = (
        VON(num_steps=n, **options).run(ORACLE.model, DATA, progress=False) for n in (100, 200)
    )
    expected = ORACLE.elbo(*moments(whole)) - ORACLE.elbo(*moments(half))
    assert expected > 0.01
    doubling = whole.doubling
    assert doubling is not None
    assert abs(doubling.gain - expected) < 4 * doubling.error + 1e-6
    assert doubling.num_steps == 200


@pytest.mark.parametrize("name", ["VON", "VON, full"])
def test_a_run_that_ends_by_itself_goes_on_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within each of its rounds of 200, 200 and 400 steps."""
    changed = {"num_steps": "auto", "max_steps": 800, "batch_size": None, "learning_rate": 0.01}
    engine: VON = dataclasses.replace(ENGINES[name], **changed)
    monkeypatch.setattr("pyro_bnn.infer.steps.rounds.FIRST_ROUND", 200)
    assert engine.ends == (200, 400, 800)

    def fit(folder: str, *, resume: bool = False) -> Posterior:
        path = tmp_path / folder
        return engine.run(ORACLE.model, DATA, progress=False, checkpoint=path, resume=resume)

    whole = fit("whole")
    assert whole.options["num_steps"] > 400
    for i, stop in enumerate((150, 200, 350, 410)):
        stop_after(stop, monkeypatch)
        with pytest.raises(Interrupted, match=f"stopped at step {stop} of"):
            fit("parts", resume=i > 0)
    parts = fit("parts", resume=True)
    np.testing.assert_array_equal(parts.losses, whole.losses)
    assert parts.doubling == whole.doubling
    assert torch.equal(parts.unconstrained(7), whole.unconstrained(7))
    again = fit("parts", resume=True)  # of a run that has ended
    assert again.doubling == whole.doubling
    assert len(again.losses) == len(whole.losses)


def test_a_cosine_has_no_half_to_compare() -> None:
    posterior = VON(**LENGTH | {"num_steps": 200}, schedule="cosine").run(
        ORACLE.model, DATA, progress=False
    )
    assert posterior.doubling is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_steps": 10, "max_steps": 20},
            "max_steps=20 would have no effect beside num_steps=10",
        ),
        ({"schedule": "cosine"}, "falls to 0 at a number of steps that is known before"),
        ({"max_steps": 0}, "max_steps"),
        ({"num_steps": "long"}, "num_steps"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        VON(**options)


@pytest.mark.slow("whole fits")
def test_vogn_comes_near_the_optimum_of_svi() -> None:
    """On classes, where its curvature is nearly that of the data: within 2 % of SVI's ELBO."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 3, generator=generator)
    p = torch.sigmoid(2 * x[:, 0] - x[:, 1])
    y = (torch.rand(200, generator=generator) < p).float()

    def elbo(engine: Any) -> float:
        model = models.LinearRegression(3, likelihood=likelihoods.Bernoulli())
        return float(engine.run(model, (x, y), progress=False).elbo((x, y), 4_000)[0])

    best = elbo(SVI(guides.AutoNormal, num_steps=2_000, learning_rate=0.02))
    for engine in (VOGN(num_steps=400), VON(num_steps=400), SLANG(num_steps=400, rank=2)):
        found = elbo(engine)
        assert abs(found / best - 1) < 0.02, type(engine)


# Where runs start

LINE = torch.linspace(-2, 2, 40, dtype=torch.float64).unsqueeze(-1)


def drawn(seed: int) -> Program:
    """A small network with a learned noise scale, its last number, as a run of a seed has it."""
    with isolated(seed):
        return Program(models.MLP(1, hidden=(5,)).double(), LINE, LINE[:, 0])


@functools.cache
def seed_of_little_noise() -> int:
    """The first after 175, as one in a hundred has it."""
    return next(seed for seed in itertools.count(176) if drawn(seed).initial[-1].exp() < 0.01)


@pytest.mark.parametrize("cls", [VON, VOGN, Vadam, IVON, SLANG])
def test_means_start_near_a_mode_unless_a_start_is_given(cls: type[Any]) -> None:
    """Steps of length zero leave them where Adam's as many steps, or so many, have ended."""
    still: dict[str, Any] = {"num_steps": 15, "learning_rate": 1e-30}
    for descent, steps in ((None, 15), (40, 40)):
        adam = SVI(guides.AutoDelta, num_steps=steps, learning_rate=0.02, schedule="cosine")
        mode = fit(adam, seed=2)
        found = fit(cls(**still, descent_steps=descent), seed=2)
        torch.testing.assert_close(found.guide.centre(), mode.guide.centre(), rtol=1e-6, atol=1e-9)
        assert len(found.losses) == 15
    without = fit(cls(**still, descent_steps=0), seed=2).guide.centre()
    assert float((without - mode.guide.centre()).abs().max()) > 0.1
    point = {name: torch.ones_like(v) for name, v in mode.guide.median().items()}
    given = fit(cls(**still), init=point, seed=2).guide.centre()
    assert torch.equal(given, torch.ones_like(given))


def test_a_descent_that_diverges_names_what_it_depends_on() -> None:
    x, y = torch.zeros(4, 1), torch.full((4,), 1e25)  # whose square float32 does not hold
    with pytest.raises(
        DivergenceError, match=r"at step 0.*Standardise the data, or set descent_st"
    ):
        VOGN(num_steps=5).run(models.MLP(1, hidden=(5,)), (x, y), progress=False)


def test_scales_start_at_their_medians_and_weights_at_a_draw() -> None:
    """The median of a half-normal is 0.674, and of 15 draws it has a standard deviation of 0.2."""
    programs = [drawn(seed) for seed in range(25)]
    starts = [one_start(program, seed) for seed, program in enumerate(programs)]
    for start, program in zip(starts, programs, strict=True):
        assert torch.equal(start[:-1], program.initial[:-1])
    scales = torch.stack(starts)[:, -1].exp()
    assert scales.min() > 0.1
    assert abs(float(scales.mean()) - 0.674) < 5 * 0.2 / 25**0.5


@pytest.mark.parametrize("cls", [VON, VOGN, Vadam, IVON, SLANG])
def test_a_seed_whose_prior_draws_a_tiny_noise_is_fitted_like_others(cls: type[Any]) -> None:
    little = seed_of_little_noise()
    y = LINE[:, 0].sin() + 0.1 * (9 * LINE[:, 0]).cos()
    model = models.MLP(1, hidden=(5,)).double()
    engine = cls(num_steps=300, descent_steps=0)
    fits = [engine.run(model, (LINE, y), seed=s, progress=False) for s in (little, 0)]
    own, other = (float(fit.predict(LINE, 200).log_prob(y).mean()) for fit in fits)
    assert own > other - 1.0
