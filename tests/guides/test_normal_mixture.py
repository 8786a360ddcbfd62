"""AutoNormalMixture: its bound on posteriors of two modes, densities, starts, refusals."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import init_to_median
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import priors
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import AutoNormal, AutoNormalMixture, Guide
from pyro_bnn.models import MLP
from pyro_bnn.posterior import GuidePosterior, Provenance
from pyro_bnn.program import Program
from tests.guides.bimodal import (
    GRID,
    STEP,
    Known,
    Square,
    few_rows,
    log_integral,
    log_joint_of_square,
    posterior_of_known,
    rows,
)
from tests.laws import objective

LOC = torch.tensor([[-0.9, 0.2], [0.7, 0.1], [0.6, 1.5]], dtype=torch.float64)
SCALE = torch.tensor([[0.3, 0.5], [0.6, 0.2], [0.4, 0.4]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


def mixture(model: Any, x: Tensor, loc: Tensor, scale: Tensor, weights: Tensor) -> Any:
    """A guide of given components."""
    guide = AutoNormalMixture(model, num_components=len(loc))
    guide.setup(x[:1])
    guide.double()
    guide.set_components(loc, scale, weights)
    return guide


class Two(pyro.nn.PyroModule):
    """Two weights ``w`` [2] of prior N(0.3, 0.8^2) and an observation of their sum."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        prior = dist.Normal(x.new_tensor(0.3), x.new_tensor(0.8)).expand([2]).to_event(1)
        w = pyro.sample("w", prior)
        f = pyro.deterministic("f", x * w.sum())
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)
        return sampled


def two() -> Any:
    return mixture(Two(), rows()[0], LOC, SCALE, WEIGHTS)


def bound(guide: Guide, model: Any, x: Tensor, y: Tensor) -> tuple[float, list[Tensor]]:
    """The ELBO of two components in one dimension, by Gauss-Hermite quadrature, and gradients."""
    program = Program(model, x, y)
    _, evaluate = objective(guide, program, captured=False)
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(80))
    weights = weights / weights.sum()
    noise = torch.stack([nodes, nodes, torch.zeros(80)], -1).double()  # a draw of each: in turn
    terms = [evaluate(row, program.batch(x, y)) for row in noise.unsqueeze(1)]
    value, *gradients = (
        sum(w * part for w, part in zip(weights, parts, strict=True))
        for parts in zip(*terms, strict=True)
    )
    return -float(value), [-g for g in gradients]


# The bound


def test_at_the_exact_posterior_the_bound_is_the_evidence() -> None:
    x, y = few_rows()
    exact = posterior_of_known(x, y)
    assert 0.1 < float(exact.weights[0]) < 0.9  # two components, which overlap
    model = Known()
    guide = mixture(model, x, exact.loc[:, None], exact.scale[:, None], exact.weights)
    value, gradients = bound(guide, model, x, y)
    assert value == pytest.approx(exact.log_evidence, abs=1e-9)
    for gradient in gradients:
        assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-6)  # of quadrature
    provenance = Provenance("AutoNormalMixture", "SVI")
    posterior = GuidePosterior(Program(model, x, y), guide, provenance)
    value, error = posterior.elbo((x, y), 100)
    assert value == pytest.approx(exact.log_evidence, abs=1e-9)  # at every single draw
    assert error < 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_and_its_gradient_are_those_of_the_integral(seed: int) -> None:
    """Against a sum over a grid of q (log p - log q), differentiated: the weights' included."""
    x, y = rows()
    model = Square()
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(2, 1, generator=generator, dtype=torch.float64)
    scale = 0.2 + 0.5 * torch.rand(2, 1, generator=generator, dtype=torch.float64)
    weights = torch.rand(2, generator=generator, dtype=torch.float64)
    guide = mixture(model, x, loc, scale, weights)
    value, gradients = bound(guide, model, x, y)
    log_p = log_joint_of_square(GRID, x, y)
    q = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=guide.logits),
        torch.distributions.Normal(guide.loc[:, 0], guide.scale[:, 0]),
    )
    log_q = q.log_prob(GRID)
    integral = (log_q.exp() * (log_p - log_q)).sum() * STEP
    assert value == pytest.approx(float(integral.detach()), abs=1e-6)
    assert value < log_integral(log_p)
    expected = torch.autograd.grad(integral, list(guide.parameters()))
    for gradient, truth in zip(gradients, expected, strict=True):
        assert_close(gradient, truth, rtol=1e-5, atol=1e-5)


