"""Plain models whose discrete sites are summed out, from NUTS to files, against sums by hand."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, config_enumerate
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.errors import SiteError
from pyro_bnn.posterior import CallDraws, CallPosterior
from tests.plain_pyro import default_dtype

Y = torch.tensor([-0.8, 0.1, 0.5, 3.1, 2.2, -0.3, 1.4, 2.9], dtype=torch.float64)
SERIES = torch.tensor([0.2, 0.9, 1.1, 1.7, 0.8, 0.4], dtype=torch.float64)


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64):
        yield


@config_enumerate
def mixture(y: Tensor | None, num_rows: int) -> None:
    """Rows around 0, and a share of rows around an unknown level."""
    share = pyro.sample("share", dist.Beta(2.0, 2.0))
    level = pyro.sample("level", dist.Normal(0.0, 3.0))
    with pyro.plate("rows", num_rows):
        kind = pyro.sample("kind", dist.Bernoulli(share))
        centre = pyro.deterministic("centre", level * kind)
        pyro.sample("y", dist.Normal(centre, 0.7), obs=y)


def terms(share: Tensor, level: Tensor) -> Tensor:
    """Log p(kind, y_n) ``[..., N, 2]``."""
    kinds = torch.stack([1 - share, share], -1).log()[..., None, :]
    centres = torch.stack([torch.zeros_like(level), level], -1)[..., None, :]
    log_terms: Tensor = kinds + dist.Normal(centres, 0.7).log_prob(Y[:, None])
    return log_terms


def log_density(share: Tensor, level: Tensor) -> Tensor:
    """Log p(share, level, y), without a Jacobian."""
    prior = dist.Beta(2.0, 2.0).log_prob(share) + dist.Normal(0.0, 3.0).log_prob(level)
    density: Tensor = prior + terms(share, level).logsumexp(-1).sum(-1)
    return density


def by_quadrature() -> dict[str, tuple[Tensor, Tensor]]:
    """Means and sds of the continuous sites, and of the kind and centre of each row."""
    share, level = torch.meshgrid(
        torch.linspace(0.0, 1.0, 402)[1:-1], torch.linspace(-12.0, 12.0, 1_201), indexing="ij"
    )
    weights = log_density(share, level).flatten().softmax(0)
    kind = terms(share, level).softmax(-1)[..., 1]
    functions = {
        "share": (share, share**2),
        "level": (level, level**2),
        "kind": (kind, kind),
        "centre": (level[..., None] * kind, level[..., None] ** 2 * kind),
    }
    moments = {}
    for name, (first, second) in functions.items():
        mean, square = (weights @ value.reshape(len(weights), -1) for value in (first, second))
        moments[name] = mean, (square - mean**2).sqrt()
    return moments


def run(model: Any, call: Call, num_samples: int, warmup_steps: int = 20) -> CallDraws:
    nuts = bnn.NUTS(num_chains=2, warmup_steps=warmup_steps, num_samples=num_samples, compile=False)
    posterior = nuts.run(model, call, progress=False)
    assert isinstance(posterior, CallDraws)
    return posterior


@pytest.fixture(scope="module")
def of_mixture() -> CallDraws:
    with default_dtype(torch.float64):
        return run(mixture, Call(Y, len(Y)), 750, 200)


def test_draws_of_all_sites_have_the_moments_of_quadrature(of_mixture: CallDraws) -> None:
    own: dict[str, Any] = {"num_samples": 1_500, "group_by_chain": True}
    draws = of_mixture.sample(**own)
    assert draws.keys() == {"share", "level"}  # centre is computed of a discrete site
    assert of_mixture.discrete(**own)["kind"].shape == (2, 750, 8)
    everything = of_mixture.to_arviz(1_500)["posterior"]
    predicted = of_mixture.predictive(**own)
    assert predicted.keys() == {"centre", "y"}
    found = {name: torch.as_tensor(everything[name].values) for name in ("share", "level", "kind")}
    found["centre"] = predicted["centre"]
    assert_close(found["kind"], of_mixture.discrete(**own)["kind"])
    assert_close(found["centre"], draws["level"][..., None] * found["kind"])
    moments = by_quadrature()
    ess = float(of_mixture.summary(1_500)["ess_bulk"].min())
    assert ess > 300
    for name, (mean, sd) in moments.items():
        error = (found[name].reshape(1_500, -1).mean(0) - mean).abs()
        assert (error < 5 * sd / ess**0.5).all(), name
    noise = predicted["y"] - found["centre"]
    assert float((noise.std() / 0.7 - 1).abs()) < 5 / (2 * noise.numel()) ** 0.5


def test_densities_are_those_with_the_sum_by_hand(of_mixture: CallDraws) -> None:
    draws = of_mixture.sample(50)
    jacobian = draws["share"].log() + (1 - draws["share"]).log()
    expected = log_density(draws["share"], draws["level"]) + jacobian
    assert_close(of_mixture.log_joint(50), expected)
    rows = terms(draws["share"], draws["level"]).logsumexp(-1)
    assert_close(of_mixture.log_likelihood(50), {"y": rows})


def test_a_tree_names_the_rows_of_discrete_sites(of_mixture: CallDraws) -> None:
    tree = of_mixture.to_arviz(100, predictions=Call(None, 3))
    assert tree["posterior/kind"].dims == ("chain", "draw", "rows")
    assert tree["log_likelihood/y"].shape == (2, 50, 8)
    assert set(tree["posterior_predictive"].data_vars) == {"centre", "y"}
    assert tree["predictions/y"].shape == (2, 50, 3)


def test_discrete_sites_of_other_rows_are_drawn_given_the_continuous_ones(
    of_mixture: CallDraws,
) -> None:
    share = of_mixture.sample(600)["share"]
    kinds = of_mixture.predictive(Call(None, 200), 600)["kind"]
    assert kinds.shape == (600, 200)
    error = (share * (1 - share) / 200).sqrt()
    assert ((kinds.mean(-1) - share).abs() < 5 * error).all()
    same = of_mixture.predictive(Call(None, 8), 100)
    assert_close(same["centre"], of_mixture.predictive(None, 100)["centre"])


def test_files_have_the_same_draws(of_mixture: CallDraws, tmp_path: Path) -> None:
    file = tmp_path / "mixture.posterior"
    of_mixture.save(file)
    read = CallPosterior.load(file, mixture)
    for draw in ("sample", "discrete", "predictive", "log_likelihood"):
        expected = getattr(of_mixture, draw)(num_samples=40)
        assert_close(getattr(read, draw)(num_samples=40), expected, rtol=0, atol=0)

    @config_enumerate
    def other_kinds(y: Tensor, num_rows: int) -> None:
        mixture(y, num_rows)
        pyro.sample("more", dist.Bernoulli(0.1), obs=torch.tensor(1.0))

    with pytest.raises(SiteError, match="not its densities"):
        CallPosterior.load(file, other_kinds)


@config_enumerate
def markov(y: Tensor) -> None:
    """A hidden Markov model of two states."""
    with pyro.plate("states", 2):
        stay = pyro.sample("stay", dist.Beta(4.0, 2.0))
        loc = pyro.sample("loc", dist.Normal(torch.tensor([0.0, 2.0]), 0.5))
    state: Any = torch.tensor(0)
    for t in pyro.markov(range(len(y))):
        moved = torch.where(state == 1, stay[1], 1 - stay[0])
        state = pyro.sample(f"x_{t}", dist.Bernoulli(moved)).long()
        pyro.sample(f"y_{t}", dist.Normal(loc[state], 0.8), obs=y[t])


def forward_and_backward(values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Log p(y | sites) ``[]``, and p(x_t = 1 | y, sites) ``[T]``."""
    stay, emissions = values["stay"], dist.Normal(values["loc"], 0.8).log_prob(SERIES[:, None])
    moves = torch.stack([stay[0], 1 - stay[0], 1 - stay[1], stay[1]]).reshape(2, 2).log()
    forward, backward = [moves[0] + emissions[0]], [torch.zeros(2)]
    for row in emissions[1:]:
        forward.append((forward[-1][:, None] + moves).logsumexp(0) + row)
    for row in reversed(emissions[1:]):
        backward.append((moves + row + backward[-1]).logsumexp(1))
    both = torch.stack(forward) + torch.stack(backward[::-1])
    return forward[-1].logsumexp(0), both.softmax(-1)[:, 1]


