"""Verdicts on calibration: coverage, PIT histogram and ECE, of exact and of wrong posteriors.

An exact posterior is one whose truth was drawn from its own prior: a linear model with Gaussian
weights, or a finite prior of equally likely functions, whose posterior is exact for any likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.verdict_rates._rate import Rate
from pyro_bnn.diagnostics.bands import simulated_pit, upper_limit
from pyro_bnn.diagnostics.calibration import (
    coverage,
    covered_share,
    ece,
    pit,
    pit_histogram,
    simulated_ece,
)
from pyro_bnn.likelihoods import Categorical, Likelihood

NUM_INPUTS = 10
NUM_FUNCTIONS = 2_000
MEASURES = {
    "coverage": "share of held-out targets inside the 95 % interval",
    "pit": "PIT histogram of held-out targets",
    "ece": "expected calibration error, 15 bins",
}


@dataclass(frozen=True)
class Linear:
    """Rows of :math:`y = x^\\top w + \\epsilon` with :math:`w \\sim N(0, I / 10)`."""

    num_train: int
    noise: float
    num_test: int

    def __str__(self) -> str:
        return (
            f"linear, {self.num_train} training rows, noise {self.noise:g}, {self.num_test:,} rows"
        )


@dataclass(frozen=True)
class Fault:
    """What is wrong with a posterior.

    Attributes:
        spread: Its standard deviations over the exact ones.
        shift: How far its mean is off, in exact standard deviations of each weight.
        noise: Its noise sd over the true one.
        autocorrelation: Of its draws, those of a chain; no fault.
    """

    spread: float = 1.0
    shift: float = 0.0
    noise: float = 1.0
    autocorrelation: float = 0.0

    @property
    def is_one(self) -> bool:
        return (self.spread, self.shift, self.noise) != (1.0, 0.0, 1.0)

    def __str__(self) -> str:
        names = {
            "spread": "sds x {:g}",
            "shift": "mean {:g} sds off",
            "noise": "noise x {:g}",
            "autocorrelation": "exact, a chain of autocorrelation {:g}",
        }
        parts = [
            text.format(getattr(self, name))
            for name, text in names.items()
            if getattr(self, name) != getattr(EXACT, name)
        ]
        return ", ".join(parts) or "exact"


EXACT = Fault()
SETTINGS = (
    Linear(10, 0.7, 200),
    Linear(10, 0.3, 200),
    Linear(20, 0.1, 200),
    Linear(398, 0.7, 44),
    Linear(100, 0.7, 2_000),
)
FAULTS = (
    EXACT,
    Fault(autocorrelation=0.9),
    Fault(spread=0.0),
    Fault(spread=0.5),
    Fault(spread=2.0),
    Fault(spread=4.0),
    Fault(shift=3.0),
    Fault(noise=0.8),
    Fault(noise=1.25),
)


def linear(
    setting: Linear, fault: Fault, num_draws: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Predictive draws ``[S, N]`` of a linear posterior, and the observations ``[N]``."""
    size, noise = NUM_INPUTS, setting.noise
    w = rng.standard_normal(size) / np.sqrt(size)
    x, new = (rng.standard_normal((n, size)) for n in (setting.num_train, setting.num_test))
    y, observed = (rows @ w + noise * rng.standard_normal(len(rows)) for rows in (x, new))
    covariance = np.linalg.inv(x.T @ x / noise**2 + size * np.eye(size))
    mean = covariance @ x.T @ y / noise**2 + fault.shift * np.sqrt(covariance.diagonal())
    z = rng.standard_normal((num_draws, size))
    rho = fault.autocorrelation
    for s in range(1, num_draws) if rho else ():
        z[s] = rho * z[s - 1] + np.sqrt(1 - rho**2) * z[s]
    weights = mean + fault.spread * z @ np.linalg.cholesky(covariance).T  # [S, D]
    noise_of_draws = rng.standard_normal((num_draws, setting.num_test))
    return weights @ new.T + fault.noise * noise * noise_of_draws, observed