def test_draws_of_each_row_of_equal_noise_change_nothing() -> None:
    x, y = rows()
    guide = two()
    program = Program(guide.model, x, y)
    noise = guide.draw_noise(3, torch.Generator().manual_seed(0))
    _, evaluate = objective(guide, program, captured=False)
    batch = program.batch(x, y)
    by_row = evaluate(noise.unsqueeze(1).expand(-1, len(x), -1), batch)
    for a, b in zip(by_row, evaluate(noise, batch), strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_equal_components_are_one_gaussian() -> None:
    """Of the mean of the members' noise, whatever the weights."""
    x, y = rows()
    program = Program(Two(), x, y)
    loc, scale = LOC[:1].expand(3, -1), SCALE[:1].expand(3, -1)
    same = mixture(program.model, x, loc, scale, WEIGHTS)
    one = AutoNormal(program.model)
    one.setup(x[:1])
    one.double()
    with torch.no_grad():
        one.loc.copy_(LOC[0])
    one.scale = SCALE[0]
    z = one.sample(5)
    assert_close(same.log_prob(z), one.log_prob(z), rtol=1e-12, atol=1e-12)
    noise = same.draw_noise(2, torch.Generator().manual_seed(0))
    batch = program.batch(x, y)
    value = objective(same, program, captured=False)[1](noise, batch)[0]
    of_one = objective(one, program, captured=False)[1]
    members = noise[:, :-1].unflatten(-1, (3, 2))  # [S, K, P]
    each = torch.stack([of_one(members[:, k], batch)[0] for k in range(3)])
    assert_close(value, WEIGHTS @ each, rtol=1e-12, atol=1e-12)


def test_one_component_is_mean_field() -> None:
    x, y = rows()
    data = x, y
    one = functools.partial(AutoNormalMixture, num_components=1)
    options: dict[str, Any] = {"num_steps": 40, "num_particles": 2, "compile": False}
    ours: Any = bnn.SVI(one, **options).run(Two(), data, progress=False)
    mean_field: Any = bnn.SVI(AutoNormal, **options).run(Two(), data, progress=False)
    assert_close(ours.losses, mean_field.losses, rtol=1e-9, atol=1e-9)
    assert_close(ours.unconstrained(5), mean_field.unconstrained(5), rtol=1e-9, atol=1e-9)
    assert ours.elbo_kind == "exact"
    assert ours.guide.kl() == (pytest.approx(mean_field.guide.kl()[0]), True)
    assert ours.num_parameters == mean_field.num_parameters


def test_the_kl_lies_between_its_bounds_and_at_the_lower_where_components_are_apart() -> None:
    r"""sum_k pi_k KL_k + sum_k pi_k log pi_k <= KL <= sum_k pi_k KL_k (convexity)."""
    x, _ = rows()
    prior = torch.distributions.Normal(torch.tensor(0.3).double(), torch.tensor(0.8).double())
    for spread, is_apart in ((1.0, False), (12.0, True)):
        guide = mixture(Two(), x, spread * LOC, SCALE, WEIGHTS)
        normals = torch.distributions.Normal(spread * LOC, SCALE)
        parts = torch.distributions.kl_divergence(normals, prior).sum(-1)
        upper = float(WEIGHTS @ parts)
        lower = upper + float(WEIGHTS @ WEIGHTS.log())
        value, is_exact = guide.kl(num_draws=100_000)
        assert not is_exact
        z = guide.sample(100_000)
        error = float(guide.log_prob(z).detach().std()) / 100_000**0.5  # the prior's has none
        if is_apart:
            assert abs(value - lower) < 4 * error
        else:
            assert lower + 4 * error < value < upper - 4 * error


# Densities


def test_density_and_moments_are_those_of_torch() -> None:
    guide = two()
    q = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(WEIGHTS),
        torch.distributions.Independent(torch.distributions.Normal(LOC, SCALE), 1),
    )
    z = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_close(guide.log_prob(z), q.log_prob(z), rtol=1e-10, atol=1e-10)
    mean, sd = guide.marginals()
    assert_close(mean, q.mean, rtol=1e-10, atol=1e-10)
    assert_close(sd, q.stddev, rtol=1e-10, atol=1e-10)
    assert_close(guide.centre(), q.mean, rtol=1e-10, atol=1e-10)
    ours = guide.get_posterior()
    assert isinstance(ours, dist.MixtureSameFamily)
    assert_close(ours.log_prob(z), q.log_prob(z), rtol=1e-10, atol=1e-10)


