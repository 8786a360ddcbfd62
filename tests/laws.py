"""Properties that every guide has, whatever its family; ``test_laws.py`` runs them over all."""

from __future__ import annotations

import copy
import functools
import io
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import PyroModule
from pyro.optim import Adam  # type: ignore[attr-defined]  # made at import time
from torch import Tensor, nn

from pyro_bnn import likelihoods, priors
from pyro_bnn.capture import Captured, value_and_grad
from pyro_bnn.guides import AutoFlow, Guide
from pyro_bnn.models import Rank1MLP
from pyro_bnn.program import Batch, Program
from pyro_bnn.program.batched import over_draws
from tests.oracle import linear_gaussian

NUM_DRAWS = 20_000
MakeGuide = Callable[..., Guide]  # a guide class, or a partial of one
Evaluate = Callable[[Tensor, Batch], tuple[Tensor, ...]]  # of noise and rows: loss and gradients


def one(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


class MixedModel(PyroModule):
    """Sites of many supports: real, positive twice, simplex, and real values inside a plate.

    In the order of execution, with P = 3 + 1 + 1 + 2 + 2 + 2 = 11: ``w`` [3, 1], ``noise`` [],
    ``rate`` [1], ``mixing`` [3] on the simplex, and in the plate "groups" ``offset`` [2] and the
    positive ``gain`` [2].
    """

    concentration: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("concentration", torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Laplace(one(0.0), one(1.0)).expand([3, 1]).to_event(2))
        noise = pyro.sample("noise", dist.HalfNormal(one(1.0)))
        rate = pyro.sample("rate", dist.LogNormal(one(0.2), one(0.5)).expand([1]).to_event(1))
        mixing = pyro.sample("mixing", dist.Dirichlet(self.concentration))
        with pyro.plate("groups", 2):
            offset = pyro.sample("offset", dist.Normal(one(0.5), one(2.0)))
            gain = pyro.sample("gain", dist.LogNormal(one(-0.5), one(0.3)))
        f = x @ (w * mixing.unsqueeze(-1)) * rate + (gain * offset).sum()  # [N, 1]
        f = pyro.deterministic("f", f)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, noise).to_event(1), obs=y)
        return sampled

    @staticmethod
    def log_prior(z: Tensor) -> Tensor:
        """Log prior density ``[S]`` of z ``[S, P]``, written out with ``torch.distributions``."""
        d = torch.distributions
        w, log_noise, log_rate, sticks, offset, log_gain = z.split([3, 1, 1, 2, 2, 2], -1)
        total: Tensor = d.Laplace(one(0.0), one(1.0)).log_prob(w).sum(-1)
        total = total + d.HalfNormal(one(1.0)).log_prob(log_noise.exp()).sum(-1) + log_noise.sum(-1)
        total = total + d.Normal(one(0.2), one(0.5)).log_prob(log_rate).sum(-1)  # log of LogNormal
        stick_breaking = d.StickBreakingTransform()
        mixing = stick_breaking(sticks)
        dirichlet = d.Dirichlet(torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64))
        total = total + dirichlet.log_prob(mixing)
        total = total + stick_breaking.log_abs_det_jacobian(sticks, mixing)
        total += d.Normal(one(0.5), one(2.0)).log_prob(offset).sum(-1)
        total += d.Normal(one(-0.5), one(0.3)).log_prob(log_gain).sum(-1)
        return total


