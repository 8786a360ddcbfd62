"""What exceeds the bound on memory: by blocks of rows, with the same numbers, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_bnn import Program, likelihoods, memory, models
from pyro_bnn.data import Standardiser
from pyro_bnn.errors import ModelError, OptionError, ShapeError
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.map_draws import Chunks
from pyro_bnn.predictive.prediction import StreamedPrediction

S, N = 20, 400
UNITS = Standardiser(torch.tensor(5.0).double(), torch.tensor(3.0).double())
# Bytes, where 20 draws are 64,000 of f and four times as many with y and its moments
BY_DRAWS = (200_000, 200_000)  # bound and working set: two draws at all rows at once
BY_ROWS = (75_000, 40_000)  # a draw at all rows, which takes 77,000 or more, exceeds the bound
BOUND = BY_ROWS[0]
NUMBERS: dict[str, Callable[[], PyroModule]] = {
    "homoscedastic": lambda: models.MLP(3, hidden=(8,)),
    "heteroscedastic": lambda: models.MLP(
        3, hidden=(8,), likelihood=likelihoods.HeteroscedasticNormal()
    ),
    "two targets": lambda: models.MLP(3, 2, hidden=(8,)),
}
CLASSES: dict[str, Callable[[], PyroModule]] = {
    "Categorical": lambda: models.MLP(3, hidden=(8,), likelihood=likelihoods.Categorical(3)),
    "Bernoulli": lambda: models.MLP(3, hidden=(8,), likelihood=likelihoods.Bernoulli()),
}


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are small enough for several draws and blocks."""
    monkeypatch.setattr(memory, "WORKING_SET", BY_ROWS[1])


def rows() -> Tensor:
    return torch.linspace(-2, 2, N * 3, dtype=torch.float64).sin().reshape(N, 3)


def posterior_of(model: PyroModule, y: Tensor | None = None) -> DrawsPosterior:
    """A posterior of prior draws: what it predicts is exact, whatever the draws are."""
    x = rows()
    program = Program(model.double(), x, x[:, 0] if y is None else y)
    z = program.prior_draws(S, x[:1], seed=2).unsqueeze(0)
    return DrawsPosterior(program, z, Provenance("prior", "none", target=UNITS))


@pytest.mark.parametrize(
    ("kind", "bound", "working_set"),
    [
        ("homoscedastic", *BY_DRAWS),
        ("heteroscedastic", *BY_ROWS),
        ("two targets", *BY_ROWS),
    ],
)
def test_blocks_of_numbers_have_the_same_moments_and_densities(
    kind: str, bound: int, working_set: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "WORKING_SET", working_set)
    x = rows()
    y = x[:, :2] if kind == "two targets" else x[:, 0]
    posterior = posterior_of(NUMBERS[kind](), y)
    whole = posterior.predict(x, S, raw=True)
    streamed = posterior.predict(x, S, raw=True, memory=bound)
    assert isinstance(streamed, StreamedPrediction)
    assert len(streamed._blocks) > 1
    for name in ("mean", "sd", "sd_epistemic", "sd_aleatoric"):
        expected = getattr(whole, name)
        torch.testing.assert_close(getattr(streamed, name), expected, rtol=1e-9, atol=1e-12)
    of_y = UNITS.inverse(y)
    torch.testing.assert_close(
        streamed.log_prob(of_y), whole.log_prob(of_y), rtol=1e-12, atol=1e-12
    )
    with pytest.raises(ShapeError, match=rf"y has shape \({N - 1},.*, x has {N} rows"):
        streamed.log_prob(of_y[:-1])


