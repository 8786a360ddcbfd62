"""Draws in blocks of any size, cut into chunks of one size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pyro_bnn import guides, models
from pyro_bnn.guides import guide as guide_module
from pyro_bnn.predictive import draws as draws_module
from pyro_bnn.predictive.draws import Draws, draws_of_atoms, stored_draws


def in_blocks(sizes: list[int]) -> tuple[Draws, Tensor]:
    z = torch.arange(2.0 * sum(sizes)).reshape(-1, 2)

    def blocks() -> Iterator[Tensor]:
        yield from z.split(sizes)

    return Draws(blocks, len(z)), z


@pytest.mark.parametrize("size", [1, 3, 4, 7, 20])
def test_chunks_are_all_draws_in_order(size: int) -> None:
    draws, z = in_blocks([4, 1, 6, 2])
    for _ in range(2):  # each time from the start
        chunks = list(draws.chunks(size))
        assert [len(chunk) for chunk in chunks[:-1]] == [size] * (13 // size - (13 % size == 0))
        assert torch.equal(torch.cat(chunks), z)
    assert len(draws) == 13
    assert torch.equal(draws.together(), z.unsqueeze(0))


def test_stored_draws_keep_chains_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws_module, "STORED_AT_ONCE", 2)
    z = torch.arange(24.0).reshape(2, 6, 2)
    chosen = torch.tensor([0, 3, 4])
    draws = stored_draws(z, chosen)
    assert torch.equal(draws.together(), z[:, chosen])
    assert torch.equal(torch.cat(list(draws.chunks(4))), z[:, chosen].flatten(0, 1))


def test_draws_of_atoms_go_round_them_each_time_in_another_order() -> None:
    points = torch.tensor([[0.0, 5.0], [1.0, 6.0], [2.0, 7.0]])
    draws = draws_of_atoms(points, 30, seed=1)
    z = draws.together()[0]
    assert torch.equal(z[:, 1], z[:, 0] + 5)
    rounds = z[:, 0].reshape(10, 3)
    assert rounds.sort(-1).values.tolist() == [[0.0, 1.0, 2.0]] * 10
    assert len(rounds.unique(dim=0)) > 1
    for count in (1, 2, 10, 29):
        assert torch.equal(draws_of_atoms(points, count, seed=1).together()[0], z[:count])
    first = {float(draws_of_atoms(points, 1, seed=seed).together()[0, 0, 0]) for seed in range(20)}
    assert first == {0.0, 1.0, 2.0}  # a single draw is of any point
    assert torch.equal(torch.cat(list(draws.chunks(7))), z)


@pytest.mark.parametrize("name", ["AutoNormal", "AutoMultivariateNormal"])
def test_draws_of_a_guide_are_the_same_bits_however_many(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.zeros(1, 3)
    guide = getattr(guides, name)(models.MLP(3, hidden=(4,)))
    guide.setup(x)
    monkeypatch.setattr(guide_module, "BLOCK_DRAWS", 8)
    z, noise = guide.sample(30, seed=4), guide.seeded_noise(30, seed=4)
    assert len(z.unique(dim=0)) == 30
    assert torch.equal(guide.transport(noise[:8]), z[:8])
    for count in (1, 8, 11):
        assert torch.equal(guide.sample(count, seed=4), z[:count])
        assert torch.equal(guide.seeded_noise(count, seed=4), noise[:count])
    assert not torch.equal(guide.sample(30, seed=5), z)


def test_blocks_of_large_guides_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = guides.AutoDelta(models.MLP(3, hidden=(4,)))  # 22 numbers a draw and no noise
    guide.setup(torch.zeros(1, 3))
    monkeypatch.setattr(guide_module, "BLOCK_NUMBERS", 70)
    assert [len(block) for block in guide.in_blocks(guide.transport, 8, 0)] == [3, 3, 2]
