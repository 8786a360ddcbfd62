"""``docs/howto/not_supported.md``, models on a ``Call``: kinds are refused, their ways out run.

Words in backquotes of a row's second column stand in what was said, those of the third in the code
of the case.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal
from pyro.infer.reparam import ProjectedNormalReparam
from pyro.nn import PyroModule
from pyro.optim import Adam  # type: ignore[attr-defined]
from torch import Tensor, nn

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.errors import BNNError
from pyro_bnn.program.enumerated import joint_of
from tests.test_not_supported import PAGE, without_blanks

Y = torch.tensor([0.5, 1.0, -1.0, 2.0, 0.3])
Case = Callable[["Refused"], None]
CASES: dict[str, Case] = {}


class Refused:
    """What was said of models that are refused."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, model: Any, *args: Any, engine: Any = None) -> None:
        """This model is, on a ``Call`` of these arguments; default Y."""
        with pytest.raises(BNNError) as caught:
            runs(model, *args, engine=engine)
        self.text += f"{caught.value}\n"


def runs(model: Any, *args: Any, engine: Any = None) -> None:
    """This model has a log density where each of its sites is above and below its start."""
    args = args or (Y,)
    if engine is not None:
        draws = engine.run(model, Call(*args), progress=False).sample(4)
        assert all(value.isfinite().all() for value in draws.values())
        return
    joint = joint_of(model, args)
    for sign in (1.0, -1.0):
        assert joint.log_joint(sign * torch.ones_like(joint.initial)).isfinite()


def row(kind: str) -> Callable[[Case], Case]:
    """The case of the row whose first column this is, without backquotes."""

    def registered(case: Case) -> Case:
        assert kind not in CASES
        CASES[kind] = case
        return case

    return registered


def rows_of_the_page() -> dict[str, tuple[str, str]]:
    """The second and third column by the first, without backquotes."""
    (section,) = re.findall(
        r"^## Any model on a `Call`$.*?^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    table = re.findall(r"^\| (.*?) \| (.*) \| (.*) \|$", section, re.MULTILINE)
    body = [cells for cells in table if cells[0] not in {"Kind of model", "---"}]
    return {kind.replace("`", ""): (said, instead) for kind, said, instead in body}


def test_every_row_has_a_case_and_every_case_a_row() -> None:
    assert sorted(CASES) == sorted(rows_of_the_page())


@pytest.mark.parametrize("kind", CASES)
def test_the_kind_is_refused_in_these_words_and_the_way_out_runs(kind: str) -> None:
    refused = Refused()
    CASES[kind](refused)
    said, instead = rows_of_the_page()[kind]
    assert [words for words in re.findall(r"`(.*?)`", said) if words not in refused.text] == []
    code = without_blanks(inspect.getsource(CASES[kind]))
    unused = [each for each in re.findall(r"`(.*?)`", instead) if without_blanks(each) not in code]
    assert unused == []


def mean() -> Tensor:
    return pyro.sample("mean", dist.Normal(0.0, 1.0))


def observe(f: Tensor, y: Any) -> None:
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(f, 1.0), obs=y)


def plain(y: Any) -> None:
    observe(mean(), y)


@row("a discrete site that is not marked")
def unmarked(refused: Refused) -> None:
    def model(y: Tensor) -> None:
        observe(mean() + pyro.sample("k", dist.Bernoulli(0.5)), y)

    refused(model)

    @config_enumerate
    def marked(y: Tensor) -> None:
        observe(mean() + pyro.sample("k", dist.Bernoulli(0.5)), y)

    runs(marked)


@row("a discrete site without a finite list of values, as dist.Poisson")
def without_a_list(refused: Refused) -> None:
    @config_enumerate
    def model(prior: Any, y: Tensor) -> None:
        observe(mean() + pyro.sample("k", prior), y)

    refused(model, dist.Poisson(3.0), Y)
    values = dist.Poisson(3.0).log_prob(torch.arange(20.0))
    runs(model, dist.Categorical(logits=values), Y)


@row("discrete entries that to_event joins")
def joined_entries(refused: Refused) -> None:
    def joined(y: Tensor) -> None:
        k = pyro.sample("k", dist.Bernoulli(0.5).expand([5]).to_event(1))
        observe(mean() + k, y)

    refused(config_enumerate(joined))

    @config_enumerate
    def in_a_plate(y: Tensor) -> None:
        m = mean()
        with pyro.plate("rows", len(y)):
            k = pyro.sample("k", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(m + k, 1.0), obs=y)

    assert callable(pyro.plate)
    runs(in_a_plate)


@row('infer={"enumerate": "sequential"}')
def sequential(refused: Refused) -> None:
    def model(y: Tensor) -> None:
        observe(mean() + pyro.sample("k", dist.Bernoulli(0.5)), y)

    refused(config_enumerate(model, default="sequential"))

    @config_enumerate
    def parallel(y: Tensor) -> None:
        model(y)

    runs(parallel)