@pytest.fixture(scope="module")
def of_markov() -> CallDraws:
    with default_dtype(torch.float64):
        return run(markov, Call(SERIES), 300, 60)


def test_a_hidden_markov_model_has_the_density_of_the_forward_algorithm(
    of_markov: CallDraws,
) -> None:
    draws = of_markov.sample(30)
    rows = [{name: value[i] for name, value in draws.items()} for i in range(30)]
    likelihood = torch.stack([forward_and_backward(values)[0] for values in rows])
    stay, loc = draws["stay"], draws["loc"]
    prior = dist.Beta(4.0, 2.0).log_prob(stay) + stay.log() + (1 - stay).log()
    prior = prior + dist.Normal(torch.tensor([0.0, 2.0]), 0.5).log_prob(loc)
    assert_close(of_markov.log_joint(30), likelihood + prior.sum(-1))


def test_states_are_drawn_with_the_smoothed_probabilities(of_markov: CallDraws) -> None:
    draws = of_markov.sample()
    rows = [{name: value[i] for name, value in draws.items()} for i in range(600)]
    expected = torch.stack([forward_and_backward(values)[1] for values in rows])
    states = torch.stack([of_markov.discrete()[f"x_{t}"] for t in range(6)], -1)
    error = (expected * (1 - expected)).sum(0).sqrt() / 600
    assert ((states.mean(0) - expected.mean(0)).abs() < 5 * error).all()
    inside = (states.mean(0) > 0.02) & (states.mean(0) < 0.98)
    assert int(inside.sum()) >= 2


