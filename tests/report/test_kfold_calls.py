"""K-fold scores of plain models against densities in closed form, and what is refused."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import joblib
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from numpy.typing import NDArray
from pyro import poutine
from pyro.infer import config_enumerate
from scipy import stats
from torch import Tensor

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.errors import DataError, DivergenceError, OptionError, ShapeError
from pyro_bnn.posterior import CallDraws, CallPosterior
from pyro_bnn.report import CallComparison
from tests.plain_pyro import default_dtype

N = 12
Y = torch.linspace(-1.0, 2.5, N, dtype=torch.float64) ** 2 / 2
FOLDS = np.arange(N) % 3
NUTS = bnn.NUTS(num_chains=4, warmup_steps=200, num_samples=1_000)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with default_dtype(torch.float64):
        yield


def level(y: Tensor, prior: float = 2.0, noise: float = 1.0) -> None:
    """A level of normal data: loc ~ N(0, prior), y_n ~ N(loc, noise); all is in closed form."""
    loc = pyro.sample("loc", dist.Normal(0.0, prior))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc, noise), obs=y)


def moments(y: Tensor, prior: float = 2.0, noise: float = 1.0) -> tuple[float, float]:
    """Mean and sd of the level given values."""
    precision = prior**-2 + len(y) * noise**-2
    return float(y.sum()) * noise**-2 / precision, precision**-0.5


def left_out(folds: NDArray[Any], prior: float = 2.0, noise: float = 1.0) -> NDArray[Any]:
    """Log density of each value given those of the other folds."""
    scores = np.zeros(N)
    for n in range(N):
        mean, sd = moments(Y[torch.as_tensor(folds != folds[n])], prior, noise)
        scores[n] = stats.norm.logpdf(float(Y[n]), mean, math.hypot(sd, noise))
    return scores


def run(model: Any, call: Call, engine: Any = NUTS) -> CallPosterior:
    posterior = engine.run(model, call, progress=False)
    assert isinstance(posterior, CallPosterior)
    return posterior


def compare(posteriors: Any, **options: Any) -> CallComparison:
    comparison = bnn.compare(posteriors, **options)
    assert isinstance(comparison, CallComparison)
    return comparison


def scores(comparison: CallComparison, name: str = "a") -> tuple[NDArray[Any], float]:
    """The terms of the k-fold score, and the Monte Carlo error of their sum."""
    kfold = comparison.evaluations[name].kfold
    assert kfold is not None
    return kfold.pointwise, kfold.draws_error


def test_scores_are_those_of_the_closed_form() -> None:
    """Of values and of their sum, with its errors over values and over draws."""
    comparison = compare({"a": run(level, Call(Y))}, folds=FOLDS)
    pointwise, error = scores(comparison)
    exact = left_out(FOLDS)
    assert 0 < error < 0.05
    assert abs(pointwise.sum() - exact.sum()) < 4 * error
    np.testing.assert_allclose(pointwise, exact, atol=0.06)
    row = comparison.table.loc["a"]
    assert row["elpd_kfold"] == pytest.approx(pointwise.sum())
    assert row["elpd_kfold_se"] == pytest.approx(math.sqrt(N * exact.var(ddof=1)), rel=0.02)
    seen = np.array([stats.norm.logpdf(float(y), *_predictive(Y)) for y in Y])
    assert seen.sum() - exact.sum() > 15 * error  # scores of values that the runs have seen


def _predictive(y: Tensor) -> tuple[float, float]:
    mean, sd = moments(y)
    return mean, math.hypot(sd, 1.0)


def test_as_many_folds_as_values_leave_one_out() -> None:
    comparison = compare({"a": run(level, Call(Y))}, folds=N)
    pointwise, error = scores(comparison)
    exact = left_out(np.arange(N))
    assert abs(pointwise.sum() - exact.sum()) < 4 * error
    np.testing.assert_allclose(pointwise, exact, atol=0.06)
    kfold = comparison.evaluations["a"].kfold
    assert kfold is not None
    assert sorted(kfold.folds) == list(range(N))


def test_folds_are_of_equal_size_at_random_and_the_same_for_all() -> None:
    posteriors = {"a": run(level, Call(Y)), "b": run(level, Call(Y, noise=3.0))}
    comparison = compare(posteriors, folds=5)
    a, b = (comparison.evaluations[name].kfold for name in posteriors)
    assert a is not None
    assert b is not None
    assert sorted(np.bincount(a.folds)) == [2, 2, 2, 3, 3]
    assert (a.folds == b.folds).all()
    assert (a.folds != np.sort(a.folds)).any()
    other = compare(posteriors, folds=5, seed=1).evaluations["a"].kfold
    assert other is not None
    assert (a.folds != other.folds).any()
    exact = left_out(a.folds, noise=3.0) - left_out(a.folds)
    row = comparison.table.loc["b"]
    assert row["difference"] == pytest.approx(exact.sum(), abs=4 * (a.draws_error + b.draws_error))
    assert row["difference_se"] == pytest.approx(math.sqrt(N * exact.var(ddof=1)), rel=0.05)
    assert list(comparison.table.index) == ["a", "b"]
    assert comparison.verdicts[0].startswith("a has the highest 5-fold score of 'y'.")


def test_an_approximation_is_scored_as_itself() -> None:
    """A point has the density at the mode given the other folds, and the chains of its model's."""
    delta = bnn.SVI(bnn.guides.AutoDelta, learning_rate=0.05, num_steps=600)
    posteriors = {"point": run(level, Call(Y), delta), "chains": run(level, Call(Y))}
    comparison = compare(posteriors, folds=FOLDS)
    exact = np.zeros(N)
    for n in range(N):
        mode, _ = moments(Y[torch.as_tensor(FOLDS[n] != FOLDS)])
        exact[n] = stats.norm.logpdf(float(Y[n]), mode, 1.0)
    np.testing.assert_allclose(scores(comparison, "point")[0], exact, atol=1e-3)
    np.testing.assert_allclose(scores(comparison, "chains")[0], left_out(FOLDS), atol=0.06)
    assert comparison.table["tied"].notna().all()
    text = "\n".join(comparison.verdicts)
    assert "no LOO score" not in text
    assert "posteriors of one model" not in text