def test_quantiles_are_where_the_cdf_is() -> None:
    levels = [0.01, 0.3, 0.5, 0.97]
    found = two().quantiles(levels, rows()[0])["w"]
    parts = stats.norm(LOC.numpy(), SCALE.numpy())
    for level, points in zip(levels, found.numpy(), strict=True):
        assert WEIGHTS.numpy() @ parts.cdf(points) == pytest.approx([level, level], abs=1e-9)


def test_components_are_drawn_by_their_weights() -> None:
    guide = mixture(Two(), rows()[0], 100 * LOC, SCALE, WEIGHTS)
    z = guide.sample(5_000)
    distance = (z.unsqueeze(1) - 100 * LOC).norm(dim=-1)
    counts = torch.bincount(distance.argmin(-1), minlength=3)
    assert stats.chisquare(counts.numpy(), 5_000 * WEIGHTS.numpy()).pvalue > 1e-4


@pytest.mark.slow("about a second")
def test_the_gradient_under_pyro_has_the_mean_of_the_exact_one() -> None:
    """Score function for the weights, pathwise for means and sds."""
    x, y = rows()
    guide = two()
    program = Program(guide.model, x, y)
    elbo, num_draws = Trace_ELBO(), 400
    noisy = []
    with torch.random.fork_rng(), pyro.get_param_store().scope():
        torch.manual_seed(0)
        for _ in range(num_draws):
            loss = elbo.differentiable_loss(guide.model, guide, x, y)
            parts = torch.autograd.grad(loss, list(guide.parameters()))
            noisy.append(torch.cat([part.flatten() for part in parts]))
    noise = guide.draw_noise(20_000, torch.Generator().manual_seed(1))
    _, evaluate = objective(guide, program, captured=False)
    _, *exact = evaluate(noise, program.batch(x, y))
    expected = torch.cat([part.flatten() for part in exact])
    stacked = torch.stack(noisy)
    z_scores = (stacked.mean(0) - expected) / (stacked.std(0) / num_draws**0.5)
    assert float(z_scores.abs().max()) < 4.5  # of 15 numbers


# Fits


def fit(num_components: int, **options: Any) -> Any:
    guide = functools.partial(AutoNormalMixture, num_components=num_components, **options)
    svi = bnn.SVI(guide, num_steps=700, learning_rate=0.05, num_particles=8, compile=False)
    return svi.run(Square(), rows(), progress=False)


@pytest.fixture(scope="module")
def single() -> Any:
    return fit(1)


@pytest.fixture(scope="module")
def pair() -> Any:
    return fit(2)


@pytest.fixture(scope="module")
def from_one_point() -> Any:
    return fit(3, init_loc_fn=init_to_median)


def truth() -> tuple[float, float]:
    """Log evidence, and the share of the mode of positive w."""
    log_p = log_joint_of_square(GRID, *rows())
    log_evidence = log_integral(log_p)
    return log_evidence, math.exp(log_integral(log_p[GRID > 0]) - log_evidence)


def value_of(guide: Any) -> float:
    """The ELBO of a fit, by the sum over the grid."""
    log_p = log_joint_of_square(GRID, *rows())
    with torch.no_grad():
        log_q = guide.log_prob(GRID.unsqueeze(-1))
    return float((log_q.exp() * (log_p - log_q)).sum() * STEP)


def test_two_components_reach_the_evidence_of_two_modes(pair: Any) -> None:
    log_evidence, share = truth()
    assert 0.5 < share < 0.8
    assert log_evidence - 0.01 < value_of(pair.guide) < log_evidence
    loc = pair.guide.loc[:, 0].detach()
    right = int(loc.argmax())
    assert float(loc[1 - right]) < -1 < 1 < float(loc[right])
    assert float(pair.guide.weights[right]) == pytest.approx(share, abs=0.015)
    assert pair.options["loc_warmup"] == 70  # a tenth of the steps, as for one vector of means
    value, error = pair.elbo(rows(), 2_000)
    assert abs(value - value_of(pair.guide)) < 4 * error


