"""Estimators of scikit-learn on UCI sets: log score, coverage and seconds, ours beside others.

    python -m benchmarks._estimator_fits                  # ours and scikit-learn's
    python -m benchmarks._estimator_fits --bde --out benchmarks/results/estimator-fits.jsonl

``--bde`` needs ``sklearn-contrib-bde``. Each split is standardised by its training rows, and scores
are in the units of the data. A log score is that of the whole predictive distribution: a mixture
over draws of ours and bde's, a Gaussian of scikit-learn's. Seconds are those of ``fit`` with its
compilation, and of the prediction. A fit of each kind comes before, which is not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge

import pyro_bnn as bnn
from benchmarks import _settings

SETS = ("uci/yacht", "uci/boston", "uci/energy")
LOW, HIGH = 0.05, 0.95


class Scores(NamedTuple):
    """Of the held-out rows, in standardised units: mean log density, and the share between."""

    log_score: float
    coverage: float


def ours(method: str) -> Callable[..., Scores]:
    """One of our estimators with its defaults."""

    def fit(x: Any, y: Any, new: Any, observed: Any) -> Scores:
        net = bnn.sklearn.BNNRegressor(method, random_state=0).fit(x, y)
        low, high = net.predict_quantiles(new, [LOW, HIGH]).T
        inside = (observed >= low) & (observed <= high)
        return Scores(float(net.log_prob(new, observed).mean()), float(inside.mean()))

    return fit


def gaussian(make: Callable[..., Any]) -> Callable[..., Scores]:
    """An estimator of scikit-learn, whose prediction is a Gaussian."""

    def fit(x: Any, y: Any, new: Any, observed: Any) -> Scores:
        mean, sd = make(x).fit(x, y).predict(new, return_std=True)
        return of_mixture(mean[None], sd[None], observed)

    return fit


def bde(**options: Any) -> Callable[..., Scores]:
    """An ensemble of Bayesian deep networks."""

    def fit(x: Any, y: Any, new: Any, observed: Any) -> Scores:
        from bde import BdeRegressor

        net = BdeRegressor(seed=0, **options).fit(np.float32(x), np.float32(y))
        raw = np.asarray(net.predict(np.float32(new), raw=True), dtype=np.float64)
        mean, scale = raw.reshape(-1, len(new), 2).transpose(2, 0, 1)  # [S, N] each
        return of_mixture(mean, np.logaddexp(0, scale) + 1e-6, observed)  # as bde makes it a sd

    return fit


def of_mixture(mean: Any, sd: Any, observed: Any) -> Scores:
    """Scores of equal mixtures of S Gaussians ``[S, N]`` at observations ``[N]``."""
    log_density = logsumexp(norm.logpdf(observed, mean, sd), axis=0) - math.log(len(mean))
    pit = norm.cdf(observed, mean, sd).mean(0)
    inside = (pit >= LOW) & (pit <= HIGH)
    return Scores(float(log_density.mean()), float(inside.mean()))


def process(x: Any) -> GaussianProcessRegressor:
    """A Gaussian process with a length for each input and noise, by marginal likelihood."""
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel, random_state=0)


METHODS: dict[str, Callable[..., Scores]] = {
    "BNNRegressor('auto-normal')": ours("auto-normal"),
    "BNNRegressor('nuts')": ours("nuts"),
    "BayesianRidge": gaussian(lambda _: BayesianRidge()),
    "GaussianProcessRegressor": gaussian(process),
}
OF_BDE: dict[str, Callable[..., Scores]] = {
    "BdeRegressor, defaults": bde(hidden_layers=[50]),
    "BdeRegressor, longer": bde(
        hidden_layers=[50], n_members=4, epochs=1_000, warmup_steps=500, n_samples=300, patience=20
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bde", action="store_true")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    methods = METHODS | (OF_BDE if given.bde else {})
    lines = [{"machine": _settings.machine(), "versions": _settings.versions()}]
    for name in given.sets:
        for index in range(given.splits):
            split = bnn.data.load(name, split=index)
            (x, y), (new, observed) = (
                (part.x.double().numpy(), part.y.double().numpy().ravel())
                for part in (split.train, split.test)
            )
            assert split.train.target is not None
            unit = math.log(float(split.train.target.scale))
            for method, fit in methods.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if not index and name == given.sets[0]:
                        fit(x, y, new, observed)  # imports and caches
                    start = time.perf_counter()
                    scores = fit(x, y, new, observed)
                    took = time.perf_counter() - start
                row = {"data": name, "split": index, "method": method, "seconds": took}
                row |= {"log_score": scores.log_score - unit, "coverage": scores.coverage}
                print(json.dumps(row), flush=True)
                lines.append(row)
                if given.out:  # what there is, should this be stopped
                    given.out.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


if __name__ == "__main__":
    main()
