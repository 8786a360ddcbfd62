"""Distance of new rows to the training rows: by definition, exactly conformal, and on data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from scipy.stats import binom

import pyro_bnn as bnn
from pyro_bnn.data import Standardiser
from pyro_bnn.diagnostics.novelty import LEVEL, Novelty
from pyro_bnn.errors import ShapeError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def p_values(train: np.ndarray, new: np.ndarray, **options: Any) -> np.ndarray:
    novelty = Novelty(train, **options)
    return novelty.p_value(novelty.distance(new))


# --- by definition -------------------------------------------------------------------------------


def test_distances_and_p_values_by_definition() -> None:
    train, new = rng().normal(size=(50, 4)), rng(1).normal(scale=2, size=(20, 4))
    novelty = Novelty(train)
    distance = cdist(new, train).min(1)
    own = cdist(train, train)
    np.fill_diagonal(own, np.inf)
    own = own.min(1)
    assert_allclose(novelty.distance(new), distance, rtol=1e-12)
    assert_allclose(novelty.training_distance, np.sort(own), rtol=1e-12)
    expected = [(1 + (own >= d).sum()) / 51 for d in distance]
    assert_allclose(novelty.p_value(distance), expected, rtol=1e-12)
    assert 1 / 51 <= min(expected) < 0.1 < max(expected)


@pytest.mark.parametrize("loc", [0.0, 100.0])
@pytest.mark.parametrize("kind", ["near", "apart", "heavy tails", "grid", "huge"])
def test_distances_of_many_inputs_are_those_of_double_precision(kind: str, loc: float) -> None:
    """Also to training rows which single precision cannot tell apart."""
    train, new = rng().standard_normal((300, 12)), rng(1).standard_normal((100, 12))
    if kind == "near":
        train = np.concatenate([train, train + 1e-7 * rng(2).standard_normal(train.shape)])
    if kind == "heavy tails":
        train, new = rng().standard_t(1, train.shape), rng(1).standard_t(1, new.shape)
    if kind == "grid":
        train, new = train.round(), new.round() + 0.5
    if kind == "huge":
        new[::7] *= 1e60
    train, new = train + loc, new + loc
    assert_allclose(Novelty(train).distance(new), cdist(new, train).min(1), rtol=1e-8)


def test_the_rows_need_not_be_measured_anew_beside_the_new_one() -> None:
    """p of the bag with the new row in it, each row held against all others."""
    for seed in range(20):
        bag = rng(seed).normal(size=(30, 2)).round(seed % 3)  # with copies too
        among = cdist(bag, bag)
        np.fill_diagonal(among, np.inf)
        nearest = among.min(1)
        expected = (nearest >= nearest[-1]).mean()
        assert_allclose(p_values(bag[:-1], bag[-1:]), [expected], rtol=1e-12)


def bags() -> list[tuple[np.ndarray, tuple[int, ...] | None]]:
    """Rows of one population: continuous, with copies, with categories, alone in an input."""
    town = np.eye(6)[rng().choice(6, 60, p=[0.5, 0.3, 0.1, 0.06, 0.02, 0.02])]
    number = rng(1).normal(size=(60, 1))
    return [
        (rng(2).standard_t(2, size=(60, 5)), None),
        (rng(3).normal(size=(60, 1)).round(1), None),
        (np.repeat(rng(4).normal(size=(20, 3)), 3, 0), None),
        (np.concatenate([number, town], 1), (1, 6)),
        (np.concatenate([number, np.eye(60)], 1), (1, 60)),
        (np.zeros((60, 2)), None),
        (np.concatenate([number, np.arange(60)[:, None] == 7], 1), None),
    ]


@pytest.mark.parametrize("number", range(7))
def test_no_more_rows_than_the_level_are_far_from_all_others(number: int) -> None:
    """Each row in turn is the new one: exactly the mean that the conformal bound is of."""
    bag, sizes = bags()[number]
    found = np.concatenate(
        [p_values(np.delete(bag, i, 0), bag[i : i + 1], sizes=sizes) for i in range(len(bag))]
    )
    for most in range(1, len(bag) + 1):
        assert (found <= most / len(bag) + 1e-12).sum() <= most
    if number == 0:  # the bound is attained but for ties of two that are nearest to one another
        above = np.sort(found) * 60 - np.arange(1, 61)
        assert_allclose(above, above.round(), atol=1e-9)
        assert set(above.round()) == {0.0, 1.0}


def test_few_rows_call_none_far() -> None:
    far = np.array([[1e9]])
    assert p_values(np.arange(18.0)[:, None], far)[0] == pytest.approx(1 / 19)
    assert p_values(np.arange(19.0)[:, None], far)[0] == pytest.approx(LEVEL)
    assert p_values(np.zeros((1, 1)), far)[0] == 1


def test_a_copy_is_at_0_and_like_the_training_rows() -> None:
    train = rng().normal(size=(30, 3)).astype(np.float32).astype(float)
    novelty = Novelty(train)
    assert_array_equal(novelty.distance(train), np.zeros(30))
    assert_array_equal(novelty.p_value(np.zeros(30)), np.ones(30))


def test_where_most_rows_have_a_copy_what_has_none_is_far() -> None:
    train = np.repeat(rng().normal(size=(30, 2)), 2, 0)
    assert p_values(train, train[:1] + 1e-3)[0] == pytest.approx(1 / 61)
    rounded = train[:3].astype(np.float32).astype(float)  # of other digits, yet copies
    assert (rounded != train[:3]).any()
    assert_array_equal(p_values(train, rounded), np.ones(3))
    assert_array_equal(p_values(1e4 + train, 1e4 + train[:3] + 1e-4), np.ones(3))
    assert_allclose(p_values(train, np.full((1, 2), 1e200)), 1 / 61)  # whose square is infinite


# --- columns -------------------------------------------------------------------------------------


def test_two_categories_count_as_a_column_of_zeros_and_ones() -> None:
    is_rome = rng().random(80) < 0.3
    number = 9 * is_rome + rng(1).normal(size=80)
    is_rome[60:] = ~is_rome[60:]  # new rows are nearest to rows of the other town
    truth = np.stack([number, is_rome], 1)
    text = np.stack([number, ~is_rome, is_rome], 1)
    truth, text = ((x - x.mean(0)) / x.std(0) for x in (truth, text))
    as_truth, as_text = Novelty(truth[:60]), Novelty(text[:60], sizes=(1, 2))
    assert_allclose(as_text.training_distance, as_truth.training_distance, rtol=1e-12)
    distance = as_truth.distance(truth[60:])
    assert_allclose(as_text.distance(text[60:]), distance, rtol=1e-12)
    assert distance.min() > 1


def test_categories_that_do_not_vary_do_not_count() -> None:
    text = np.stack([np.arange(20) % 2, 1 - np.arange(20) % 2], 1).astype(float)
    new = np.array([[0.5, 0.5]])
    expected = Novelty(text, sizes=(2,)).distance(new)
    assert_allclose(expected, np.sqrt(0.5 / 2))
    wider = np.pad(text, ((0, 0), (1, 2)))
    assert_allclose(Novelty(wider, sizes=(5,)).distance(np.pad(new, ((0, 0), (1, 2)))), expected)


def test_a_value_that_no_row_has_where_all_have_one_is_infinitely_far() -> None:
    train = np.stack([np.linspace(-1, 1, 40), np.full(40, 3.0)], 1)
    novelty = Novelty(train)
    new = np.array([[0.0, 3.0], [0.0, 3.0 + 1e-6], [0.0, 4.0]])
    assert_array_equal(np.isinf(novelty.distance(new)), [False, True, True])
    assert_allclose(novelty.p_value(novelty.distance(new))[1:], 1 / 41)


@pytest.mark.parametrize("value", [0.1, -0.1, 1e-3, 1234.1])
def test_a_value_in_single_precision_is_the_same_value(value: float) -> None:
    double = np.stack([np.linspace(-1, 1, 40), np.full(40, value)], 1)
    single = double.astype(np.float32).astype(float)
    assert (single[:, 1] != value).all()
    assert_array_equal(Novelty(double).distance(single), np.zeros(40))
    mixed = np.where(np.arange(40)[:, None] == 5, single, double)  # no row is alone for that
    assert np.isfinite(Novelty(mixed).training_distance).all()
    assert np.isinf(Novelty(mixed).distance(double + 1)).all()
    mixed[7, 1] += 1  # this one is
    assert_array_equal(np.isinf(Novelty(mixed).training_distance), np.arange(40) == 39)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_training_row_that_is_alone_in_an_input_is_infinitely_far_from_the_others(
    sign: float,
) -> None:
    train = np.stack([np.linspace(-1, 1, 40), sign * (np.arange(40) == 5)], 1)
    assert_array_equal(np.isinf(Novelty(train).training_distance), np.arange(40) == 39)
    train[6, 1] = sign  # now two rows have it
    assert np.isfinite(Novelty(train).training_distance).all()
    train[6, 1] = 2 * sign  # or the others differ among each other
    assert np.isfinite(Novelty(train).training_distance).all()


@pytest.mark.parametrize("sizes", [(1, 1), (3, 1), (3, 0), (4, -1)])
def test_sizes_are_those_of_the_inputs(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"sizes \[.*\] are not those of the 3 inputs of x"):
        Novelty(np.zeros((5, 3)), sizes)


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"x must have shape \[N, I\]"):
        Novelty(np.zeros(5))
    novelty = Novelty(np.zeros((5, 3)))
    with pytest.raises(ShapeError, match=r"x must have shape \[M, I\]"):
        novelty.distance(np.zeros(3))
    with pytest.raises(ShapeError, match="x has 2 inputs, the training rows 3"):
        novelty.distance(np.zeros((1, 2)))


# --- data ----------------------------------------------------------------------------------------


def two_clusters() -> tuple[torch.Tensor, torch.Tensor]:
    """A sine with noise of sd 0.2 at 20 inputs from -1.6 to -0.8 and 20 from 0.8 to 1.6."""
    generator = torch.Generator().manual_seed(1)
    x = 0.8 + 0.8 * torch.rand(40, 1, generator=generator)
    x[:20] *= -1
    return x, torch.sin(3 * x[:, 0]) + 0.2 * torch.randn(40, generator=generator)


def population(name: str) -> np.ndarray:
    """All inputs of a data set in the user's units."""
    if name == "two clusters":
        return np.concatenate([rng().uniform(low, low + 0.8, (200, 1)) for low in (-1.6, 0.8)])
    split = bnn.data.load(name)
    return torch.cat([split.train.raw()[0], split.test.raw()[0]]).double().numpy()


