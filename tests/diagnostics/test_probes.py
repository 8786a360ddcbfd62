"""Probes lie off the data: in gaps and beyond the range, of few and of many inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from pyro_bnn.data import from_arrays
from pyro_bnn.data.dataset import whole_columns
from pyro_bnn.diagnostics import probes as module
from pyro_bnn.diagnostics.probes import Probes, probe_rows
from pyro_bnn.errors import ShapeError
from pyro_bnn.report.compare import find_probes


def of_kind(probes: Probes, kind: str) -> np.ndarray:
    ends = np.cumsum(list(probes.counts.values()))
    return np.split(probes.x, ends[:-1])[list(probes.counts).index(kind)]


def two_clusters(num_inputs: int = 1) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = 0.3 * rng.standard_normal((60, num_inputs))
    x[:, 0] += np.where(np.arange(60) % 2, 4.0, -4.0)
    return x


def test_probes_of_one_input_fill_the_gap_and_go_beyond_both_ends() -> None:
    x = two_clusters()
    probes = probe_rows(x)
    between = of_kind(probes, "between")[:, 0]
    edges = np.sort(np.concatenate([x[(x[:, 0] < 0)].max(0), x[(x[:, 0] > 0)].min(0), between]))
    assert len(between) == 16
    assert np.diff(edges).max() < np.ptp(edges) / 3  # no part of the gap is left out
    along = of_kind(probes, "along")[:, 0]
    low, high = x.min(), x.max()
    width = high - low
    # 24 points over two widths: of the twelve within the rows' range those in the gap are kept
    grid = np.linspace(low - width / 2, high + width / 2, 24)
    outside = grid[(grid < low) | (grid > high)]
    assert_allclose(np.sort(along[(along < low) | (along > high)]), outside, atol=1e-12)
    beyond = of_kind(probes, "beyond")
    assert_allclose([beyond.min(), beyond.max()], 2 * np.array([low, high]) - x.mean())
    assert 30 <= len(probes.x) <= 48


@pytest.mark.parametrize("num_inputs", [2, 10])
def test_probes_of_several_inputs_lie_between_clusters_and_along_components(
    num_inputs: int,
) -> None:
    x = two_clusters(num_inputs)
    probes = probe_rows(x)
    between = of_kind(probes, "between")
    assert len(between) == 16
    assert np.abs(between[:8, 0]).max() < 3.5  # the furthest come first
    along = of_kind(probes, "along") - x.mean(0)
    _, _, components = np.linalg.svd(x - x.mean(0), full_matrices=False)
    share = np.abs(along @ components[:3].T).max(1) / np.linalg.norm(along, axis=1)
    assert_allclose(share, 1)  # each on one of the first three
    assert len(of_kind(probes, "beyond")) == 8
    for row in of_kind(probes, "beyond"):
        half = x.mean(0) + (row - x.mean(0)) / 2
        assert np.abs(x - half).max(1).min() < 1e-12  # a training row


def test_what_lies_among_the_rows_is_no_probe() -> None:
    x = np.random.default_rng(1).standard_normal((300, 10))
    probes = probe_rows(x)
    assert probes.counts["between"] == 0  # one cloud has no gap
    assert len(probes.x) > 10
    centred = x - x.mean(0)
    nearest = np.sort(np.linalg.norm(x[:, None] - x, axis=-1), axis=1)[:, 1]
    limit = np.sort(nearest)[int(np.ceil(0.95 * 300)) - 1]
    _, _, components = np.linalg.svd(centred, full_matrices=False)
    places, ends = (probes.x - x.mean(0)) @ components[:3].T, centred @ components[:3].T
    is_outside = ((places < ends.min(0)) | (places > ends.max(0))).any(1)
    is_far = np.linalg.norm(probes.x[:, None] - x, axis=-1).min(1) > limit
    assert (is_outside | is_far).all()


def test_probes_are_the_same_each_time_and_of_large_files_few() -> None:
    x = np.random.default_rng(2).standard_normal((3_000, 4))
    first = probe_rows(x)
    assert_array_equal(probe_rows(x.copy()).x, first.x)
    assert len(first.x) <= 48


def test_probes_leave_whole_numbers_at_values_that_occur() -> None:
    x = two_clusters(2)
    x[:, 1] = np.random.default_rng(3).permutation(np.arange(60) % 6)
    probes = probe_rows(x, np.array([False, True]))
    assert set(probes.x[:, 1]) <= set(range(6))
    assert len(probes.x) > 20
    assert len(np.unique(probe_rows(x).x[:, 1])) > 6  # elsewhere without the mask
    assert np.abs(probes.x[:, 0]).max() > np.abs(x[:, 0]).max()  # still beyond the other column
    nearest = np.sort(np.linalg.norm(x[:, None] - x, axis=-1), axis=1)[:, 1]
    limit = np.sort(nearest)[int(np.ceil(0.95 * 60)) - 1]
    assert np.linalg.norm(probes.x[:, None] - x, axis=-1).min(1).min() > limit


def test_indices_of_groups_are_looked_up_at_all_probes() -> None:
    rng = np.random.default_rng(4)
    groups = rng.permutation(np.arange(90) % 6)
    x = np.stack([rng.normal(size=90) * 7 + 1e3, groups], 1)
    split = from_arrays(x, rng.normal(size=90))
    assert_array_equal(whole_columns(split.train), [False, True])
    probes, _ = find_probes(split)
    assert probes is not None
    assert split.train.inputs is not None
    raw = split.train.inputs.inverse(torch.tensor(probes.x))[:, 1]
    assert set(raw.round().int().tolist()) <= set(range(6))
    assert_allclose(raw, raw.round(), atol=1e-5)


def test_the_words_say_how_many_of_each_kind() -> None:
    found = Probes(x=np.zeros((5, 1)), counts={"between": 3, "along": 0, "beyond": 2})
    assert found.description.startswith(
        "5 probes off the data: 3 points between two training rows, in the largest gaps; 2 "
        "outlying training rows at twice"
    )
    assert set(found.counts) == set(module.KINDS)


@pytest.mark.parametrize("x", [np.zeros((10, 2)), np.ones((1, 2))])
def test_rows_that_are_all_one_have_no_probes(x: np.ndarray) -> None:
    assert len(probe_rows(x).x) == 0


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"x must have shape \[N, I\]"):
        probe_rows(np.zeros((3, 2, 2)))