def verdicts_on_numbers(draws: np.ndarray, y: np.ndarray, seed: int) -> set[str]:
    """Which verdicts the report gives: of the PIT histogram only where coverage has no fault."""
    values, simulated = pit(draws, y, seed=seed), simulated_pit(draws, y, seed=seed)
    if not coverage(values, simulated=covered_share(simulated)).consistent:
        return {"coverage"}
    return {"pit"} if pit_histogram(values, simulated).outside.any() else set()


def finite(
    likelihood: Likelihood,
    num_outputs: int,
    *,
    num_train: int,
    num_test: int,
    num_draws: int,
    power: float = 1.0,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Draws of y, observations and draws of f of a prior of equally likely functions.

    Args:
        likelihood: Any.
        num_outputs: Network outputs F.
        num_train: Rows the posterior is of.
        num_test: Rows N that are predicted.
        num_draws: Draws S.
        power: Of the likelihood in the posterior: 1 is exact, above 1 too sure.
        seed: Of all.

    Returns:
        Draws of y ``[S, N]``, observations ``[N]``, draws of f ``[S, N, F]``.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x = torch.randn(num_train + num_test, 3)
        f = torch.einsum("kdf,nd->knf", torch.randn(NUM_FUNCTIONS, 3, num_outputs), x)
        y = likelihood.distribution(f[:1]).sample()  # of the first: all are alike
        fits = likelihood.distribution(f[:, :num_train]).log_prob(y[:, :num_train]).sum(-1)
        chosen = torch.multinomial((power * fits).softmax(0), num_draws, replacement=True)
        f_draws = f[chosen, num_train:]
        draws = likelihood.distribution(f_draws).sample()
        return (
            draws.reshape(num_draws, num_test).double().numpy(),
            y[0, num_train:].reshape(num_test).double().numpy(),
            f_draws,
        )


def classes(num_train: int, num_test: int, num_draws: int, power: float, seed: int) -> bool:
    """Whether the report calls the ECE of a posterior over three classes too large."""
    labels, y, f = finite(
        Categorical(3),
        3,
        num_train=num_train,
        num_test=num_test,
        num_draws=num_draws,
        power=power,
        seed=seed,
    )
    probs = f.softmax(-1).mean(0).double().numpy()
    return ece(probs, y) > upper_limit(simulated_ece(probs, labels))


def rows(quick: bool = False) -> Iterator[Rate]:
    """Rates of every case.

    Args:
        quick: Whether a handful is simulated.
    """
    num_draws, most = (200, 2) if quick else (400, 1_000)
    for setting in SETTINGS:
        for fault in FAULTS:
            count = max(2, most // 5) if setting.num_test > 1_000 else most
            rng = np.random.default_rng(0)
            found = [
                verdicts_on_numbers(*linear(setting, fault, num_draws, rng), seed)
                for seed in range(count)
            ]
            for kind in ("coverage", "pit"):
                yield Rate(
                    verdict=kind,
                    measures=MEASURES[kind],
                    threshold="outside what 99 % of data sets drawn from the posterior give"
                    + (", all bars together, and coverage inside" if kind == "pit" else ""),
                    setting=f"{setting}, {num_draws} draws; {fault}",
                    is_true=fault.is_one,
                    given=sum(kind in verdicts for verdicts in found),
                    simulated=count,
                    seed=0,
                )
    for num_train in (10, 100):
        for power, name in ((1.0, "exact"), (4.0, "likelihood to the power 4")):
            given = sum(classes(num_train, 200, num_draws, power, seed) for seed in range(most))
            yield Rate(
                verdict="ece",
                measures=MEASURES["ece"],
                threshold="above what 99 % of label sets drawn from the posterior give",
                setting=f"3 classes, {num_train} training rows, 200 rows, {num_draws} draws; "
                f"{name}",
                is_true=power != 1,
                given=given,
                simulated=most,
                seed=0,
            )