def standardised(train: np.ndarray, new: np.ndarray) -> list[np.ndarray]:
    units = Standardiser.fit(torch.as_tensor(train))
    return [units.transform(torch.as_tensor(x)).numpy() for x in (train, new)]


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("name", ["two clusters", "diabetes", "wine-cultivars", "moons"])
def test_rows_held_out_at_random_are_far_as_often_as_is_said(name: str) -> None:
    """A row and a hundred others drawn from the data set, again and again: binomial."""
    rows, draw = population(name), rng(1)
    given, count = 0, 1_000
    for _ in range(count):
        chosen = rows[draw.choice(len(rows), 101, replace=False)]
        given += int(p_values(*standardised(chosen[1:], chosen[:1]))[0] <= LEVEL)
    low, high = binom.interval(1 - 1e-6, count, 5 / 101)
    assert low <= given <= high


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_rows_of_which_a_mean_field_posterior_is_sure_are_far(activation: str) -> None:
    x, y = two_clusters()
    model = bnn.models.MLP(
        1,
        hidden=(20,),
        activation=activation,
        prior={"layers.0.*": bnn.priors.Normal(scale=3.0), "*": bnn.priors.Normal()},
        likelihood=bnn.likelihoods.Normal(scale=0.2),
    )
    svi = bnn.SVI(bnn.guides.AutoNormal, num_steps=1_000, learning_rate=0.02, compile=True)
    posterior = svi.run(model, (x, y), progress=False)
    gap = torch.linspace(-0.6, 0.6, 13)[:, None]
    far = torch.tensor([[-3.0], [3.0], [6.0], [100.0]])
    new = gap if activation == "relu" else far
    median = posterior.predict(x).sd_epistemic.median()
    assert (posterior.predict(new).sd_epistemic < median).all()  # "like the training rows"
    assert (p_values(x.numpy(), torch.cat([gap, far]).numpy()) <= LEVEL).all()


def test_far_rows_of_diabetes() -> None:
    """One of ten columns far off, in patients that are otherwise as those held out."""
    split = bnn.data.load("diabetes")
    novelty, new = Novelty(split.train.x.numpy()), split.test.x.numpy()
    for column in (0, 2, 3):  # age, body mass index, blood pressure
        shifted = new + 8 * np.eye(10)[column]
        assert (novelty.p_value(novelty.distance(shifted)) <= LEVEL).all()
    assert (novelty.p_value(novelty.distance(new)) <= LEVEL).mean() < 0.2


def test_most_wines_of_a_cultivar_that_was_held_out_are_far() -> None:
    split = bnn.data.load("wine-cultivars")
    rows = population("wine-cultivars")
    is_other = torch.cat([split.train.y, split.test.y]).numpy() == 1
    train, other = standardised(rows[~is_other], rows[is_other])
    assert (p_values(train, other) <= LEVEL).mean() > 0.5


def test_rows_around_the_moons() -> None:
    split = bnn.data.load("moons")
    angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    ring = 3 * np.stack([np.cos(angle), np.sin(angle)], 1)
    assert (p_values(split.train.x.numpy(), ring) <= LEVEL).all()