def test_one_component_stays_below_by_its_mode_s_share(single: Any) -> None:
    log_evidence, share = truth()
    own = share if float(single.guide.centre()) > 0 else 1 - share
    assert value_of(single.guide) == pytest.approx(log_evidence + math.log(own), abs=0.01)


def test_components_that_start_as_one_come_apart(from_one_point: Any) -> None:
    log_evidence, share = truth()
    guide = from_one_point.guide
    is_right = guide.loc[:, 0] > 0
    assert is_right.any()
    assert not is_right.all()
    assert float(guide.weights[is_right].sum()) == pytest.approx(share, abs=0.015)
    assert log_evidence - 0.01 < value_of(guide) < log_evidence


def test_weights_that_are_not_learned_stay_equal() -> None:
    guide = functools.partial(AutoNormalMixture, num_components=2, learn_weights=False)
    svi = bnn.SVI(guide, num_steps=20, compile=False)
    posterior: Any = svi.run(Square(), rows(), progress=False)
    assert_close(posterior.guide.weights, torch.full((2,), 0.5, dtype=torch.float64))
    assert {name for name, _ in posterior.guide.named_parameters()} == {
        "loc",
        "scale_unconstrained",
    }
    assert posterior.num_parameters == 4


@pytest.mark.slow("about a second")
def test_a_network_with_a_hierarchy_trains_on_minibatches_and_draws_for_each_row() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=generator)
    model = MLP(2, hidden=(3,), prior=priors.HalfCauchyScale(per="unit"))
    guide = functools.partial(AutoNormalMixture, num_components=2)
    options: dict[str, Any] = {"batch_size": 6, "per_example_draws": True}
    svi = bnn.SVI(guide, num_steps=120, learning_rate=0.03, compile=False, **options)
    posterior = svi.run(model, (x, x[:, 0]), progress=False)
    first, last = posterior.losses[:30].mean(), posterior.losses[-30:].mean()
    assert last < first - 10
    prediction = posterior.predict(x, 200)
    assert bool(torch.as_tensor(prediction.sd).isfinite().all())


# Starts


def test_every_component_starts_at_a_draw_of_its_own() -> None:
    x = torch.zeros(1, 3)
    states = []
    found: list[Any] = []
    for cls in (AutoNormal, functools.partial(AutoNormalMixture, num_components=3)):
        with torch.random.fork_rng():
            torch.manual_seed(4)
            guide: Any = cls(MLP(3, hidden=(40,), prior=dist.Normal(0.0, 2.0)))
            guide.setup(x)
            found.append(guide)
            states.append(torch.get_rng_state())
    assert_close(states[0], states[1])
    one, several = found
    assert_close(several.loc[0], one.loc, rtol=0, atol=0)
    weights = several.loc[:, : -one._shapes[-1][2]].detach()
    assert float(weights.T.corrcoef()[0, 1].abs()) <= 1
    correlations = weights.corrcoef() - torch.eye(3)
    assert float(correlations.abs().max()) < 4 / weights.shape[1] ** 0.5
    again = AutoNormalMixture(one.model, num_components=3)
    again.load_state_dict(several.state_dict())
    assert_close(again.loc, several.loc, rtol=0, atol=0)


def test_init_puts_all_components_around_it() -> None:
    x, y = rows()
    svi = bnn.SVI(AutoNormalMixture, num_steps=1, learning_rate=1e-9, compile=False)
    init = {"w": torch.tensor([0.4, -0.3], dtype=torch.float64)}
    guide: Any = svi.run(Two(), (x, y), init=init, progress=False)
    loc = guide.guide.loc.detach()
    assert_close(guide.guide.centre(), init["w"], rtol=0, atol=1e-6)
    distance = (loc - init["w"]).abs()
    assert float(distance.min()) > 0
    assert float(distance.max()) < 5 * 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_components": 0}, "num_components is an integer of at least 1, not 0"),
        ({"num_components": True}, "num_components is an integer of at least 1, not True"),
        ({"init_scale": 0.0}, "init_scale is a positive standard deviation, not 0.0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        AutoNormalMixture(Two(), **options)
