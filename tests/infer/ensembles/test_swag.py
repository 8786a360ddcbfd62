"""SWAG: moments of iterates by their formulas, SGD by its law, the scale by held-out rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import SVI, SWAG, guides, likelihoods, memory, models
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.infer.ensembles.iterates import Iterates
from pyro_bnn.infer.ensembles.swag import SCALES
from pyro_bnn.posterior import Posterior
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch
from tests.oracle import LinearGaussian, linear_gaussian

X = torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(15, 2)
Y = X[:, 0].sin() - X[:, 1].square()


def network() -> models.MLP:
    return models.MLP(2, hidden=(4,), likelihood=likelihoods.Normal(0.2)).double()


# --- moments --------------------------------------------------------------------------------------


def test_moments_are_those_of_all_iterates() -> None:
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).double()
    iterates = Iterates(z[0], 4)
    for row in z:
        iterates.add(row)
    assert_close(iterates.mean, z.mean(0))
    assert_close(iterates.variance, z.square().mean(0) - z.mean(0).square())
    running = torch.stack([z[: n + 1].mean(0) for n in range(7)])
    deviations = (z - running)[3:]
    assert_close(iterates.factor @ iterates.factor.mT, deviations.T @ deviations / 3)


@pytest.mark.parametrize(("count", "published"), [(20, 0.863), (60, 1.03)])
def test_deviations_of_independent_iterates_have_their_factors(
    count: int, published: float
) -> None:
    num, rank = 100_000, 20
    generator = torch.Generator().manual_seed(1)
    iterates = Iterates(torch.zeros(num), rank)
    for _ in range(count):
        iterates.add(torch.randn(num, generator=generator))
    squares = iterates.factor.square().sum(1)  # one estimate an entry
    expected = sum(1 - 1 / n for n in range(count - rank + 1, count + 1)) / (rank - 1)
    assert expected == pytest.approx(published, rel=5e-3)
    assert abs(float(squares.mean()) - expected) < 5 * float(squares.std()) / math.sqrt(num)
    variance = iterates.variance
    expected = (count - 1) / count
    assert abs(float(variance.mean()) - expected) < 5 * float(variance.std()) / math.sqrt(num)


def descent(oracle: LinearGaussian, start: Tensor, step: float, num_steps: int) -> Tensor:
    """Iterates ``[T, P]`` of gradient descent on the negative log joint density."""
    found, z = [], start
    for _ in range(num_steps):
        z = z - step * oracle.precision @ (z - oracle.mean)
        found.append(z)
    return torch.stack(found)


def test_the_covariance_is_that_of_the_formula() -> None:
    oracle = linear_gaussian()
    step, rank, scale = 1 / float(torch.linalg.eigvalsh(oracle.precision)[-1]), 4, 0.8
    init = {"w": torch.ones(len(oracle.mean) - 1, 1).double(), "b": torch.ones(1).double()}
    engine = SWAG(
        num_steps=0, num_iterates=9, thin=1, rank=rank, step_size=step, scale=scale, batch_size=999
    )
    posterior = engine.run(oracle.model, (oracle.x, oracle.y), init=init, progress=False)
    z = descent(oracle, torch.ones_like(oracle.mean), step, 9)
    running = torch.stack([z[: n + 1].mean(0) for n in range(9)])
    deviations = (z - running)[-rank:]
    v = (z.square().mean(0) - z.mean(0).square()).diag()
    expected = scale**2 * (v + deviations.T @ deviations / (rank - 1))
    found = posterior.guide.get_posterior()
    assert_close(found.mean.detach(), z.mean(0))
    assert_close(found.covariance_matrix.detach(), expected, rtol=1e-6, atol=1e-12)


# --- stochastic gradient descent ------------------------------------------------------------------


class OneWeight(PyroModule):
    """y = w x + noise: rows x = 1 and x = -1 have one curvature, so only their gradients differ."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(1).double(), 1.0).to_event(1))
        f = pyro.deterministic("f", x * w)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)
        return sampled


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize("stiffness", [0.2, 1.0])  # h lambda
def test_iterates_of_sgd_have_the_variance_of_its_law(
    stiffness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """:math:`h V / (lambda (2 - h lambda))`, a chain of order one."""
    n, size, count = 8, 2, 5_000
    x = torch.tensor([1.0, -1.0]).double().repeat(n // 2).unsqueeze(-1)
    y = torch.randn(n, 1, generator=torch.Generator().manual_seed(2)).double()
    curvature = n / 0.25 + 1
    mode = float((x * y).sum() / 0.25) / curvature
    slopes = -(x * (y - x * mode)) / 0.25  # of each row at the mode
    noise = n**2 / size * float(slopes.var(correction=0))
    step = stiffness / curvature
    engine = SWAG(
        num_steps=0,
        num_iterates=count,
        thin=1,
        rank=2,
        step_size=step,
        scale=1.0,
        batch_size=size,
        compile=False,
    )
    taken: list[Tensor] = []
    monkeypatch.setattr(Iterates, "add", lambda _, z: taken.append(z.detach().clone()))
    init = {"w": torch.tensor([mode]).double()}
    engine.run(OneWeight(), (x, y), init=init, progress=False)
    found = torch.cat(taken)
    expected = step * noise / (curvature * (2 - stiffness))
    memory = (1 - stiffness) ** 2  # of the squares
    error = expected * math.sqrt(2 / count * (1 + memory) / (1 - memory))
    assert abs(float(found.var(correction=0)) - expected) < 5 * error
    of_mean = math.sqrt(expected / count * (2 - stiffness) / stiffness)
    assert abs(float(found.mean()) - mode) < 5 * of_mean


def test_the_step_is_one_over_the_largest_curvature_where_gradients_have_no_noise() -> None:
    oracle = linear_gaussian()
    engine = SWAG(num_steps=1, num_iterates=2, rank=2, scale=1.0, batch_size=999, compile=False)
    posterior = engine.run(oracle.model, (oracle.x, oracle.y), progress=False)
    largest = float(torch.linalg.eigvalsh(oracle.precision)[-1])
    assert posterior.options["step_size"] == pytest.approx(1 / largest, rel=1e-3)


def test_the_step_is_that_of_the_posteriors_spread_where_gradients_are_noisy() -> None:
    """2 P / tr V with P = 1; batches of all but one row are flat beside their noise."""
    n = 40
    x = torch.tensor([1.0, -1.0]).double().repeat(n // 2).unsqueeze(-1)
    y = 30 * torch.randn(n, 1, generator=torch.Generator().manual_seed(2)).double()
    mode = float((x * y).sum() / 0.25) / (n / 0.25 + 1)
    slopes = -(x * (y - x * mode)) / 0.25
    engine = SWAG(num_steps=0, num_iterates=2, rank=2, scale=1.0, batch_size=1, compile=False)
    init = {"w": torch.tensor([mode]).double()}
    posterior = engine.run(OneWeight(), (x, y), init=init, progress=False)
    noise = n**2 * float(slopes.var(correction=0))
    # of 32 gradients: a chi-square variance has an error of 25 %
    assert posterior.options["step_size"] == pytest.approx(2 / noise, rel=0.5)
    assert posterior.options["step_size"] < 0.1 / (n / 0.25 + 1)


# --- the scale ------------------------------------------------------------------------------------


def test_the_scale_is_the_best_on_rows_that_are_not_fitted() -> None:
    engine = SWAG(num_steps=50, num_iterates=5, rank=3, held_out=0.2, compile=False)
    posterior = engine.run(network(), (X, Y), progress=False)
    assert posterior.program.num_data == 12
    assert posterior.options["scale_tuned_on"] == 3
    fixed = SWAG(num_steps=50, num_iterates=5, rank=3, scale=0.5, compile=False)
    posterior = fixed.run(network(), (X, Y), progress=False)
    assert posterior.program.num_data == 15
    assert (posterior.options["scale"], posterior.options["scale_tuned_on"]) == (0.5, 0)


@pytest.mark.parametrize(("scales", "is_told"), [(SCALES, False), (SCALES[:5], True)])
def test_the_scale_finds_the_spread_of_held_out_targets(
    scales: tuple[float, ...],
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Iterates of sd 0.5, targets whose weights have one of 2: the scale is 4, or next to it.

    Where none of up to 1 is wide enough the largest is taken, and that is told.

    Both parts of the covariance, the diagonal and deviations, have the variance of iterates.
    """
    generator = torch.Generator().manual_seed(3)
    values = 0.5 * torch.randn(400, generator=generator).double() / math.sqrt(2)
    count = iter(values)
    add = Iterates.add
    monkeypatch.setattr(Iterates, "add", lambda own, _: add(own, next(count).reshape(1)))
    monkeypatch.setattr("pyro_bnn.infer.ensembles.swag.SCALES", scales)
    n = 4_000
    x = 3 * torch.randn(n, 1, generator=generator).double()
    y = 2 * torch.randn(n, 1, generator=generator).double() * x
    y += 0.5 * torch.randn(n, 1, generator=generator).double()
    engine = SWAG(
        num_steps=0, num_iterates=400, rank=400, thin=1, step_size=1e-9, held_out=0.5, compile=False
    )
    posterior = engine.run(OneWeight(), (x, y), progress=False)
    expected = min(4.0, scales[-1])
    assert abs(math.log2(posterior.options["scale"] / expected)) < (1e-9 if is_told else 0.51)
    assert ("is the largest of those tried" in caplog.text) is is_told
    sds = posterior.guide.get_posterior().covariance_matrix.detach().sqrt()
    assert float(sds) == pytest.approx(0.5 * posterior.options["scale"], rel=0.1)


def test_the_scale_is_chosen_within_a_bound_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images once took 23 GiB: all draws at all held-out rows at once."""
    working_set, num_held = 64_000, 300
    x = torch.linspace(-1, 1, 1_200, dtype=torch.float64).reshape(600, 2)
    engine = SWAG(num_steps=1, num_iterates=3, rank=2, held_out=0.5, compile=False)
    chosen = engine.run(network(), (x, x[:, 0]), progress=False).options["scale"]
    monkeypatch.setattr(memory, "WORKING_SET", working_set)
    largest, of_all = 0, Program.log_likelihood

    def watched(program: Program, z: Tensor, batch: Batch, params: Any) -> Tensor:
        nonlocal largest
        largest = max(largest, len(z) * len(batch.x))
        return of_all(program, z, batch, params)

    monkeypatch.setattr(Program, "log_likelihood", watched)
    posterior = engine.run(network(), (x, x[:, 0]), progress=False)
    assert posterior.options["scale_tuned_on"] == num_held
    assert posterior.options["scale"] == chosen
    assert 0 < largest * 4 * Y.itemsize <= working_set  # of 4 hidden units alone


# --- what it is and refuses -----------------------------------------------------------------------


@pytest.mark.slow("a second or more")
def test_it_starts_at_a_mode_and_is_saved_and_read(tmp_path: Path) -> None:
    mode = SVI(guides.AutoDelta, num_steps=300, compile=False).run(
        network(), (X, Y), progress=False
    )
    engine = SWAG(num_steps=0, num_iterates=6, rank=3, scale=1.0, batch_size=5, compile=False)
    posterior = engine.run(network(), (X, Y), init=mode, progress=False)
    assert_close(posterior.guide.centre(), mode.unconstrained(1)[0], rtol=0, atol=0.3)
    assert posterior.has_log_prob
    assert not posterior.losses.size
    posterior.save(tmp_path / "swag")
    read = Posterior.load(tmp_path / "swag", network())
    assert_close(read.draws(4), posterior.draws(4), rtol=0, atol=0)
    assert read.method == "SWAG"


def test_a_loader_has_no_rows_to_hold_out() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=5)
    with pytest.raises(OptionError, match="pass the data set itself, or scale="):
        SWAG(num_steps=5).run(network(), loader, progress=False)
    engine = SWAG(num_steps=5, num_iterates=3, rank=2, scale=1.0, compile=False)
    assert engine.run(network(), loader, progress=False).options["thin"] == 3


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="fewer than the rank=20"):
        SWAG(num_iterates=10)
    with pytest.raises(OptionError, match="rank is an integer of at least 2"):
        SWAG(rank=1)
    with pytest.raises(OptionError, match="scale is a positive number"):
        SWAG(scale=0.0)
    with pytest.raises(DataError, match=r"held_out=0\.01 of 15 rows is none"):
        SWAG(held_out=0.01).run(network(), (X, Y), progress=False)