@row("an if on a discrete site")
def branching(refused: Refused) -> None:
    @config_enumerate
    def model(y: Tensor) -> None:
        k, m = pyro.sample("k", dist.Bernoulli(0.5)), mean()
        observe(m if k > 0 else -m, y)

    refused(model)

    @config_enumerate
    def chosen(y: Tensor) -> None:
        k, m = pyro.sample("k", dist.Bernoulli(0.5)), mean()
        observe(torch.where(k > 0, m, -m), y)

    runs(chosen)


@row("discrete sites alone")
def discrete_alone(refused: Refused) -> None:
    @config_enumerate
    def model(y: Tensor) -> None:
        observe(pyro.sample("k", dist.Bernoulli(0.5)), y)

    refused(model)
    drawn: Any = pyro.infer.infer_discrete(model, first_available_dim=-2)
    assert poutine.trace(drawn).get_trace(Y).nodes["k"]["value"] in (0, 1)


@row("no latent site")
def no_latent_site(refused: Refused) -> None:
    refused(lambda y: observe(torch.tensor(0.0), y))
    assert callable(pyro.sample)
    runs(plain)


@row("sites that an if on another site leaves out")
def left_out(refused: Refused) -> None:
    def model(y: Tensor) -> None:
        name = "a" if mean() > 0 else "b"
        observe(pyro.sample(name, dist.Normal(0.0, 1.0)), y)

    refused(model)

    def all_sampled(y: Tensor) -> None:
        m = mean()
        a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
        observe(torch.where(m > 0, a, b), y)

    runs(all_sampled)


@row("a site whose shape depends on another")
def of_another_shape(refused: Refused) -> None:
    def model(y: Tensor) -> None:
        size = 2 if mean() > 0 else 3
        observe(pyro.sample("a", dist.Normal(torch.zeros(size), 1.0).to_event(1)).sum(), y)

    refused(model)

    def largest(y: Tensor) -> None:
        m = mean()
        a = pyro.sample("a", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        observe(torch.where(m > 0, a[:2].sum(), a.sum()), y)

    runs(largest)


@row("obs_mask=")
def masked(refused: Refused) -> None:
    is_seen: Any = Y > 0

    def model(y: Tensor) -> None:
        m = mean()
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(m, 1.0), obs=y, obs_mask=is_seen)

    refused(model)

    def by_a_handler(y: Tensor) -> None:
        with poutine.mask(mask=is_seen):
            plain(y)

    runs(by_a_handler)


@row("a latent site on a sphere")
def on_a_sphere(refused: Refused) -> None:
    def model(prior: Any, y: Tensor) -> None:
        observe(pyro.sample("v", prior)[0], y)

    pole = torch.tensor([3.0, 0.0, 0.0])
    refused(model, dist.VonMises3D(pole), Y)
    assert callable(dist.ProjectedNormal)
    mapped = poutine.reparam(model, {"v": ProjectedNormalReparam()})
    runs(mapped, dist.ProjectedNormal(pole), Y)


@row("a prior that is dist.Delta")
def point(refused: Refused) -> None:
    refused(lambda y: observe(mean() + pyro.sample("v", dist.Delta(torch.tensor(1.0))), y))
    runs(lambda y: observe(mean() + pyro.deterministic("v", torch.tensor(1.0)), y))


@row("random numbers beside the sites, as torch.randn")
def random_numbers(refused: Refused) -> None:
    refused(lambda y: observe(mean() + torch.randn(()), y))
    runs(lambda y: observe(mean() + pyro.sample("noise", dist.Normal(0.0, 1.0)), y))
    runs(lambda y, noise: observe(mean() + noise, y), Y, torch.randn(()))


@row("NumPy or SciPy on values of sites")
def by_numpy(refused: Refused) -> None:
    refused(lambda y: observe(torch.as_tensor(np.tanh(mean().numpy())), y))
    runs(lambda y: observe(torch.tanh(mean()), y))


@row("a loop that writes over what it has read")
def written_over(refused: Refused) -> None:
    def model(y: Tensor) -> None:
        m, level = mean(), torch.ones(len(y))
        for t in range(1, len(y)):
            level[t] = m * level[t - 1]
        observe(level, y)

    refused(model)

    def listed(y: Tensor) -> None:
        m, level = mean(), [torch.tensor(1.0)]
        for _ in range(1, len(y)):
            level.append(m * level[-1])
        observe(torch.stack(level), y)

    def copied(y: Tensor) -> None:
        m, level = mean(), torch.ones(len(y))
        for t in range(1, len(y)):
            level[t] = m * level[t - 1].clone()
        observe(level, y)

    runs(listed)
    runs(copied)


