"""The mass matrix: products with its factor, and estimates that are exact for Gaussians."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from pyro_bnn.infer.mcmc import mass
from pyro_bnn.infer.mcmc.mass import Mass, diagonal, from_gradients, low_rank
from pyro_bnn.infer.mcmc.sampling import first_mass
from pyro_bnn.infer.mcmc.windows import RANK

P, R = 7, 3
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def one_chain(rows: Tensor) -> Tensor:
    return torch.zeros(len(rows), dtype=torch.int64)


def standard(num_parameters: int, dtype: torch.dtype = torch.float64) -> Mass:
    return Mass(torch.ones(num_parameters, dtype=dtype))


def some_low_rank(dtype: torch.dtype = torch.float64) -> Mass:
    """Two directions and one of padding."""
    basis = torch.linalg.qr(normal(P, R))[0]
    basis[:, -1] = 0
    stretch = torch.tensor([3.0, 0.2, 1.0])
    return Mass(normal(P, seed=1).exp().to(dtype), basis.to(dtype), stretch.to(dtype))


def directions(m: Mass) -> tuple[Tensor, Tensor]:
    assert m.basis is not None
    assert m.stretch is not None
    return m.basis, m.stretch


def factor(m: Mass) -> Tensor:
    """L ``[P, P]`` by its definition."""
    if m.basis is None:
        return m.scale.diag()
    basis, stretch = directions(m)
    inner = basis @ (stretch - 1).diag() @ basis.mT
    eye = torch.eye(len(m.scale), dtype=m.scale.dtype)
    product: Tensor = m.scale.diag() @ (eye + inner)
    return product


def condition_number(m: Mass, covariance: Tensor) -> float:
    """Of the whitened covariance, L^-1 Sigma L^-T."""
    left = torch.linalg.solve(factor(m), covariance)
    values = torch.linalg.eigvalsh(torch.linalg.solve(factor(m), left.mT))
    return float(values[-1] / values[0])


def spiked(num_parameters: int, eigenvalues: list[float]) -> Tensor:
    """Covariance D (I + B diag(eigenvalues - 1) B^T) D with scales D of all sizes."""
    scale = normal(num_parameters, seed=2).exp()
    basis = torch.linalg.qr(normal(num_parameters, len(eigenvalues), seed=3))[0]
    spikes = torch.tensor(eigenvalues, dtype=torch.float64) - 1
    inner = torch.eye(num_parameters, dtype=torch.float64) + (basis * spikes) @ basis.mT
    covariance: Tensor = scale[:, None] * inner * scale
    return covariance


def draws(covariance: Tensor, n: int, seed: int = 4) -> tuple[Tensor, Tensor]:
    """Exact draws of N(3, covariance), and the gradients of minus its log density."""
    root = torch.linalg.cholesky(covariance)
    deviations = normal(n, len(covariance), seed=seed) @ root.mT
    return deviations + 3, torch.cholesky_solve(deviations.mT, root).mT


@BOTH
@pytest.mark.parametrize("make", [some_low_rank, lambda dtype: Mass(some_low_rank(dtype).scale)])
def test_velocity_and_force_are_l_and_its_transpose(
    make: Callable[[torch.dtype], Mass], dtype: torch.dtype
) -> None:
    m = make(dtype)
    p = normal(5, P, seed=5, dtype=dtype)
    assert_close(m.velocity(p), p @ factor(m).mT)
    assert_close(m.force(p), p @ factor(m))
    for row, velocity, force in zip(p, m.velocity(p), m.force(p), strict=True):
        assert_close(m.velocity(row), velocity)
        assert_close(m.force(row), force)


def test_inverse_mass_is_its_formula_and_positive_definite() -> None:
    m = some_low_rank()
    basis, stretch = directions(m)
    inverse_mass = m.velocity(m.force(torch.eye(P, dtype=torch.float64)))
    inner = torch.eye(P, dtype=torch.float64) + (basis * (stretch**2 - 1)) @ basis.mT
    assert_close(inverse_mass, m.scale[:, None] * inner * m.scale)
    assert float(torch.linalg.eigvalsh(inverse_mass)[0]) > 0


def test_padding_changes_nothing() -> None:
    m, p = Mass(some_low_rank().scale), normal(5, P)
    scale, *rest = padded = m.padded(R)
    assert_close(scale, m.scale, rtol=0, atol=0)
    assert_close(rest, [torch.zeros(P, R, dtype=p.dtype), torch.ones(R, dtype=p.dtype)])
    assert_close(padded.velocity(p), m.velocity(p), rtol=0, atol=0)
    assert_close(padded.force(p), m.force(p), rtol=0, atol=0)


def test_products_are_captured_as_one_graph() -> None:
    def products(scale: Tensor, basis: Tensor, stretch: Tensor, p: Tensor) -> Tensor:
        m = Mass(scale, basis, stretch)
        return m.velocity(m.force(p))

    other = some_low_rank()._replace(stretch=torch.tensor([5.0, 2.0, 1.0], dtype=torch.float64))
    p = normal(5, P)
    graph = make_fx(products)(*some_low_rank(), p)
    assert_close(graph(*other, p), p @ factor(other) @ factor(other).mT)


def test_start_from_gradients() -> None:
    """Gradients 3 and 4 have the root mean square sqrt(12.5)."""
    grad = torch.tensor(
        [[3.0, 0.0, 1.0, 1e30, -4.0], [-4.0, 0.0, torch.nan, 1e30, 3.0]], dtype=torch.float64
    )
    m = from_gradients(grad)
    expected = torch.tensor([12.5**-0.25, 1.0, 1.0, 1e-5, 12.5**-0.25], dtype=torch.float64)
    assert_close(m.scale, expected)
    assert m.basis is None


def test_diagonal_of_independent_gaussians_is_exact_from_any_draws() -> None:
    """The gradient is z / sd^2, so Var z / Var grad = sd^4 whatever the draws are."""
    sd = torch.tensor([0.3, 1.0, 2.5, 1e-7, 1e7], dtype=torch.float64)
    z = normal(3, 5)
    m = diagonal(z, z / sd**2, standard(5), one_chain(z))
    assert_close(m.scale, sd.clamp(1e-5, 1e5), rtol=1e-10, atol=0)


@BOTH
def test_what_never_moved_keeps_its_scale(dtype: torch.dtype) -> None:
    """Also where the mean of equal numbers is not that number in floating point."""
    z = normal(6, 4, dtype=dtype)
    grad = 4 * z
    z[:, 1], grad[:, 1] = 0.1, 0.7  # stood still
    grad[:, 2] = 0.3  # flat
    grad[3, 3] = torch.inf
    z[3:, 1] = 0.9  # stood still elsewhere in the other chain
    chains = torch.tensor([0, 0, 0, 1, 1, 1])
    previous = Mass(torch.tensor([9.0, 8.0, 7.0, 6.0], dtype=dtype))
    expected = torch.tensor([0.25**0.5, 8.0, 7.0, 6.0], dtype=dtype)
    assert_close(diagonal(z, grad, previous, chains).scale, expected)
    m = low_rank(z, grad, previous, chains, rank=2)
    assert_close(m.scale, expected)
    assert_close(directions(m)[0][1:], torch.zeros(3, 2, dtype=dtype), rtol=0, atol=0)


def two_modes() -> tuple[Tensor, Tensor, Tensor]:
    """Chains at -50 and 50 in N(mode, sd^2), rows interleaved and of unequal numbers."""
    sd = torch.tensor([0.5, 2.0], dtype=torch.float64)
    deviations = normal(300, 2) * sd
    chains = (torch.arange(300) % 3 == 0).long()
    modes = torch.tensor([[-50.0, 50.0], [50.0, -50.0]], dtype=torch.float64)
    return modes[chains] + deviations, deviations / sd**2, chains


def test_diagonal_is_the_width_of_a_mode_not_the_distance_between_modes() -> None:
    z, grad, chains = two_modes()
    within = diagonal(z, grad, standard(2), chains).scale
    assert_close(within, torch.tensor([0.5, 2.0], dtype=torch.float64), rtol=1e-10, atol=0)
    total = diagonal(z, grad, standard(2), one_chain(z)).scale
    # Var z is about (2 / 9) 100^2, Var grad 1 / sd^2
    expected = ((2 / 9) ** 0.5 * 100 * torch.tensor([0.5, 2.0], dtype=torch.float64)).sqrt()
    assert_close(total, expected, rtol=0.05, atol=0)


def test_pooled_variances_are_those_within_chains() -> None:
    """By ``torch.var`` a chain at a time, where gradients are no function of the draws."""
    z, grad = normal(60, P), normal(60, P, seed=1).exp()
    chains = torch.tensor([7, 2, 2, 5, 2, 5]).repeat(10)
    m = diagonal(z + 10 * chains[:, None], grad - 3 * chains[:, None], standard(P), chains)
    spread = [
        torch.stack(
            [rows[chains == c].var(0, correction=0) * n for c, n in ((7, 10), (2, 30), (5, 20))]
        )
        for rows in (z, grad)
    ]
    assert_close(m.scale, (spread[0].sum(0) / spread[1].sum(0)) ** 0.25)


SPIKES = [1_000.0, 100.0, 10.0, 1e-1, 1e-2, 1e-3]


@pytest.mark.parametrize(
    ("num_parameters", "n", "rank", "bound"),
    # with room for all directions the cutoff leaves eigenvalues between 1/2 and 2
    [(30, 200, 30, 4.0), (200, 1_000, 16, 15.0), (400, 100, 16, 50.0)],
)
@pytest.mark.parametrize("num_chains", [1, 8])
def test_low_rank_whitens_a_correlated_gaussian(
    num_parameters: int, n: int, rank: int, bound: float, num_chains: int
) -> None:
    """Also from fewer draws than parameters, from more than are used, from modes far apart."""
    covariance = spiked(num_parameters, SPIKES)
    z, grad = draws(covariance, n)
    chains = torch.arange(n) % num_chains
    z = z + 100 * normal(num_chains, num_parameters, seed=6)[chains]
    arguments = (z, grad, standard(num_parameters), chains)
    before = condition_number(diagonal(*arguments), covariance)
    m = low_rank(*arguments, rank=rank)
    assert before > 1e4
    assert condition_number(m, covariance) < bound
    assert float(torch.linalg.eigvalsh(factor(m) @ factor(m).mT)[0]) > 0


def test_few_draws_already_help() -> None:
    """Twenty: with as many directions as degrees of freedom covariances would be near singular."""
    covariance = spiked(50, SPIKES)
    z, grad = draws(covariance, 20)
    arguments = (z, grad, standard(50), one_chain(z))
    before = condition_number(diagonal(*arguments), covariance)
    assert condition_number(low_rank(*arguments, rank=16), covariance) < before / 1_000


def test_the_first_matrix_whitens_what_draws_are_known_of() -> None:
    """Draws of an approximation before the run; without them only gradients at the starts tell."""
    covariance = spiked(40, SPIKES)
    z, grad = draws(covariance, 200)
    m = first_mass(grad[:4], "low_rank", known=(z, grad))
    assert directions(m)[0].shape == (40, RANK)
    assert condition_number(m, covariance) < 30
    assert condition_number(first_mass(grad[:4], "low_rank"), covariance) > 1e4
    known = first_mass(grad[:4], "diagonal", known=(z, grad))
    assert_close(known.scale, m.scale)
    assert condition_number(known, covariance) > 1e4


def test_low_rank_is_exact_where_its_directions_span_everything() -> None:
    """A C_x A = C_g for gradients A x, so the geometric mean is the covariance itself."""
    covariance = spiked(6, [50.0, 0.1])
    z, grad = draws(covariance, 40)
    m = low_rank(z, grad, standard(6), one_chain(z), rank=6, cutoff=1 + 1e-9, gamma=0.0)
    assert_close(factor(m) @ factor(m).mT, covariance, rtol=1e-8, atol=1e-12)


def test_directions_are_eigenvectors_of_the_scaled_covariance() -> None:
    """With 2 rank = P the geometric mean is exact, and the eigenvectors farthest from 1 stay."""
    covariance = spiked(6, [50.0, 20.0, 0.1])
    z, grad = draws(covariance, 40)
    m = low_rank(z, grad, standard(6), one_chain(z), rank=3, cutoff=1 + 1e-9, gamma=0.0)
    values, vectors = torch.linalg.eigh(covariance / m.scale / m.scale[:, None])
    order = values.log().abs().argsort(descending=True)[:3]
    basis, stretch = directions(m)
    assert_close(stretch, values[order].sqrt())
    overlap = (basis.mT @ vectors[:, order]).abs()
    assert_close(overlap, torch.eye(3, dtype=torch.float64))


def test_directions_are_orthonormal_and_padded() -> None:
    """Two pairs of spikes, each of which the diagonal cannot see."""
    rotation = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) / 2**0.5
    pairs = [torch.tensor(e, dtype=torch.float64) for e in ([9.0, 1 / 9.0], [1.5, 1 / 1.5])]
    blocks = [(rotation * pair) @ rotation.mT for pair in pairs]
    covariance = torch.block_diag(*blocks)  # its diagonal estimate is 1
    z, grad = draws(covariance, 2_000)
    basis, stretch = directions(low_rank(z, grad, standard(4), one_chain(z), rank=5))
    ones = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert_close(basis.mT @ basis, ones.diag())  # 1.5 is within the cutoff
    assert_close(stretch[2:], torch.ones(3, dtype=torch.float64), rtol=0, atol=0)
    expected = torch.tensor([1 / 3, 3.0], dtype=torch.float64)
    assert_close(stretch[:2].sort().values, expected, rtol=0.05, atol=0)


@BOTH
def test_low_rank_in_the_precision_of_the_draws(dtype: torch.dtype) -> None:
    covariance = spiked(40, SPIKES)
    z, grad = (t.to(dtype) for t in draws(covariance, 200))
    arguments = (z, grad, standard(40, dtype), one_chain(z))
    m, again = (low_rank(*arguments, rank=8) for _ in range(2))
    for part, same in zip(m, again, strict=True):
        assert part is not None
        assert part.dtype is dtype
        assert_close(part, same, rtol=0, atol=0)
    in_double = Mass(*(part.double() for part in m if part is not None))
    assert condition_number(in_double, covariance) < 30


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_few_rows_leave_a_finite_matrix(n: int) -> None:
    """From n = 3 in one chain there are two degrees of freedom, enough for one direction."""
    covariance = spiked(20, SPIKES)
    z, grad = draws(covariance, n)
    previous = Mass(torch.full((20,), 5.0, dtype=torch.float64))
    m = low_rank(z, grad, previous, one_chain(z), rank=3)
    assert directions(m)[0].shape == (20, 3)
    assert torch.linalg.cond(factor(m)).isfinite()
    if n == 1:
        assert_close(factor(m), 5 * torch.eye(20, dtype=torch.float64))


def test_thinned_rows_come_from_all_chains_alike() -> None:
    chains = torch.arange(16).repeat(100)
    rows = mass._thinned(chains)
    assert len(rows.unique()) == mass.MAX_ROWS == len(rows)
    assert chains[rows].bincount().tolist() == [32] * 16
    in_chain = rows[chains[rows] == 5].sort().values // 16
    assert {b - a for a, b in itertools.pairwise(in_chain.tolist())} == {3, 4}
    assert sorted(mass._thinned(torch.tensor([1, 0, 1])).tolist()) == [0, 1, 2]


def test_chains_of_densities_of_their_own_get_a_scale_each() -> None:
    sds = torch.tensor([[0.1, 1.0, 5.0], [2.0, 30.0, 0.5]], dtype=torch.float64)  # [C, P]
    chains = torch.arange(2).repeat(40)
    generator = torch.Generator().manual_seed(0)
    z = sds[chains] * torch.randn(80, 3, dtype=torch.float64, generator=generator)
    z[chains == 1, 2] = 7.0  # stands still
    grad = z / sds[chains].square()
    start = mass.from_gradients(grad[:2], each=True)
    assert_close(start.scale, grad[:2].abs().rsqrt(), rtol=1e-12, atol=0)
    found = mass.diagonal(z, grad, start, chains)
    assert found.basis is None
    assert_close(found.scale[0], sds[0], rtol=1e-10, atol=0)
    assert_close(found.scale[1, :2], sds[1, :2], rtol=1e-10, atol=0)
    assert found.scale[1, 2] == start.scale[1, 2]
    p = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    assert_close(found.velocity(p)[1], found.scale[1] * p[1])