class MatrixModel(PyroModule):
    """Two matrices of equal shape, one of another, and sites of other kinds between them.

    In the order of execution, with P = 6 + 1 + 6 + 2 + 6 = 21: ``encode`` [2, 3], the positive
    ``noise`` [], ``skip`` [2, 3], ``offset`` [1, 2] and ``decode`` [3, 2].
    """

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        normal, laplace = dist.Normal(one(0.0), one(1.0)), dist.Laplace(one(0.0), one(1.0))
        encode = pyro.sample("encode", normal.expand([2, 3]).to_event(2))
        noise = pyro.sample("noise", dist.HalfNormal(one(1.0)))
        skip = pyro.sample("skip", laplace.expand([2, 3]).to_event(2))
        offset = pyro.sample("offset", normal.expand([1, 2]).to_event(2))
        decode = pyro.sample("decode", normal.expand([3, 2]).to_event(2))
        h = torch.tanh(x @ encode.T) + offset  # [N, 2]
        f = (h @ decode.T * x).sum(-1, keepdim=True) + (x @ skip.T).sum(-1, keepdim=True)
        f = pyro.deterministic("f", f)  # [N, 1]
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, noise).to_event(1), obs=y)
        return sampled

    @staticmethod
    def log_prior(z: Tensor) -> Tensor:
        """Log prior density ``[S]`` of z ``[S, P]``, written out with ``torch.distributions``."""
        d = torch.distributions
        encode, log_noise, skip, rest = z.split([6, 1, 6, 8], -1)
        total: Tensor = d.Normal(one(0.0), one(1.0)).log_prob(torch.cat([encode, rest], -1)).sum(-1)
        total = total + d.Laplace(one(0.0), one(1.0)).log_prob(skip).sum(-1)
        total += (d.HalfNormal(one(1.0)).log_prob(log_noise.exp()) + log_noise).sum(-1)
        return total


@dataclass(frozen=True)
class Problem:
    """A model with data, in float64.

    Attributes:
        name: ``"linear"``, ``"mixed"``, ``"matrix"`` or ``"rank-1"``.
        model: The Pyro model.
        x: Inputs ``[N, 3]``.
        y: Observations ``[N, 1]``, as stock Pyro needs them.
        log_prior: Log prior density ``[S]`` of z ``[S, P]``, by hand.
    """

    name: str
    model: PyroModule
    x: Tensor
    y: Tensor
    log_prior: Callable[[Tensor], Tensor]

    @functools.cached_property
    def program(self) -> Program:
        return Program(self.model, self.x, self.y)