def test_a_site_of_a_row_is_drawn_from_its_distribution_given_the_others() -> None:
    """y_n ~ N(z_n, 1), z_n ~ N(loc, 3): without y_n it is N(loc, sqrt(10)), as if z were not."""

    def rows(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
        with pyro.plate("data", N):
            z = pyro.sample("z", dist.Normal(loc, 3.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    comparison = compare({"a": run(rows, Call(Y))}, folds=FOLDS)
    pointwise, error = scores(comparison)
    exact = left_out(FOLDS, noise=math.sqrt(10.0))
    assert abs(pointwise.sum() - exact.sum()) < 4 * error
    assert error < 0.2


def test_groups_are_left_out_whole() -> None:
    """A new group has the level of all groups, a new value of a known group has its own too."""

    def groups(y: Tensor) -> None:  # [3, 4]: the groups are columns
        with pyro.plate("groups", 4):
            z = pyro.sample("z", dist.Normal(0.0, 2.0))
            with pyro.plate("members", 3):
                pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    y = Y.reshape(3, 4)
    posterior = run(groups, Call(y))
    pointwise, error = scores(compare({"a": posterior}, folds=np.arange(4)))
    exact = stats.norm.logpdf(Y.numpy(), 0.0, math.sqrt(5.0))
    assert abs(pointwise.sum() - exact.sum()) < 4 * error
    pointwise, error = scores(compare({"a": posterior}, folds=np.arange(3)[:, None]))
    exact = np.zeros((3, 4))
    for row in range(3):
        for group in range(4):
            mean, sd = moments(y[torch.arange(3) != row, group])
            exact[row, group] = stats.norm.logpdf(float(y[row, group]), mean, math.hypot(sd, 1.0))
    assert abs(pointwise.sum() - exact.sum()) < 4 * error


def test_discrete_sites_are_summed_out_of_values_that_are_left_out() -> None:
    """Beta(2, 2) weights of N(0, 1) and N(3, 1): the density is an integral over the weight."""

    @config_enumerate
    def mixture(y: Tensor) -> None:
        weight = pyro.sample("weight", dist.Beta(2.0, 2.0))
        with pyro.plate("data", N):
            kind = pyro.sample("kind", dist.Bernoulli(weight))
            pyro.sample("y", dist.Normal(3.0 * kind, 1.0), obs=y)

    pointwise, error = scores(compare({"a": run(mixture, Call(Y))}, folds=FOLDS))
    weight = (np.arange(4_000) + 0.5) / 4_000
    density = np.stack(
        [
            (1 - weight) * stats.norm.pdf(y, 0.0) + weight * stats.norm.pdf(y, 3.0)
            for y in Y.tolist()
        ]
    )  # [N, 4000]
    exact = np.zeros(N)
    for n in range(N):
        seen = stats.beta.pdf(weight, 2, 2) * density[FOLDS[n] != FOLDS].prod(0)
        exact[n] = math.log((density[n] * seen).sum() / seen.sum())
    assert abs(pointwise.sum() - exact.sum()) < 4 * error
    np.testing.assert_allclose(pointwise, exact, atol=0.06)


def test_masked_values_are_in_no_fold_and_other_sites_stay() -> None:
    def masked(y: Tensor, x: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
        pyro.sample("x", dist.Normal(loc, 1.0), obs=x)
        with pyro.plate("data", N), poutine.mask(mask=cast(Any, torch.arange(N) < 6)):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    posterior = run(masked, Call(Y, torch.tensor(2.0)))
    pointwise, error = scores(compare({"a": posterior}, site="y", folds=FOLDS))
    exact = np.zeros(6)
    for n in range(6):
        seen = torch.cat([Y[:6][torch.as_tensor(FOLDS[:6] != FOLDS[n])], torch.tensor([2.0])])
        exact[n] = stats.norm.logpdf(float(Y[n]), *_predictive(seen))
    assert pointwise.shape == (6,)
    assert abs(pointwise.sum() - exact.sum()) < 4 * error


@pytest.mark.slow("two processes import the package")
def test_processes_give_the_same_scores() -> None:
    engine = bnn.NUTS(num_chains=2, warmup_steps=20, num_samples=20, compile=False)
    posterior = run(level, Call(Y), engine)
    alone = scores(compare({"a": posterior}, folds=2))
    with joblib.parallel_config("loky", n_jobs=2):
        apart = scores(compare({"a": posterior}, folds=2))
    np.testing.assert_allclose(alone[0], apart[0], rtol=1e-6)  # of another number of threads


def test_refits_of_bad_chains_are_told() -> None:
    short = bnn.NUTS(num_chains=2, warmup_steps=5, num_samples=12, compile=False)
    text = "\n".join(compare({"a": run(level, Call(Y), short)}, folds=3).verdicts)
    told = text[text.index("a: defects in 3 of its 3 refits, without fold 0: ") :]
    assert " ESS " in told or "R-hat" in told or "draws a chain" in told


def test_a_refit_that_fails_leaves_no_score() -> None:
    posterior = run(level, Call(Y))

    def fails(*args: Any, **kwargs: Any) -> CallPosterior:
        raise DivergenceError("the loss is NaN")

    posterior.rerun = fails
    comparison = compare({"a": posterior, "b": run(level, Call(Y))}, folds=2)
    text = "\n".join(comparison.verdicts)
    assert "a: no k-fold score of 'y': the run without fold 0 failed: the loss is NaN." in text
    assert np.isnan(comparison.table.loc["a", "elpd_kfold"])
    assert list(comparison.table.index) == ["b", "a"]


def test_steps_of_a_markov_chain_have_no_score_each() -> None:
    @config_enumerate
    def chain(y: Tensor) -> None:
        locs = pyro.sample("locs", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        with pyro.plate("data", N):
            pyro.sample("free", dist.Normal(locs[0], 1.0), obs=y)
        kind = pyro.sample("kind", dist.Bernoulli(0.5))
        with pyro.plate("tied", N):
            pyro.sample("y", dist.Normal(locs[kind.long()], 1.0), obs=y)

    text = "\n".join(compare({"a": run(chain, Call(Y))}, site="y", folds=2).verdicts)
    assert "a: no k-fold score of 'y': discrete sites tie 'y' to other values" in text


def test_posteriors_without_an_engine_are_refused(tmp_path: Path) -> None:
    posterior = run(level, Call(Y))
    assert posterior.rerun is not None
    posterior.save(tmp_path / "level.st")
    guide = bnn.guides.AutoNormal(level)
    instance = run(level, Call(Y), bnn.SVI(guide, num_steps=2, compile=False))
    made = bnn.SVI(lambda model: bnn.guides.AutoNormal(model), num_steps=2, compile=False)  # noqa: PLW0108
    copied = pickle.loads(pickle.dumps(run(level, Call(Y), made)))
    stored = CallPosterior.load(tmp_path / "level.st", level)
    for own in (instance, copied, stored, pickle.loads(pickle.dumps(posterior))):
        assert own.rerun is None
        with pytest.raises(OptionError, match=r"a: folds runs its engine again without a part of"):
            bnn.compare({"a": own}, folds=2)
    assert isinstance(stored, CallDraws)


def test_what_are_no_folds_is_refused() -> None:
    posterior = run(level, Call(Y))
    with pytest.raises(OptionError, match="folds is an integer of at least 2, not 1"):
        bnn.compare({"a": posterior}, folds=1)
    with pytest.raises(OptionError, match="folds=13 is more than the 12 values"):
        bnn.compare({"a": posterior}, folds=13)
    with pytest.raises(OptionError, match="folds puts all values of 'y' into one fold"):
        bnn.compare({"a": posterior}, folds=np.zeros(N))
    with pytest.raises(ShapeError, match=r"folds has shape \[5\], and the values .* have \[12\]"):
        bnn.compare({"a": posterior}, folds=np.arange(5))
    split = bnn.data.from_arrays(torch.randn(30, 1), torch.randn(30))
    with pytest.raises(OptionError, match="folds would have no effect with a split"):
        bnn.compare({"a": posterior}, split, folds=2)  # type: ignore[call-overload]

    def joined(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
        pyro.sample("y", dist.Normal(loc, 1.0).expand([N]).to_event(1), obs=y)

    with pytest.raises(DataError, match=r"a observes 1 value of 'y', .*put values in a pyro.plate"):
        bnn.compare({"a": run(joined, Call(Y))}, folds=2)

    def masked(y: Tensor) -> None:
        with poutine.mask(mask=cast(Any, torch.arange(N) < 5)):
            level(y)

    with pytest.raises(DataError, match="other numbers of values of 'y': a 12, b 5"):
        bnn.compare({"a": posterior, "b": run(masked, Call(Y))}, folds=2)