@pytest.mark.slow("many draws")
def test_quantiles_of_blocks_are_exact_and_their_noise_is_their_own() -> None:
    """Of a y known but for its Gaussian noise."""
    x, draws = rows(), 2_000
    model = models.MLP(3, hidden=(), likelihood=likelihoods.Normal(0.5)).double()
    program = Program(model, x, x[:, 0])
    z = program.initial.expand(1, draws, -1)
    posterior = DrawsPosterior(program, z, Provenance("one point", "none"))
    found = posterior.predict(x, draws, memory=4_000_000)
    assert isinstance(found, StreamedPrediction)
    f = posterior.function_draws(x[:N], 1)[0, :, 0]
    normal = torch.distributions.Normal(0.0, 0.5)
    levels = [0.05, 0.5, 0.9]
    quantiles = found.quantile(levels)[..., 0]  # together, as each call draws all blocks again
    for level, quantile in zip(levels, quantiles, strict=True):
        exact = f + normal.icdf(torch.tensor(level, dtype=torch.float64))
        torch.testing.assert_close(quantile, exact, rtol=1e-9, atol=1e-9)
    again = posterior.predict(x, draws, memory=4_000_000)
    assert torch.equal(again.quantile(0.9)[:, 0], quantiles[2])
    noise = [block().draws - block().function_draws for block in found._blocks[:2]]
    assert abs(float((noise[0] * noise[1]).mean())) < 5 * 0.5**2 / math.sqrt(noise[0].numel())


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("kind", CLASSES)
def test_blocks_of_classes_have_the_same_probabilities(kind: str) -> None:
    x, y = rows(), torch.arange(N) % 2
    posterior = posterior_of(CLASSES[kind](), y)
    whole, streamed = posterior.predict(x, S), posterior.predict(x, S, memory=BOUND)
    assert isinstance(streamed, StreamedPrediction)
    for name in ("probs", "entropy", "mutual_information"):
        torch.testing.assert_close(
            getattr(streamed, name), getattr(whole, name), rtol=1e-12, atol=1e-13
        )
    torch.testing.assert_close(streamed.log_prob(y), whole.log_prob(y), rtol=1e-12, atol=1e-12)


def test_results_beyond_the_bound_are_refused_with_what_fits() -> None:
    x = rows()
    posterior = posterior_of(models.MLP(3, hidden=(8,)))
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: posterior.log_likelihood((x, x[:, 0]), S, memory=BOUND),
        lambda: posterior.function_draws(x, S, memory=BOUND),
        lambda: posterior.predict(x, S, memory=BOUND).draws,
    )
    for call in calls:
        with pytest.raises(OptionError, match=r"20 draws at 400 rows need about .*raise memory="):
            call()


# Blocks of rows


def test_a_draw_that_exceeds_the_bound_comes_in_blocks_of_rows() -> None:
    x = rows()
    posterior = posterior_of(models.MLP(3, hidden=(8,)))
    z, program, data = posterior.unconstrained(S), posterior.program, (x, x[:, 0])
    f, log_likelihood = program.function(z, x), program.log_likelihood(z, program.batch(*data))
    streamed = posterior.predict(x, S, memory=BOUND)
    torch.testing.assert_close(streamed.mean, f.mean(0), rtol=1e-12, atol=1e-12)
    log_mean = log_likelihood.logsumexp(0) - math.log(S)
    torch.testing.assert_close(streamed.log_prob(x[:, 0]), log_mean, rtol=1e-12, atol=1e-12)
    log_joint = log_likelihood.sum(-1) + program.log_prior(z, x)
    torch.testing.assert_close(posterior.log_joint(data, S), log_joint)
    bound = 130_000  # one draw at all rows takes 77,000, beside the result of 64,000
    found = posterior.function_draws(x, S, memory=bound)
    torch.testing.assert_close(found, f, rtol=1e-12, atol=1e-12)
    found = posterior.log_likelihood(data, S, memory=bound)
    torch.testing.assert_close(found, log_likelihood, rtol=1e-12, atol=1e-12)


class Standardised(PyroModule):
    """A linear model of inputs less their mean over all rows, so that rows are not apart."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(x.new_zeros(3, 8), 1).to_event(2))
        f = pyro.deterministic("f", ((x - x.mean(0)) @ w).tanh().sum(-1, keepdim=True))
        with pyro.plate("data", f.shape[-2]):
            pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)
        return f


def test_rows_that_depend_on_each_other_are_refused() -> None:
    with pytest.raises(ModelError, match="what the model says of a row depends on other rows"):
        posterior_of(Standardised())


def test_which_dimension_is_that_of_the_rows() -> None:
    program = Program(models.MLP(3, hidden=(4,)), rows().float(), rows().float()[:, 0])

    def fn(z: Tensor, rows: tuple[Tensor, ...], params: object) -> tuple[Tensor, ...]:
        f = z[:, :1] * rows[0][:, 0]  # [s, N]
        return f, z, f.unsqueeze(1).expand(-1, 4, -1)

    def of_all(z: Tensor, rows: tuple[Tensor, ...], params: object) -> tuple[Tensor, ...]:
        return (z.sum() * rows[0].sum(0, keepdim=True),)

    for name, function, axes in (("a", fn, (1, None, 2)), ("b", of_all, (None,))):
        run = Chunks(program).over(name, function, Draws.of(torch.ones(5, 2)), (rows(),), {})
        assert run.axes == axes
        assert run.chunks.are_rows_apart(run) == (name == "a")
    single = Chunks(program).over("a", fn, Draws.of(torch.ones(5, 2)), (rows()[:1],), {})
    assert not single.chunks.are_rows_apart(single)