def rank1_network() -> Rank1MLP:
    """A rank-1 network 3-2-1 of fixed W, P = 3 + 2 + 2 + 1 = 8 factors of prior N(1, 0.3)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Rank1MLP(
            3,
            hidden=(2,),
            activation="tanh",
            prior=priors.Normal(loc=1.0, scale=0.3),
            weight_prior=None,
            likelihood=likelihoods.Normal(scale=0.3),
        )
    return model.double()


def problem(name: str) -> Problem:
    """The linear-Gaussian oracle, or another of the models above, freshly made."""
    oracle = linear_gaussian()
    if name == "rank-1":
        factor = torch.distributions.Normal(one(1.0), one(0.3))
        return Problem(
            name, rank1_network(), oracle.x, oracle.y[:, None], lambda z: factor.log_prob(z).sum(-1)
        )
    if name == "mixed":
        return Problem(name, MixedModel(), oracle.x, oracle.y[:, None], MixedModel.log_prior)
    if name == "matrix":
        return Problem(name, MatrixModel(), oracle.x, oracle.y[:, None], MatrixModel.log_prior)
    normal = torch.distributions.Normal(one(0.0), one(oracle.prior_scale))
    return Problem(
        name, oracle.model, oracle.x, oracle.y[:, None], lambda z: normal.log_prob(z).sum(-1)
    )


def made(cls: MakeGuide, given: Problem, *, seed: int = 0, noise: float = 1.0) -> Guide:
    """A guide set up on a problem, its parameters moved off their start by Gaussian noise."""
    guide = cls(given.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        guide.setup(given.x[:1])
    guide.to(torch.float64)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return guide


def z_scores(values: Tensor, expected: Tensor | float) -> Tensor:
    """Standard errors between the mean over the first axis of independent values and a number."""
    error = values.std(0) / math.sqrt(len(values))
    return (values.mean(0) - expected) / error


def assert_mean(values: Tensor, expected: Tensor | float) -> None:
    """The mean over the first axis is within 5 standard errors of a number."""
    assert float(z_scores(values, expected).abs().max()) < 5


def objective(guide: Guide, program: Program, *, captured: bool) -> tuple[list[Tensor], Evaluate]:
    """A guide's parameters, and a function of noise and rows: negative ELBO and its gradients."""
    program.prepare(guide)
    named = {f"guide.{name}": value for name, value in guide.named_parameters()}

    def loss(
        variables: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        noise, x, y = rest
        terms = program.elbo(guide, dict(zip(named, variables, strict=True)), noise, Batch(x, y))
        return terms.kl - terms.expected_log_likelihood, ()

    step = Captured(value_and_grad(loss, len(named)), "step", enabled=captured)
    parameters: list[Tensor] = list(named.values())

    def evaluate(noise: Tensor, rows: Batch) -> tuple[Tensor, ...]:
        out = step(*parameters, noise, rows.x, rows.y)
        assert step.is_captured == captured
        return out

    return parameters, evaluate


# Laws of every guide


def draws_are_reproducible(cls: MakeGuide, given: Problem) -> None:
    guide = made(cls, given)
    state = torch.get_rng_state()
    z = guide.sample(7, seed=3)
    torch.testing.assert_close(torch.get_rng_state(), state)
    assert z.shape == (7, given.program.num_latents)
    assert not z.requires_grad
    torch.testing.assert_close(guide.sample(7, seed=3), z, rtol=0, atol=0)
    if guide.noise_dim:
        assert bool((guide.sample(7, seed=4) != z).any())


def captured_elbo_equals_uncaptured(cls: MakeGuide, given: Problem) -> None:
    guide, program = made(cls, given), given.program
    _, captured = objective(guide, program, captured=True)
    assert_same_as_uncaptured(captured, guide, given)


def captured_elbo_and_its_gradient_are_right(cls: MakeGuide, given: Problem) -> None:
    """Those of the uncaptured ELBO, before and after a move, and finite differences."""
    guide, program = made(cls, given), given.program
    parameters, captured = objective(guide, program, captured=True)
    assert_same_as_uncaptured(captured, guide, given)
    rows = program.batch(given.x, given.y)
    noise = guide.draw_noise(4, torch.Generator().manual_seed(1))
    _, *gradients = captured(noise, rows)
    slopes = differences(guide, program, noise, rows)
    for gradient, expected in zip(gradients, slopes, strict=True):
        torch.testing.assert_close(gradient.reshape(-1), expected, rtol=1e-6, atol=1e-5)
    with torch.no_grad():
        for parameter in parameters:  # the graph reads them where they are
            parameter.add_(0.1)
    assert_same_as_uncaptured(captured, guide, given)


def differences(
    guide: Guide, program: Program, noise: Tensor, rows: Batch, step: float = 1e-5
) -> Sequence[Tensor]:
    """Central differences of minus the ELBO by every entry of every parameter, all at once."""
    named = {f"guide.{name}": value.detach() for name, value in guide.named_parameters()}
    sizes = [value.numel() for value in named.values()]
    flat = torch.cat([value.reshape(-1) for value in named.values()])

    def loss(flat: Tensor) -> Tensor:
        parts = zip(named.items(), flat.split(sizes), strict=True)
        params = {name: part.reshape(value.shape) for (name, value), part in parts}
        terms = program.elbo(guide, params, noise, rows)
        return terms.kl - terms.expected_log_likelihood

    shifts = step * torch.eye(len(flat), dtype=flat.dtype)
    with torch.no_grad():
        above, below = (over_draws(loss, flat + sign * shifts) for sign in (1, -1))
    slopes: Sequence[Tensor] = ((above - below) / (2 * step)).split(sizes)
    return slopes


def assert_same_as_uncaptured(captured: Evaluate, guide: Guide, given: Problem) -> None:
    """A captured objective and its gradients are those that are not, of one draw and of four."""
    program = given.program
    rows = program.batch(given.x, given.y)
    _, plain = objective(guide, program, captured=False)
    for num_particles in (1, 4):
        noise = guide.draw_noise(num_particles, torch.Generator().manual_seed(2))
        for a, b in zip(captured(noise, rows), plain(noise, rows), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def minibatches_average_to_the_full_batch(cls: MakeGuide, given: Problem) -> None:
    given = replace(given, x=given.x[:8], y=given.y[:8])
    guide, program = made(cls, given), given.program
    rows = program.batch(given.x, given.y)
    noise = guide.draw_noise(2, torch.Generator().manual_seed(3))
    _, evaluate = objective(guide, program, captured=False)
    full = evaluate(noise, rows)
    for size in (1, 4, 3):  # 3 leaves a last batch of 2 rows
        batches = [Batch(x, y) for x, y in zip(rows.x.split(size), rows.y.split(size), strict=True)]
        outputs = [evaluate(noise, batch) for batch in batches]
        shares = [len(batch.x) / len(rows.x) for batch in batches]
        for i, expected in enumerate(full):
            terms = [w * out[i] for w, out in zip(shares, outputs, strict=True)]
            torch.testing.assert_close(torch.stack(terms).sum(0), expected, rtol=1e-10, atol=1e-10)


def state_goes_through_a_file(cls: MakeGuide, given: Problem) -> None:
    guide = made(cls, given)
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    fresh = cls(given.model)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(fresh.sample(5), guide.sample(5), rtol=0, atol=0)
    assert all(p.requires_grad for p in fresh.parameters())
    fresh.setup(given.x[:1])  # does not start anew
    torch.testing.assert_close(fresh.sample(5), guide.sample(5), rtol=0, atol=0)
    assert {k: v.shape for k, v in fresh.named_parameters()} == {
        k: v.shape for k, v in guide.named_parameters()
    }


def options_make_the_same_kind(cls: MakeGuide, given: Problem) -> None:
    guide = made(cls, given)
    options = json.loads(json.dumps(guide.options()))
    again = cls(given.model, **options)
    assert again.options() == guide.options()
    again.load_state_dict(guide.state_dict())
    torch.testing.assert_close(again.sample(5), guide.sample(5), rtol=0, atol=0)


def copies_are_independent(cls: MakeGuide, given: Problem) -> None:
    guide = made(cls, given)
    copied = copy.deepcopy(guide)
    assert copied.model is guide.model
    assert copied._pyro_name != guide._pyro_name
    before = guide.sample(5)
    torch.testing.assert_close(copied.sample(5), before, rtol=0, atol=0)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(guide.sample(5), before, rtol=0, atol=0)
    assert bool((copied.sample(5) != before).any())


def dtype_moves(cls: MakeGuide, given: Problem) -> None:
    guide = made(cls, given)
    double = guide.sample(5)
    assert double.dtype == torch.float64
    guide.to(torch.float32)
    assert guide.sample(5).dtype == torch.float32
    assert {p.dtype for p in guide.parameters()} == {torch.float32}


def device_moves(cls: MakeGuide, given: Problem) -> None:
    """All of a guide is on the device it is moved to: on "meta" nothing is computed but that."""
    guide = made(cls, given).to("meta")
    noise = guide.draw_noise(3)
    with torch.no_grad():
        draws = guide.draws(noise)
        assert draws.device.type == "meta"
        if guide.has_log_prob:
            assert guide.log_q(noise).device.type == "meta"
    assert {p.device.type for p in guide.parameters()} == {"meta"}


def noise_of_one_draw_is_a_row(cls: MakeGuide, given: Problem) -> None:
    guide = made(cls, given)
    noise = guide.draw_noise(4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = guide.transport(noise)
        rows = torch.stack([guide.transport(row) for row in noise])
    torch.testing.assert_close(whole, rows, rtol=1e-12, atol=1e-12)


def move_to_centres_the_draws(cls: MakeGuide, given: Problem) -> None:
    guide = made(cls, given)
    target = torch.linspace(-1, 1, guide.num_latents, dtype=torch.float64)
    guide.move_to(target)
    draws = guide.sample(NUM_DRAWS)
    if isinstance(guide, AutoFlow):  # whose mean has no closed form
        with torch.no_grad():
            torch.testing.assert_close(guide.transport(torch.zeros_like(target)), target)
    elif guide.noise_dim:
        spread = draws.std(0) > 1e-12  # else point estimates
        assert_mean(draws[:, spread], target[spread])
        torch.testing.assert_close(draws[0, ~spread], target[~spread])
    else:
        torch.testing.assert_close(draws, target.expand_as(draws))


def fits_stay_apart_under_stock_pyro(cls: MakeGuide, given: Problem) -> None:
    """Two guides of one model share nothing, and the second one trains too (peers.md, M5)."""
    pyro.clear_param_store()
    first, second = made(cls, given, seed=1), made(cls, given, seed=2)
    second_start = [p.detach().clone() for p in second.parameters()]
    _train_with_stock_pyro(given, first, 3)
    for parameter, start in zip(second.parameters(), second_start, strict=True):
        torch.testing.assert_close(parameter.detach(), start, rtol=0, atol=0)
    first_end = [p.detach().clone() for p in first.parameters()]
    _train_with_stock_pyro(given, second, 3)
    for parameter, end in zip(first.parameters(), first_end, strict=True):
        torch.testing.assert_close(parameter.detach(), end, rtol=0, atol=0)
    for parameter, start in zip(second.parameters(), second_start, strict=True):
        assert bool((parameter.detach() != start).any())
    pyro.clear_param_store()


def stock_pyro_trains_it(cls: MakeGuide, given: Problem) -> None:
    pyro.clear_param_store()
    guide = made(cls, given)
    rows = given.program.batch(given.x, given.y)
    noise = guide.draw_noise(200, torch.Generator().manual_seed(5))

    def loss() -> float:
        program = Program(given.model, given.x, given.y)  # point parameters as they are
        _, evaluate = objective(guide, program, captured=False)
        return float(evaluate(noise, rows)[0])

    before = loss()
    _train_with_stock_pyro(given, guide, 25, learning_rate=0.05)
    assert loss() < before - 1.0
    pyro.clear_param_store()


def stock_elbo_has_the_same_expectation(cls: MakeGuide, given: Problem) -> None:
    """Pyro's Trace_ELBO and the program's ELBO are estimates of one number.

    The likelihood varies from draw to draw by far more than the rest, and would hide an error of a
    nat or two in an entropy: so it is compared draw by draw, and the rest by its mean.
    """
    guide, program = made(cls, given), given.program
    rows, num_draws = program.batch(given.x, given.y), 3_000
    with torch.random.fork_rng(), torch.no_grad(), pyro.get_param_store().scope():
        torch.manual_seed(6)
        loss = Trace_ELBO().loss(given.model, guide, given.x, given.y)
        torch.manual_seed(6)
        _, first_likelihood, first_kl = _stock_terms(given, program, guide)
        torch.testing.assert_close(first_kl - first_likelihood, one(loss), rtol=1e-10, atol=1e-10)
        with pyro.validation_enabled(is_validate=False), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tensor, "normal_", _normal_like)
            patch.setattr(Tensor, "uniform_", _uniform_like)
            z, log_likelihood, kl = vmapped(
                lambda _: _stock_terms(given, program, guide), torch.arange(num_draws)
            )
    program.prepare(guide)
    params: dict[str, Tensor] = {f"guide.{k}": v for k, v in guide.named_parameters()}
    noise = guide.draw_noise(num_draws, torch.Generator().manual_seed(7))
    with torch.no_grad():
        same = program.log_likelihood(z, rows).sum(-1)
        torch.testing.assert_close(log_likelihood, same, rtol=1e-8, atol=1e-8)
        ours = vmapped(lambda row: program.elbo(guide, params, row, rows).kl, noise.unsqueeze(1))
        draws = guide.transport(noise)
    _assert_same_mean(kl, ours)
    _assert_same_mean(z, draws)
    _assert_same_mean((z - draws.mean(0)).square(), (draws - draws.mean(0)).square())


def _stock_terms(given: Problem, program: Program, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
    """Of one draw of stock Pyro's ELBO: z ``[P]``, log likelihood and log q less log prior."""
    drawn = poutine.trace(guide).get_trace(given.x, given.y)
    model = poutine.trace(poutine.replay(given.model, trace=drawn)).get_trace(given.x, given.y)
    log_p, log_q = model.log_prob_sum(), drawn.log_prob_sum()
    nodes: Any = model.nodes
    z = program.unconstrain({site.name: nodes[site.name]["value"] for site in program.sites})
    log_likelihood: Tensor = nodes["y"]["log_prob_sum"]
    return z, log_likelihood, torch.as_tensor(log_q - log_p) + log_likelihood


def vmapped(fn: Callable[[Tensor], Any], draws: Tensor) -> Any:
    """A function of each draw, with random numbers of its own; torch may loop."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return torch.func.vmap(fn, randomness="different")(draws)


def _normal_like(empty: Tensor) -> Tensor:
    """Standard normals, for each draw of a vmap its own, which ``normal_`` in place refuses."""
    return torch.randn_like(empty)


def _uniform_like(empty: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform numbers, as `_normal_like`."""
    return low + (high - low) * torch.rand_like(empty)


def _assert_same_mean(a: Tensor, b: Tensor) -> None:
    """The means over the first axis differ by less than 5 standard errors, or by rounding."""
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    assert bool(((a.mean(0) - b.mean(0)).abs() <= 5 * error + 1e-9).all())


def _train_with_stock_pyro(
    given: Problem, guide: Guide, num_steps: int, learning_rate: float = 0.02
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        svi = SVI(given.model, guide, Adam({"lr": learning_rate}), Trace_ELBO())
        for _ in range(num_steps):
            svi.step(given.x, given.y)


UNDER_STOCK_PYRO = (
    fits_stay_apart_under_stock_pyro,
    stock_pyro_trains_it,
    stock_elbo_has_the_same_expectation,
)
EVERY_GUIDE = (
    draws_are_reproducible,
    captured_elbo_and_its_gradient_are_right,
    minibatches_average_to_the_full_batch,
    state_goes_through_a_file,
    options_make_the_same_kind,
    copies_are_independent,
    dtype_moves,
    device_moves,
    noise_of_one_draw_is_a_row,
    move_to_centres_the_draws,
)


# Laws of guides with a density


def density_is_that_of_the_draws(cls: MakeGuide, given: Problem) -> None:
    r"""Importance weights of a narrower Gaussian r average to one, E_q[r/q] = 1."""
    guide = made(cls, given)
    if any(isinstance(part, AutoFlow) for part in guide.modules()):
        guide = made(cls, given, noise=0.3)  # far from a Gaussian the weights have no variance
    z = guide.sample(NUM_DRAWS, seed=1)
    other = guide.sample(NUM_DRAWS, seed=2)
    components = guide.components()
    r: Any
    if components is not None and components.loc.ndim == 2:  # where one component is
        loc, scale = components.loc[0].detach(), components.scale[0].detach()
        r = torch.distributions.Independent(torch.distributions.Normal(loc, 0.7 * scale), 1)
    else:
        r = torch.distributions.MultivariateNormal(other.mean(0), 0.5 * other.T.cov())
    with torch.no_grad():
        assert_mean((r.log_prob(z) - guide.log_prob(z)).exp(), 1.0)


def draws_fill_cells_as_the_density_says(cls: MakeGuide, given: Problem) -> None:
    r"""Goodness of fit: shares of draws in cells, against $\int q$ over the cells.

    The cells are tenths of the draws along four directions; the integrals are by importance
    sampling from half q, half a Gaussian wider than q, so that no weight exceeds 2.
    """
    guide = made(cls, given)
    z, other = guide.sample(NUM_DRAWS, seed=9), guide.sample(NUM_DRAWS, seed=10)
    generator = torch.Generator().manual_seed(11)
    wide = torch.distributions.MultivariateNormal(other.mean(0), 1.5 * other.T.cov())
    half = z.shape[0] // 2, z.shape[1]
    normals = torch.randn(half, generator=generator, dtype=z.dtype)
    r = torch.stack([guide.sample(half[0], seed=12), wide.loc + normals @ wide.scale_tril.T])
    with torch.no_grad():
        weights = 2 * torch.sigmoid(guide.log_prob(r) - wide.log_prob(r))  # [2, S/2], of mean 1
    directions = torch.randn(half[1], 4, generator=generator, dtype=z.dtype)
    directions = directions / other.std(0)[:, None]
    levels = torch.linspace(0.1, 1.0, 10, dtype=z.dtype)
    edges = torch.quantile(other @ directions, levels, dim=0)[:, None]  # [10, 1, 4]
    edges[-1] = torch.inf  # q integrates to one
    below = ((z @ directions) < edges).to(z)  # [10, S, 4]
    expected = ((r @ directions) < edges[:, None]).to(z) * weights[..., None]  # [10, 2, S/2, 4]
    errors = below.var(1) / NUM_DRAWS + expected.var(2).mean(1) / NUM_DRAWS
    errors = errors + half[0] ** -2  # a draw of weight 2 that none of them is
    assert float(((below.mean(1) - expected.mean((1, 2))) / errors.sqrt()).abs().max()) < 5


def score_has_mean_zero(cls: MakeGuide, given: Problem) -> None:
    r"""Stein's identities: E_q grad log q = 0 and E_q[z_i grad_j log q] = -[i = j]."""
    guide = made(cls, given)
    z = guide.sample(NUM_DRAWS, seed=3).requires_grad_()
    (score,) = torch.autograd.grad(guide.log_prob(z).sum(), z)
    z = z.detach()
    assert_mean(score, 0.0)
    centred = z - guide.sample(NUM_DRAWS, seed=4).mean(0)
    products = (centred.unsqueeze(-1) * score.unsqueeze(-2)).flatten(1)  # [S, P^2]
    assert_mean(products, -torch.eye(z.shape[1], dtype=z.dtype).flatten())


def density_has_a_batch_axis(cls: MakeGuide, given: Problem) -> None:
    guide = made(cls, given)
    z = guide.sample(6)
    with torch.no_grad():
        whole = guide.log_prob(z)
        rows = torch.stack([guide.log_prob(row) for row in z])
    assert whole.shape == (6,)
    torch.testing.assert_close(whole, rows, rtol=1e-12, atol=1e-12)


def entropy_and_marginals_are_those_of_the_draws(cls: MakeGuide, given: Problem) -> None:
    guide = made(cls, given)
    z = guide.sample(NUM_DRAWS, seed=5)
    with torch.no_grad():
        entropy, marginals = guide.entropy(), guide.marginals()
        assert (entropy is not None) == (guide.kl_kind == "exact")
        if entropy is not None:
            assert_mean(-guide.log_prob(z), entropy)
        if marginals is not None:
            mean, sd = marginals
            assert_mean(z, mean)
            assert_mean((z - mean).square(), sd.square())


def kl_is_the_mean_log_ratio(cls: MakeGuide, given: Problem) -> None:
    guide = made(cls, given)
    z = guide.sample(NUM_DRAWS, seed=6)
    with torch.no_grad():
        log_ratio = guide.log_prob(z) - given.log_prior(z)
    value, exact = guide.kl(num_draws=NUM_DRAWS, seed=7)
    assert not exact or guide.kl_kind == "exact"
    error = float(log_ratio.std()) / math.sqrt(NUM_DRAWS)
    assert abs(value - float(log_ratio.mean())) < 5 * error * (1 if exact else math.sqrt(2))
    assert (guide.kl(num_draws=10, seed=8)[0] == value) == exact  # exact: no Monte Carlo error


def pyro_trace_has_the_same_density(cls: MakeGuide, given: Problem) -> None:
    """The log density of a Pyro trace of the guide is log q(z) less the log Jacobian."""
    guide, program = made(cls, given), given.program
    with torch.random.fork_rng(), torch.no_grad(), pyro.get_param_store().scope():
        torch.manual_seed(0)
        for _ in range(3):
            trace = poutine.trace(guide).get_trace(given.x, given.y)
            values: dict[str, Tensor] = {
                site.name: cast(Tensor, trace.nodes[site.name]["value"]) for site in program.sites
            }
            for site in program.sites:
                assert values[site.name].shape == site.shape
                assert bool(site.support.check(values[site.name]).all())
            z = program.unconstrain(values)
            log_det = sum(float(site.log_abs_det_jacobian(z)) for site in program.sites)
            total = trace.log_prob_sum()
            assert isinstance(total, Tensor)
            torch.testing.assert_close(total, guide.log_prob(z) - log_det, rtol=1e-9, atol=1e-9)


WITH_DENSITY = (
    density_is_that_of_the_draws,
    draws_fill_cells_as_the_density_says,
    score_has_mean_zero,
    density_has_a_batch_axis,
    entropy_and_marginals_are_those_of_the_draws,
    kl_is_the_mean_log_ratio,
    pyro_trace_has_the_same_density,
)


def module_of(values: Sequence[Tensor]) -> nn.Module:
    """A module whose parameters are given tensors, in order."""
    return nn.ParameterList([nn.Parameter(value) for value in values])
