"""Numbers that break models, over the whole way: data, fit, prediction, scores, report."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import SVI, Posterior, Program, compare, guides, likelihoods, models
from pyro_bnn.data import Dataset, Split, Standardiser, from_arrays
from pyro_bnn.errors import DataError, ShapeError
from pyro_bnn.posterior import DrawsPosterior, Provenance
from tests.oracle import design, linear_gaussian, log_normal

X = np.random.default_rng(0).normal(size=(24, 3))
Y = X[:, 0] - 0.3 * X[:, 1] ** 2


def fit(
    data: Dataset | DataLoader[tuple[Tensor, ...]], num_steps: int = 5, **options: int
) -> Posterior:
    """A short fit; of classes if the labels are whole numbers."""
    rows = Dataset(*data.dataset.tensors) if isinstance(data, DataLoader) else data  # type: ignore[attr-defined]
    classes = rows.num_classes
    likelihood = likelihoods.Normal() if classes is None else likelihoods.Categorical(classes)
    model = models.MLP(rows.x.shape[1], hidden=(4,), likelihood=likelihood)
    engine = SVI(guides.AutoNormal, num_steps=num_steps, compile=False, **options)  # type: ignore[arg-type]
    return engine.run(model, data, seed=0, progress=False)


@pytest.fixture(scope="module")
def split() -> Split:
    return from_arrays(X, Y, test_fraction=0.25)


@pytest.fixture(scope="module")
def posterior(split: Split) -> Posterior:
    return fit(split.train)


# Targets and inputs of any size


@pytest.mark.parametrize(
    ("scale", "tolerance"),
    [(2.0**40, 0.0), (2.0**-40, 0.0), (1e12, 1e-5), (1e-12, 1e-5), (1e100, 1e-5)],
)
def test_a_rescaled_target_is_the_same_problem(
    scale: float, tolerance: float, split: Split, posterior: Posterior
) -> None:
    mine = from_arrays(X, scale * Y, test_fraction=0.25)
    fitted = fit(mine.train)
    x, y = split.test.raw()[0], torch.tensor(Y[split.test_rows])
    theirs, ours = (p.predict(x, 50, raw=True) for p in (posterior, fitted))
    for name in ("mean", "sd", "sd_epistemic", "draws"):
        expected = scale * getattr(theirs, name)
        assert_close(getattr(ours, name), expected, rtol=tolerance, atol=tolerance * scale)
    shifted = theirs.log_prob(y).double() - math.log(scale)
    assert_close(ours.log_prob(scale * y).double(), shifted, rtol=1e-6, atol=1e-5)


def test_a_feature_far_from_0_is_standardised_in_double_precision(split: Split) -> None:
    far = X.copy()
    far[:, 0] = 1e9 + X[:, 0].round(6)
    near = X.copy()
    near[:, 0] = X[:, 0].round(6)
    ours = from_arrays(far, Y, test_fraction=0.25).test
    assert_close(ours.x, from_arrays(near, Y, test_fraction=0.25).test.x, rtol=0, atol=1e-6)


def test_half_precision_gives_the_numbers_of_single(split: Split) -> None:
    half = torch.tensor(X).half(), torch.tensor(Y).half()
    single = from_arrays(half[0].float(), half[1].float(), test_fraction=0.25)
    ours = from_arrays(*half, test_fraction=0.25)
    a, b = fit(ours.train), fit(single.train)
    assert a.losses.tolist() == b.losses.tolist()
    x = ours.test.raw()[0].half()  # new rows in half precision too
    assert_close(
        a.predict(x, 9, raw=True).draws, b.predict(x.float(), 9, raw=True).draws, rtol=0, atol=0
    )


def test_a_test_row_beyond_every_density_is_named_in_the_report(
    split: Split, posterior: Posterior
) -> None:
    y = split.test.y.clone()
    y[2] = 1e30
    far = Split(split.train, Dataset(split.test.x, y), "regression", "far")
    comparison = compare({"m": posterior}, far, num_samples=9)
    assert comparison.table.log_score.tolist() == [-math.inf]
    (note,) = [n for n in comparison.evaluations["m"].notes if "is 0 to the last digit" in n]
    assert note.startswith("log score −∞: the density of 1 of 6 test rows is 0")
    assert "first of row 2 (from 0)" in note


# Rows: few, many times, none; more columns than rows


def test_duplicated_rows_count_as_often_as_they_stand_there() -> None:
    oracle = linear_gaussian(num_rows=6)
    x, y = oracle.x.repeat(3, 1), oracle.y.repeat(3)
    program = Program(oracle.model, x, y)
    z = torch.linspace(-1, 1, program.num_latents).double()
    found = program.log_joint(z, program.batch(x, y))
    once = log_normal(oracle.y - design(oracle.x) @ z, oracle.noise).sum()
    assert_close(found, 3 * once + log_normal(z, oracle.prior_scale).sum())
    split = from_arrays(np.repeat(X, 3, 0), np.repeat(Y, 3))
    assert len(split.train) + len(split.test) == 3 * len(X)


@pytest.mark.slow("a second or more")
@pytest.mark.filterwarnings("ignore:.*one value in all 1 training rows")
@pytest.mark.parametrize(
    ("num_rows", "num_inputs"), [(2, 3), (8, 90)], ids=["one row", "more columns than rows"]
)
def test_few_rows_go_the_whole_way(num_rows: int, num_inputs: int, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(num_rows, num_inputs))
    x[:, 1] = 3.7  # a constant feature besides
    split = from_arrays(x, x[:, 0], test_fraction=1 / num_rows)
    assert not split.train.x[:, 1].any()
    fitted = fit(split.train)
    prediction = fitted.predict(split.test.raw()[0], 9, raw=True)
    for value in (prediction.mean, prediction.sd, prediction.log_prob(split.test.raw()[1])):
        assert bool(value.isfinite().all())
    assert bool(fitted.log_likelihood(split.train, 9).isfinite().all())
    comparison = compare({"m": fitted}, split, num_samples=9)
    assert np.isfinite(comparison.table.log_score).all()
    assert comparison.to_html(tmp_path / "index.html").stat().st_size > 10_000


def test_an_empty_test_set_and_empty_rows_are_refused(split: Split, posterior: Posterior) -> None:
    with pytest.raises(DataError, match=r"the data are empty: x is \[0, 3\]"):
        split.test.rows([])
    with pytest.raises(ShapeError, match="N at least 1"):
        posterior.predict(split.test.x[:0])


def test_a_batch_larger_than_the_data_is_the_data(split: Split, posterior: Posterior) -> None:
    whole = fit(split.train, batch_size=10**9)
    assert whole.losses.tolist() == posterior.losses.tolist()


def test_minibatches_of_one_class_leave_the_others_there() -> None:
    y = torch.arange(24) // 8
    x = torch.tensor(X, dtype=torch.float32)
    fitted = fit(DataLoader(TensorDataset(x, y), batch_size=8), num_steps=7)
    probs = fitted.predict(x, 20).probs
    assert probs.shape == (24, 3)
    assert bool((probs > 0).all())
    assert_close(probs.sum(1), torch.ones(24))


def test_a_class_of_the_test_rows_alone_is_predicted_and_scored() -> None:
    y = (X[:, 0] > 0).astype(int)
    rows = from_arrays(X, y).test_rows
    assert rows is not None
    y[int(rows[0])] = 2
    with pytest.warns(UserWarning, match="no training row of class '2'"):
        split = from_arrays(X, y)
    assert split.train.num_classes == split.test.num_classes == 3
    prediction = fit(split.train).predict(split.test.x, 50)
    assert prediction.probs.shape == (len(split.test), 3)
    assert bool(prediction.log_prob(split.test.y).isfinite().all())


def test_a_hundred_thousand_features() -> None:
    x = torch.randn(20, 100_000, generator=torch.Generator().manual_seed(0))
    split = from_arrays(x, x[:, 0])
    fitted = fit(split.train, num_steps=2)  # a matrix [I, I] would be 40 GB
    assert fitted.num_parameters == 2 * (4 * 100_000 + 4 + 4 + 1 + 1)
    assert bool(fitted.predict(split.test.x, 5).sd.isfinite().all())
    assert fitted.log_likelihood(split.test, 5).shape == (5, 2)


# Shapes of predictions, and what is refused

NUM_DRAWS = 7


@cache
def linear(num_outputs: int) -> tuple[Program, Tensor]:
    """A linear network with known noise, and draws ``[1, S, P]`` of its prior."""
    model = models.MLP(3, num_outputs, hidden=(), likelihood=likelihoods.Normal(0.4)).double()
    program = Program(model, torch.zeros(2, 3).double(), torch.zeros(2, num_outputs).double())
    return program, program.prior_draws(NUM_DRAWS, torch.zeros(1, 3).double(), seed=0).unsqueeze(0)


@pytest.mark.slow("about a second")
@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    num_rows=st.integers(1, 9),
    num_outputs=st.sampled_from([1, 2]),
    loc=st.floats(-1e6, 1e6),
    power=st.integers(-100, 100),
    levels=st.lists(st.floats(1e-12, 1 - 1e-12), min_size=1, max_size=5).map(sorted),
)
def test_predictions_have_their_shapes_and_carry_units(
    num_rows: int, num_outputs: int, loc: float, power: int, levels: list[float]
) -> None:
    scale = torch.full((num_outputs,), 10.0**power, dtype=torch.float64)
    units = Standardiser(loc * scale, scale)
    program, z = linear(num_outputs)
    posterior = DrawsPosterior(program, z, Provenance("prior", "none", target=units))
    x = torch.linspace(-2, 2, 3 * num_rows).double().reshape(num_rows, 3)
    of_model, raw = posterior.predict(x), posterior.predict(x, raw=True)
    shape = (num_rows, num_outputs)
    assert raw.function_draws.shape == raw.draws.shape == (NUM_DRAWS, *shape)
    for name in ("mean", "sd", "sd_epistemic", "sd_aleatoric"):
        assert getattr(raw, name).shape == shape
    quantiles = raw.quantile(levels)
    assert quantiles.shape == (len(levels), *shape)
    assert bool((quantiles.diff(dim=0) >= 0).all())
    assert raw.quantile(levels[0]).shape == shape
    assert_close(raw.mean, units.inverse(of_model.mean))
    assert_close(raw.sd, of_model.sd * scale)
    y = of_model.mean
    shift = num_outputs * power * math.log(10)
    tolerance = 1e-9 * (1 + abs(loc))  # y far from 0 keeps fewer digits of z
    assert_close(
        raw.log_prob(units.inverse(y)), of_model.log_prob(y) - shift, rtol=1e-9, atol=tolerance
    )
    assert raw.log_prob(units.inverse(y)).shape == (num_rows,)


@pytest.mark.parametrize("raw", [False, True])
def test_new_rows_that_do_not_fit_are_refused(
    raw: bool, split: Split, posterior: Posterior
) -> None:
    x = split.test.raw()[0] if raw else split.test.x
    for wrong in (x[:, :2], x[:, :1], torch.cat([x, x], 1), x[0], x[None], torch.tensor(1.0)):
        with pytest.raises(ShapeError, match="shape"):
            posterior.predict(wrong, 3, raw=raw)
    for value in (math.nan, math.inf):
        bad = x.clone()
        bad[1, 2] = value
        with pytest.raises(DataError, match=r"in column 2 \(1 row\) of 6, first in row"):
            posterior.predict(bad, 3, raw=raw)
    prediction, y = posterior.predict(x, 3, raw=raw), split.test.y
    for wrong in (y[None], y[:1], torch.cat([y, y]), torch.stack([y, y], 1), y[:0]):
        with pytest.raises(ShapeError, match="one row for each row of x, one column for each"):
            prediction.log_prob(wrong)
    with pytest.raises(DataError, match="y must hold real numbers, got dtype complex64"):
        prediction.log_prob(y + 1j)
    assert_close(prediction.log_prob(y[:, None]), prediction.log_prob(y), rtol=0, atol=0)
