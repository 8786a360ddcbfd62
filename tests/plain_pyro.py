"""Reference densities by Pyro's own handlers, and models to compare them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor, nn
from torch.distributions import biject_to

from pyro_bnn import likelihoods, models, priors


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new tensors in ``dtype``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def conditioned(model: Callable[..., Any], z: Tensor, x: Tensor, y: Tensor) -> tuple[Any, Tensor]:
    """Trace of the model with its latent sites at z ``[P]``, and the log Jacobian of that map.

    Sites take consecutive entries of z in the order of the model's execution.
    """
    with pyro.get_param_store().scope():
        with torch.random.fork_rng():
            prior = poutine.trace(model).get_trace(x)
        values, log_det, start = {}, z.new_zeros(()), 0
        for name in prior.stochastic_nodes:
            node: Mapping[str, Any] = prior.nodes[name]
            if name == "y" or type(node["fn"]).__name__ == "_Subsample":
                continue
            transform = biject_to(node["fn"].support)
            shape = transform.inv(node["value"]).shape
            u = z[start : start + shape.numel()].reshape(shape)
            values[name] = transform(u)
            log_det = log_det + transform.log_abs_det_jacobian(u, values[name]).sum()
            start += shape.numel()
        assert start == len(z)
        trace = poutine.trace(poutine.condition(model, data=values)).get_trace(x, y)
        trace.compute_log_prob()
    return trace, log_det


def log_joint(
    model: Callable[..., Any], z: Tensor, x: Tensor, y: Tensor, scale: float = 1.0
) -> Tensor:
    """Log p(y, z | x) of z ``[P]`` by Pyro, the likelihood times ``scale``."""
    trace, total = conditioned(model, z, x, y)
    for name, node in trace.nodes.items():
        if node["type"] == "sample" and type(node["fn"]).__name__ != "_Subsample":
            total = total + (scale if name == "y" else 1.0) * node["log_prob_sum"]
    return total


class UserModel(PyroModule):
    """A user's own hierarchical model: a global scale, a free parameter and a constrained one."""

    def __init__(self) -> None:
        super().__init__()
        linear: Any = PyroModule[nn.Linear]
        self.first = linear(3, 4)
        self.first.weight = PyroSample(
            lambda _: dist.Normal(0.0, self.tau).expand([4, 3]).to_event(2)
        )
        self.offset = nn.Parameter(torch.tensor([0.3]))
        self.noise = PyroParam(torch.tensor(0.7), constraint=constraints.positive)
        self.last: Any = PyroSample(dist.Normal(0.0, 1.0).expand([4, 1]).to_event(2))
        self.tau: Any = PyroSample(dist.HalfCauchy(torch.tensor(1.0)))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        hidden = torch.tanh(self.first(x))
        f = pyro.deterministic("f", hidden @ self.last + self.offset)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.StudentT(5.0, f, self.noise).to_event(1), obs=y)
        return sampled


def plain_function(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A model without a module, with a constrained parameter of Pyro's store."""
    noise = pyro.param("noise", torch.tensor(0.7), constraint=constraints.positive)
    w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([3, 1]).to_event(2))
    f = pyro.deterministic("f", x @ w)
    with pyro.plate("data", x.shape[0]):
        sampled: Tensor = pyro.sample("y", dist.Normal(f, noise).to_event(1), obs=y)
    return sampled


class TiedNet(nn.Module):
    """One square weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.b(torch.tanh(self.a(x)))))
        return out


class RecurrentNet(nn.Module):
    """A GRU cell unrolled over the columns of x."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(1, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 2)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t : t + 1], h)
        out: Tensor = self.out(h)
        return out


def linear_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 1, 3)),
        nn.Conv2d(1, 2, (1, 2)),
        nn.GroupNorm(1, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def transformer_net() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Unflatten(1, (3, 1)), nn.Linear(1, 4), layer, nn.Flatten(), nn.Linear(12, 1)
    )


def mlp(likelihood: Any, num_outputs: int = 1, prior: Any = None) -> Callable[[], models.MLP]:
    return lambda: models.MLP(
        3,
        num_outputs,
        hidden=(4,),
        activation="tanh",
        prior=prior and prior(),
        likelihood=likelihood(),
    )


@dataclass(frozen=True)
class Case:
    """A model and the kind of its target: number of columns, or ``"binary"``, ``"classes"``."""

    build: Callable[[], Callable[..., Any]]
    target: int | str = 1


NORMAL = likelihoods.Normal
CASES: Mapping[str, Case] = {
    "normal-fixed": Case(mlp(lambda: NORMAL(0.5))),
    "normal-learned": Case(mlp(NORMAL), 1),
    "normal-two-targets": Case(mlp(NORMAL, 2), 2),
    "heteroscedastic": Case(mlp(likelihoods.HeteroscedasticNormal, 2), 2),
    "bernoulli": Case(mlp(likelihoods.Bernoulli), "binary"),
    "categorical": Case(mlp(lambda: likelihoods.Categorical(3)), "classes"),
    "prior-laplace": Case(mlp(NORMAL, prior=lambda: dist.Laplace(0.1, 0.8))),
    "prior-log-normal": Case(mlp(NORMAL, prior=lambda: dist.LogNormal(-1.0, 0.5))),
    "prior-half-normal": Case(mlp(NORMAL, prior=lambda: dist.HalfNormal(0.5))),
    "prior-gamma": Case(mlp(NORMAL, prior=lambda: dist.Gamma(2.0, 4.0))),
    "prior-student-t": Case(mlp(NORMAL, prior=lambda: dist.StudentT(4.0, 0.0, 1.0))),
    "prior-uniform": Case(mlp(NORMAL, prior=lambda: dist.Uniform(-2.0, 3.0))),
    "prior-frozen": Case(mlp(NORMAL, prior=lambda: dist.Normal(0, 1).expand([1]))),
    "prior-mixed": Case(
        mlp(
            NORMAL,
            prior=lambda: {
                "layers.0.weight": priors.Normal(2.0, loc=0.5),
                "*.weight": dist.Laplace(0.0, 1.0),
                "*": priors.Normal(),
            },
        )
    ),
    "flat": Case(mlp(NORMAL, prior=priors.Flat)),
    "bayesian-linear": Case(lambda: models.bayesian(linear_net())),
    "bayesian-partial": Case(lambda: models.bayesian(linear_net(), {"2.*": priors.Normal()})),
    "bayesian-conv": Case(
        lambda: models.bayesian(conv_net(), likelihood=likelihoods.Categorical(3)), "classes"
    ),
    "bayesian-tied": Case(lambda: models.bayesian(TiedNet())),
    "bayesian-gru-cell": Case(lambda: models.bayesian(RecurrentNet())),
    "bayesian-transformer": Case(lambda: models.bayesian(transformer_net())),
    "user-module": Case(UserModel),
    "plain-function": Case(lambda: plain_function),
}


def data(target: int | str = 1, num_rows: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs ``[N, 3]`` and a target of a kind, in the default dtype."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, 3, generator=generator)
    if target == "binary":
        return x, torch.arange(num_rows) % 2
    if target == "classes":
        return x, torch.arange(num_rows) % 3
    assert isinstance(target, int)
    return x, torch.randn(num_rows, target, generator=generator)
