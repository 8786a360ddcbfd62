"""Clusters of chains by their functions: who is with whom, known by how the draws were made."""

from __future__ import annotations

import numpy as np
import pytest

from pyro_bnn.diagnostics.chain_clusters import SEPARATION, ChainClusters, chain_clusters
from pyro_bnn.errors import ShapeError


def draws(*means: float, num_draws: int = 400, num_points: int = 30, seed: int = 0) -> np.ndarray:
    """Independent normals of sd 1 along one function of norm 1, by chain; noise of 0.1 beside."""
    rng = np.random.default_rng(seed)
    along = rng.normal(size=(len(means), num_draws, 1)) + np.array(means)[:, None, None]
    shape = np.sin(np.arange(1.0, num_points + 1))
    noise = 0.1 * rng.normal(size=(len(means), num_draws, num_points))
    return np.asarray((along * shape + noise)[..., None])


@pytest.mark.parametrize(
    ("means", "labels", "sizes"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0), (4,)),
        ((0, 9, 0, -9), (0, 1, 0, 2), (2, 1, 1)),
        ((9, 0, 0, 0), (1, 0, 0, 0), (3, 1)),
        ((0, 9), (0, 1), (1, 1)),
        ((0, 1, 0, 1), (0, 0, 0, 0), (4,)),  # R-hat sees this, and no two modes are there
        ((0, 1.5, 3.0), (0, 0, 0), (3,)),  # joined by the one between them
        ((0, 3.0), (0, 1), (1, 1)),
    ],
)
def test_chains_are_together_where_their_draws_overlap(
    means: tuple[float, ...], labels: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    found = chain_clusters(draws(*means))
    assert found.labels == labels
    assert found.sizes == sizes
    assert len(found) == len(sizes)


@pytest.mark.parametrize("gap", [1.0, 3.0])
def test_the_distance_is_in_sds_within_chains(gap: float) -> None:
    found = chain_clusters(draws(0, gap, num_draws=20_000))
    assert found.separation[0, 1] == found.separation[1, 0] == pytest.approx(gap, abs=0.05)
    assert found.separation[0, 0] == 0
    assert SEPARATION == 2.0


def test_two_sds_is_where_an_equal_mixture_gets_two_modes() -> None:
    x = np.linspace(-5, 5, 4_001)

    def modes(gap: float) -> int:
        density = np.exp(-0.5 * (x - gap / 2) ** 2) + np.exp(-0.5 * (x + gap / 2) ** 2)
        return int(((density[1:-1] > density[:-2]) & (density[1:-1] > density[2:])).sum())

    assert [modes(SEPARATION - 0.1), modes(SEPARATION + 0.1)] == [1, 2]


def test_noise_at_many_points_parts_no_chains() -> None:
    """Of 30 draws at 500 points the means differ by 6 sds along the line between them."""
    for seed in range(10):
        noise = np.random.default_rng(seed).normal(size=(3, 30, 500, 1))
        gap = noise[0].mean(0) - noise[1].mean(0)
        along = (noise[:2, :, :, 0] * gap[:, 0]).sum(-1)
        assert abs(along[0].mean() - along[1].mean()) / along.std(1).mean() > 5
        assert len(chain_clusters(noise)) == 1


def test_chains_that_stand_still_are_apart_unless_they_are_equal() -> None:
    still = np.ones((3, 20, 4, 1)) * np.array([1.0, 1.0, 2.0])[:, None, None, None]
    found = chain_clusters(still)
    assert found.labels == (0, 0, 1)
    assert found.separation[0, 2] == np.inf


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(ShapeError, match="at least 8 draws in each chain, got 7"):
        chain_clusters(np.zeros((2, 7, 3, 1)))


def test_a_cluster_has_its_number_by_size_then_by_order() -> None:
    found = chain_clusters(draws(9, 0, -9, 0, -9, 0))
    assert found.labels == (2, 0, 1, 0, 1, 0)
    assert ChainClusters((0, 1, 0), np.zeros((3, 3))).sizes == (2, 1)
