"""Peers that may be installed, on the same problem, on the CPU; here bayesian-torch and TyXe."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import torch
from torch import nn

from benchmarks import _numpyro
from benchmarks._contenders import own_store
from benchmarks._networks import sequential
from benchmarks._problem import LEARNING_RATE, NOISE_SD, PRIOR_SD, Contender, Problem
from benchmarks._settings import NOT_INSTALLED, versions

BAYESIAN_TORCH = "bayesian-torch, dnn_to_bnn, fused Adam"
TYXE = "TyXe, with Pyro's AutoNormal"


def installed(name: str) -> bool:
    """Whether a package is installed."""
    return versions()[name] != NOT_INSTALLED


def peers(problem: Problem, steps: int) -> Iterator[Contender]:
    """Every peer that is installed, set up on a problem.

    Args:
        problem: Network and data.
        steps: Steps of a block, which the scan of NumPyro needs to know beforehand.
    """
    makers: tuple[tuple[str, Callable[[], Contender]], ...] = (
        ("numpyro", lambda: _numpyro.update(problem)),
        ("numpyro", lambda: _numpyro.scan(problem, steps)),
        ("bayesian-torch", lambda: bayesian_torch(problem)),
        ("tyxe", lambda: tyxe(problem)),
    )
    for package, make in makers:
        if installed(package):
            yield make()


def bayesian_torch(problem: Problem) -> Contender:
    """Reparameterisation layers; its KL helper gives a mean over weights, so no ELBO."""
    importlib.import_module("bayesian_torch.models.dnn_to_bnn")
    start = time.perf_counter()
    net, loss_of = bayesian_torch_net(problem)
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)

    def advance(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()

    advance(1)
    return Contender(BAYESIAN_TORCH, advance, time.perf_counter() - start)


def bayesian_torch_net(problem: Problem) -> tuple[nn.Module, Callable[[], Any]]:
    """The converted network and its loss on the batch."""
    convert = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
    x, y = problem.batch_of()
    net, target = sequential(problem), y.unsqueeze(-1)
    options = {
        "prior_mu": 0.0,
        "prior_sigma": PRIOR_SD,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": -4.0,
        "type": "Reparameterization",
        "moped_enable": False,
    }
    convert.dnn_to_bnn(net, options)

    def loss() -> Any:
        squared = nn.functional.mse_loss(net(x), target, reduction="sum")
        scale = problem.num_data / problem.batch / (2 * NOISE_SD**2)
        return scale * squared + convert.get_kl_loss(net)

    return net, loss


def tyxe(problem: Problem) -> Contender:
    """TyXe with an autoguide of Pyro; its own guide needs a function that Pyro has dropped."""
    start = time.perf_counter()
    x, y = problem.batch_of()
    target = y.unsqueeze(-1)
    with own_store() as scope:
        svi = tyxe_svi(problem)[1]

    def advance(steps: int) -> None:
        with scope():
            for _ in range(steps):
                svi.step((x,), target)

    advance(1)
    return Contender(TYXE, advance, time.perf_counter() - start)


def tyxe_svi(problem: Problem) -> tuple[Any, Any]:
    """The network of TyXe and the SVI object that its ``fit`` makes."""
    package = importlib.import_module("tyxe")
    model = package.VariationalBNN(
        sequential(problem),
        package.priors.IIDPrior(pyro.distributions.Normal(0.0, PRIOR_SD)),
        package.likelihoods.HomoskedasticGaussian(problem.num_data, scale=NOISE_SD),
        pyro.infer.autoguide.AutoNormal,
    )
    adam = pyro.optim.Adam({"lr": LEARNING_RATE})  # type: ignore[attr-defined]  # made at import
    elbo = pyro.infer.TraceMeanField_ELBO()
    return model, pyro.infer.SVI(model.model, model.guide, adam, elbo)