@row("totals of each row in dist.Multinomial")
def totals(refused: Refused) -> None:
    counts = torch.tensor([[1.0, 2.0], [3.0, 1.0]])

    def model(counts: Tensor) -> None:
        p = pyro.sample("p", dist.Dirichlet(torch.ones(2)))
        with pyro.plate("rows", 2):
            total: Any = counts.sum(-1)
            pyro.sample("counts", dist.Multinomial(total, p), obs=counts)

    refused(model, counts)

    def by_row(counts: Tensor) -> None:
        p = pyro.sample("p", dist.Dirichlet(torch.ones(2)))
        for i in pyro.plate("rows", 2):
            of_row = counts[int(i)]
            pyro.sample(f"counts_{i}", dist.Multinomial(int(of_row.sum()), p), obs=of_row)

    runs(by_row, counts)


@row("NumPy arrays and frames as obs=")
def arrays(refused: Refused) -> None:
    refused(plain, Y.numpy())
    runs(lambda y: plain(torch.as_tensor(y)), Y.numpy())


@row("arguments of another precision than torch's default")
def of_another_precision(refused: Refused) -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        observe(x @ w, y)

    x = torch.ones(5, 2, dtype=torch.float64)
    refused(model, x, Y)
    runs(model, x.to(torch.float32), Y)


@row("a value outside of its distribution's support")
def outside(refused: Refused) -> None:
    def model(cls: Any, y: Tensor) -> None:
        m = mean()
        with pyro.plate("rows", len(y)):
            pyro.sample("y", cls(m.exp(), 1.0), obs=y)

    refused(model, dist.Gamma, Y)
    runs(model, dist.Normal, Y)


@row("an observed value of another shape than its distribution")
def broadcast(refused: Refused) -> None:
    def model(f: Callable[[Tensor], Tensor], y: Tensor) -> None:
        pyro.sample("y", dist.Normal(f(mean() * torch.ones(5, 1)), 1.0), obs=y)

    refused(model, lambda f: f, Y)
    runs(model, lambda f: f.squeeze(-1), Y)


class Net(PyroModule):
    """A network as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)

    def forward(self, y: Tensor) -> None:
        observe(self.net(mean().reshape(1)).squeeze(-1), y)


@row("pyro.module in a function")
def module_statement(refused: Refused) -> None:
    net = nn.Linear(1, 1)

    def model(y: Tensor) -> None:
        pyro.module("net", net)
        observe(net(mean().reshape(1)).squeeze(-1), y)

    refused(model)
    assert callable(PyroModule)
    runs(Net())


@row("guides of stock Pyro in bnn.SVI")
def stock_guides(refused: Refused) -> None:
    refused(plain, engine=bnn.SVI(AutoNormal, num_steps=1))
    guide = AutoNormal(plain)
    svi = pyro.infer.SVI(plain, guide, Adam({"lr": 0.1}), Trace_ELBO())
    svi.step(Y)
    posterior = bnn.from_guide(guide, plain, Call(Y))
    assert posterior.sample(2)["mean"].isfinite().all()
    runs(plain, engine=bnn.SVI(bnn.guides.AutoNormal, num_steps=1))


SHORT: dict[str, Any] = {"num_samples": 4, "warmup_steps": 4, "num_chains": 1, "compile": False}


@row("bnn.SMC with a prior without draws")
def without_draws(refused: Refused) -> None:
    def flat(y: Tensor) -> None:
        observe(pyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ())), y)

    smc = bnn.SMC(num_particles=10, compile=False)
    refused(flat, engine=smc)
    runs(flat, engine=bnn.NUTS(**SHORT))
    runs(plain, engine=smc)


@row("bnn.MAMS with one latent number")
def one_number(refused: Refused) -> None:
    refused(plain, engine=bnn.MAMS(**SHORT))
    runs(plain, engine=bnn.NUTS(**SHORT))


@row("bnn.Laplace at its default curvature")
def curvatures(refused: Refused) -> None:
    refused(plain, engine=bnn.Laplace(num_steps=10))
    runs(plain, engine=bnn.Laplace(num_steps=10, curvature="hessian"))


@row("mini-batches of a model without a plate that takes some rows")
def mini_batches(refused: Refused) -> None:
    svi = bnn.SVI(bnn.guides.AutoNormal, num_steps=2, batch_size=2)
    refused(plain, engine=svi)

    def by_rows(y: Tensor) -> None:
        m = mean()
        with pyro.plate("rows", 5, subsample_size=2) as rows:
            pyro.sample("y", dist.Normal(m, 1.0), obs=y[rows])

    runs(by_rows, engine=svi)


@row("engines of networks, as bnn.SWAG")
def engines_of_networks(refused: Refused) -> None:
    refused(plain, engine=bnn.SWAG())
    runs(plain, engine=bnn.NUTS(**SHORT))
