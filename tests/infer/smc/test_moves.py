"""One move leaves the tempered density as it is, however the step is computed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_bnn.infer.smc.moves import Particles, block_size
from pyro_bnn.infer.smc.run import correction

COUNT, SIZE = 4_000, 2


def densities(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A prior N(0, I) and a likelihood N(z; x, 1 / 3): at b the posterior has precision 1 + 3 b."""
    return -1.5 * (z - x).square().sum(-1), -0.5 * z.square().sum(-1)


def particles(count: int = COUNT, **options: Any) -> Particles:
    x = torch.tensor([1.0, -2.0], dtype=torch.float64)
    like = torch.zeros(SIZE, dtype=torch.float64)
    return Particles(densities, (x,), count, like, "it", num_rows=1, **options)


@pytest.mark.parametrize("b", [0.1, 1.0])
def test_draws_of_the_tempered_density_stay_its_draws(b: float) -> None:
    """With steps so long that a third of them is rejected."""
    own, generator = particles(), torch.Generator().manual_seed(0)
    precision = 1 + 3 * b
    mean = 3 * b / precision * torch.tensor([1.0, -2.0], dtype=torch.float64)
    normal = torch.randn(COUNT, SIZE, generator=generator, dtype=torch.float64)
    own.z.copy_(mean + normal / math.sqrt(precision))
    own.at(b)
    acceptance = [own.move(1.6 / math.sqrt(precision), 3, generator) for _ in range(20)]
    assert 0.5 < sum(acceptance) / 20 < 0.9
    error = 1 / math.sqrt(precision * COUNT)
    assert bool(((own.z.mean(0) - mean).abs() < 5 * error).all())
    variances = own.z.var(0) * precision
    assert bool(((variances - 1).abs() < 5 * math.sqrt(2 / COUNT)).all())
    likelihood, prior = densities(own.z, torch.tensor([1.0, -2.0], dtype=torch.float64))
    torch.testing.assert_close(own.log_likelihood, likelihood)
    torch.testing.assert_close(own.potential, -(prior + b * likelihood))
    torch.testing.assert_close(own.grad, precision * (own.z - mean))


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"captured": False}, "eager"),
        ({}, "captured"),
        ({"apart": True}, "apart"),
        pytest.param({"compiled": True}, "compiled", marks=pytest.mark.slow("compiles")),
    ],
)
def test_all_ways_to_compute_do_the_same(options: dict[str, Any], path: str) -> None:
    found = []
    for how in ({"captured": False}, options):
        own = particles(24, **how)
        own.z.copy_(torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(24, 2))
        own.scale.copy_(torch.tensor([0.5, 2.0], dtype=torch.float64))
        own.at(0.3)
        generator = torch.Generator().manual_seed(1)
        own.move(0.3, 4, generator)
        own.at(0.4)  # by the same graph
        own.move(0.2, 3, generator)
        found.append(own)
    assert found[1].compile_path == path
    assert found[1].num_gradients == 24 * 9
    for one, other in zip(found[0].values(), found[1].values(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_threads_change_nothing() -> None:
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            own = particles(1_024, apart=True)
            own.z.copy_(torch.linspace(-1, 1, 2_048, dtype=torch.float64).reshape(-1, 2))
            own.at(0.3)
            own.move(0.3, 4, torch.Generator().manual_seed(1))
            found.append(own.z)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_what_is_not_finite_is_rejected() -> None:
    def steep(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        likelihood, prior = densities(z, x)
        return likelihood - torch.where(z[..., 0] > 0, math.inf, 0.0), prior

    own = particles(50)
    other = Particles(steep, own._inputs, 50, own.z[0], "it", num_rows=1)
    other.z.copy_(torch.linspace(-2, -0.1, 100, dtype=torch.float64).reshape(50, 2))
    other.at(1.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        other.move(1.0, 2, generator)
    assert bool((other.z[:, 0] <= 0).all())
    assert bool(other.potential.isfinite().all())


def test_a_step_is_corrected_to_the_target() -> None:
    """Of the acceptance erfc(c h^2) in one correction, if it is not too far."""
    for step in (0.8, 1.0, 1.2):
        acceptance = math.erfc(0.3 * step**2)
        corrected = step * correction(acceptance, 0.65)
        assert math.erfc(0.3 * corrected**2) == pytest.approx(0.65, rel=1e-9)


@pytest.mark.parametrize(("count", "most", "size"), [(512, 100, 64), (10, 10, 10), (9, 4, 3)])
def test_blocks_divide_all(count: int, most: int, size: int) -> None:
    assert block_size(count, most) == size