def test_a_tree_tells_which_sites_have_no_log_likelihood(
    of_markov: CallDraws, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pyro_bnn"):
        tree = of_markov.to_arviz(20)
    assert "log_likelihood is without y_0, y_1, y_2, y_3, y_4, y_5: discrete" in caplog.text
    assert "log_likelihood" not in tree.children
    assert of_markov.log_likelihood(20) == {}
    assert tree["posterior_predictive/y_3"].shape == (2, 10)
    assert tree["posterior/x_3"].shape == (2, 10)


def test_a_comparison_tells_that_steps_of_a_chain_cannot_be_left_out(of_markov: CallDraws) -> None:
    other = run(markov, Call(SERIES), 20)
    found = bnn.compare({"long": of_markov, "short": other}, site="y_0", reference="long")
    assert set(found.distances.reset_index()["site"]) == {"stay", "loc"}
    told = "discrete sites tie 'y_0' to other values, so that it has no density alone"
    assert any(told in verdict for verdict in found.verdicts)


@config_enumerate
def pyros_mixture(data: Tensor) -> None:
    """The Gaussian mixture of Pyro's tutorial."""
    weights = pyro.sample("weights", dist.Dirichlet(0.5 * torch.ones(2)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(data)):
        assignment = pyro.sample("assignment", dist.Categorical(weights))
        pyro.sample("obs", dist.Normal(locs[assignment], scale), obs=data)


@config_enumerate
def pyros_hmm(sequences: Tensor, lengths: Tensor) -> None:
    """``model_1`` of Pyro's example hmm.py, with two hidden states and two tones."""
    num_sequences, max_length, data_dim = sequences.shape
    probs_x = pyro.sample("probs_x", dist.Dirichlet(0.9 * torch.eye(2) + 0.1).to_event(1))
    probs_y = pyro.sample("probs_y", dist.Beta(0.6, 0.9).expand([2, data_dim]).to_event(2))
    tones_plate = pyro.plate("tones", data_dim, dim=-1)
    with pyro.plate("sequences", num_sequences, dim=-2):
        x: Any = 0
        for t in pyro.markov(range(max_length)):
            mask: Any = (t < lengths).unsqueeze(-1)
            with poutine.mask(mask=mask):
                x = pyro.sample(f"x_{t}", dist.Categorical(probs_x[x]))
                with tones_plate:
                    pyro.sample(
                        f"y_{t}", dist.Bernoulli(probs_y[x.squeeze(-1)]), obs=sequences[:, t]
                    )


TONES = torch.tensor([[[1.0, 0], [1, 0], [0, 1]], [[0, 1], [0, 1], [0, 0]]], dtype=torch.float64)
EXAMPLES = {
    "mixture": (
        pyros_mixture,
        Call(torch.tensor([0.0, 1, 10, 11, 12], dtype=torch.float64)),
        {"assignment": (5,)},
    ),
    "hmm": (
        pyros_hmm,
        Call(TONES, torch.tensor([3, 2])),
        {f"x_{t}": (2, 1) for t in range(3)},
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_pyros_own_examples_run(name: str) -> None:
    model, call, shapes = EXAMPLES[name]
    posterior = run(model, call, 20)
    draws = posterior.sample()
    assert all(value.isfinite().all() for value in draws.values())
    assert {k: tuple(v.shape[1:]) for k, v in posterior.discrete(20).items()} == shapes
    posterior.predictive(num_samples=5)
    posterior.to_arviz(20)


@pytest.mark.parametrize("engine", [bnn.HMC, bnn.MAMS, bnn.MCLMC])
def test_other_samplers_take_the_same_density(engine: Any) -> None:
    posterior = engine(num_chains=2, warmup_steps=50, num_samples=20, compile=False).run(
        mixture, Call(Y, len(Y)), progress=False
    )
    draws = posterior.sample()
    jacobian = draws["share"].log() + (1 - draws["share"]).log()
    expected = log_density(draws["share"], draws["level"]) + jacobian
    assert_close(posterior.log_joint(), expected)


def log_evidence() -> Tensor:
    """Log p(y) by quadrature."""
    share, level = torch.meshgrid(
        torch.linspace(0.0, 1.0, 402)[1:-1], torch.linspace(-12.0, 12.0, 1_201), indexing="ij"
    )
    cell = torch.tensor(1 / 401 * 24 / 1_200)
    return log_density(share, level).flatten().logsumexp(0) + cell.log()


def test_smc_finds_the_evidence_and_svi_a_bound_of_it() -> None:
    particles: Any = bnn.SMC().run(mixture, Call(Y, len(Y)), progress=False)
    error = abs(particles.log_evidence - float(log_evidence()))
    assert error < 5 * particles.log_evidence_error < 0.5
    svi = bnn.SVI(bnn.guides.AutoMultivariateNormal, num_steps=1_500)
    posterior = svi.run(mixture, Call(Y, len(Y)), progress=False)
    elbo, of_elbo = posterior.elbo()
    assert float(log_evidence()) - 0.3 < elbo < float(log_evidence()) + 5 * of_elbo
    assert posterior.discrete(10)["kind"].shape == (10, 8)


def test_smc_refuses_a_mixed_prior_whose_kinds_are_masked() -> None:
    """Draws of the prior take the kinds that the mask hides, and the density does not."""

    @config_enumerate
    def model(y: Tensor) -> None:
        with poutine.mask(mask=cast("Any", Y[0] > 10)):
            on = pyro.sample("on", dist.Bernoulli(0.9))
        w = pyro.sample("w", dist.Normal(3.0 * on, 1.0))
        pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    with pytest.raises(SiteError, match=r"the density of on is another one under poutine\.scale"):
        bnn.SMC().run(model, Call(Y[0]), progress=False)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_run_of_stock_pyro_is_a_posterior_with_discrete_draws(name: str) -> None:
    """Pyro counts the states that a mask hides, as of the shorter sequence, and still fits."""
    model, call, shapes = EXAMPLES[name]
    mcmc = MCMC(NUTS(model), num_samples=5, warmup_steps=5, disable_progbar=True)
    mcmc.run(*call.args)
    posterior = bnn.from_mcmc(mcmc, model, call)
    assert {k: tuple(v.shape[1:]) for k, v in posterior.discrete().items()} == shapes


def test_a_discrete_site_that_is_not_marked_is_refused_with_the_way_out() -> None:
    def unmarked(y: Tensor) -> None:
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        on = pyro.sample("on", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(level + on, 1.0), obs=y)

    message = "'on' is discrete .Bernoulli.*@pyro.infer.config_enumerate.*enumerate.: .parallel"
    with pytest.raises(SiteError, match=message):
        bnn.NUTS().run(unmarked, Call(Y[0]), progress=False)
    posterior = run(config_enumerate(unmarked), Call(Y[0]), 20)
    assert posterior.discrete(10)["on"].shape == (10,)


def test_a_model_without_discrete_sites_has_no_discrete_draws() -> None:
    def plain(y: Tensor) -> None:
        pyro.sample("y", dist.Normal(pyro.sample("w", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    assert run(plain, Call(Y[0]), 20).discrete() == {}
