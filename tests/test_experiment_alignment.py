"""Copies of one function, brought back to one: what alignment undoes, leaves alone, and makes."""

from __future__ import annotations

import importlib.util
import itertools
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pyro
import pytest
import torch

import pyro_bnn as bnn
from pyro_bnn.diagnostics import mean_field_kl

FILE = Path(__file__).parents[1] / "tutorials" / "experiments" / "alignment.py"
SIZES = {"one-layer": [2, 6, 1], "two-layers": [2, 5, 5, 1], "three-layers": [2, 4, 3, 5, 1]}
# no layer has more units than weights into each: those fix the rotation
LINEAR_SIZES = {"one-layer": [2, 3, 1], "two-layers": [2, 3, 4, 1], "three-layers": [2, 3, 2, 3, 1]}
by_depth = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("alignment", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


alignment = _load()


def around_one(sizes: list[int], num_draws: int, seed: int = 0) -> np.ndarray:
    """Draws around one network whose units are further apart than the draws are spread."""
    rng = np.random.default_rng(seed)
    sds = alignment.prior_sds(sizes)
    centre = 3 * rng.standard_normal(len(sds))
    return np.asarray(sds * (centre + 0.1 * rng.standard_normal((num_draws, len(sds)))))


def layers_of(z: np.ndarray, sizes: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and biases of one network, written apart from the code under test."""
    found, start = [], 0
    for i, o in itertools.pairwise(sizes):
        weight, bias = z[start : start + i * o].reshape(o, i), z[start + i * o :][:o]
        found.append((weight, bias))
        start += i * o + o
    return found


def turned(z: np.ndarray, sizes: list[int], turns: list[np.ndarray]) -> np.ndarray:
    """The network with the units of each hidden layer turned, and turned back after it."""
    before = [np.eye(sizes[0]), *turns]
    after = [*turns, np.eye(sizes[-1])]
    parts = []
    for (weight, bias), b, a in zip(layers_of(z, sizes), before, after, strict=True):
        parts += [(a @ weight @ b.T).ravel(), a @ bias]
    return np.concatenate(parts)


def permuted(chain: np.ndarray, sizes: list[int], seed: int = 1) -> np.ndarray:
    """Each draw but the last with the units of each hidden layer in an order of its own."""
    rng = np.random.default_rng(seed)
    rows = [
        turned(z, sizes, [np.eye(size)[rng.permutation(size)] for size in sizes[1:-1]])
        for z in chain[:-1]
    ]
    return np.stack([*rows, chain[-1]])


def network(sizes: list[int], activation: str = "relu") -> bnn.models.MLP:
    likelihood = bnn.likelihoods.Normal(1.0)  # no parameter of its own
    hidden = tuple(sizes[1:-1])
    return bnn.models.MLP(sizes[0], hidden=hidden, activation=activation, likelihood=likelihood)


def output(z: np.ndarray, sizes: list[int], activation: str) -> torch.Tensor:
    """The function of each draw ``[S, N]``, by the package's own network."""
    model = network(sizes, activation).double()
    x = torch.randn(7, sizes[0], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    program = bnn.Program(model, x, torch.zeros(7, dtype=torch.float64))
    return program.function(torch.as_tensor(z), x)[..., 0]


@by_depth
def test_permuted_draws_come_back(sizes: list[int]) -> None:
    chain = around_one(sizes, 40)
    mixed = permuted(chain, sizes)
    assert np.abs(mixed[:-1] - chain[:-1]).max(1).min() > 0.1  # every one of them moved
    np.testing.assert_allclose(alignment.relabelled(mixed, sizes), chain, rtol=1e-12)


@by_depth
def test_draws_in_one_order_are_left_alone(sizes: list[int]) -> None:
    chain = around_one(sizes, 40)
    np.testing.assert_allclose(alignment.relabelled(chain, sizes), chain, rtol=1e-12)


@by_depth
def test_relabelling_changes_no_function_of_draws_from_the_prior(sizes: list[int]) -> None:
    rng = np.random.default_rng(2)
    sds = alignment.prior_sds(sizes)
    chain = sds * rng.standard_normal((50, len(sds)))
    ordered = alignment.relabelled(chain, sizes)
    assert np.abs(ordered - chain).max() > 0.1
    torch.testing.assert_close(
        output(ordered, sizes, "relu"), output(chain, sizes, "relu"), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("sizes", LINEAR_SIZES.values(), ids=LINEAR_SIZES)
def test_rotated_copies_of_a_linear_network_come_back(sizes: list[int]) -> None:
    z = around_one(sizes, 1)[0]
    rng = np.random.default_rng(3)
    copies = [
        turned(z, sizes, [np.linalg.qr(rng.standard_normal((n, n)))[0] for n in sizes[1:-1]])
        for _ in range(20)
    ]
    chain = np.stack([*copies, z])
    torch.testing.assert_close(
        output(chain, sizes, "identity"),
        output(np.broadcast_to(z, chain.shape).copy(), sizes, "identity"),
        rtol=1e-9,
        atol=1e-9,
    )
    came_back = alignment.rotated(chain, sizes)
    torch.testing.assert_close(
        output(came_back, sizes, "identity"),
        output(chain, sizes, "identity"),
        rtol=1e-9,
        atol=1e-9,
    )
    np.testing.assert_allclose(came_back, np.broadcast_to(z, chain.shape), atol=1e-8)


def test_the_prior_has_the_sds_of_the_package() -> None:
    sizes = SIZES["three-layers"]
    trace = pyro.poutine.trace(network(sizes)).get_trace(torch.zeros(3, 2))
    priors = [trace.nodes[name]["fn"] for name in trace.stochastic_nodes if name != "y"]
    expected = torch.cat([fn.stddev.flatten() for fn in priors if hasattr(fn, "stddev")])
    np.testing.assert_allclose(alignment.prior_sds(sizes), expected.numpy(), rtol=1e-6)


def test_alignment_correlates_independent_draws_by_what_folding_two_units_does() -> None:
    """Two units that the typical draw tells apart by one weight: the closed form.

    Swapping folds the difference of that weight at 0, whose variance falls from 1 to 1 - 2/pi along
    w = (1, -1)/sqrt(2), so that KL = log(1 - 1/pi) - 1/2 log(1 - 2/pi) = 0.123 nats, from none.
    """
    sizes = [2, 2, 1]
    sds = alignment.prior_sds(sizes)
    rng = np.random.default_rng(4)
    chain = rng.standard_normal((20_000, len(sds)))
    chain[-1] = 0.0
    chain[-1, 0], chain[-1, 2] = 1.0, -1.0  # the first input of both units
    before = mean_field_kl((chain * sds)[None])
    assert abs(before.value[0]) < 4 * before.standard_error[0]
    after = mean_field_kl(alignment.relabelled(chain * sds, sizes)[None])
    expected = math.log(1 - 1 / math.pi) - 0.5 * math.log(1 - 2 / math.pi)
    assert after.value[0] > 10 * after.standard_error[0]
    assert abs(after.value[0] - expected) < 4 * after.standard_error[0]


def test_units_far_apart_have_no_floor() -> None:
    """A Gaussian without correlations has none after alignment either: nothing is swapped."""
    sizes = SIZES["two-layers"]
    kl = mean_field_kl(alignment.relabelled(around_one(sizes, 4_000), sizes)[None])
    assert abs(kl.value[0]) < 4 * kl.standard_error[0]
