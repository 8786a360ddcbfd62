"""BatchEnsemble: a mixture of deltas, K networks and nothing in between."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import likelihoods, priors, registry
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides import AutoRank1Mixture, BatchEnsemble
from pyro_bnn.models import MLP, Rank1MLP
from pyro_bnn.program import Batch
from tests.guides.test_rank1_mixture import by_hand, network, rows
from tests.laws import one


def fit(guide: Any, **options: Any) -> Any:
    engine = bnn.SVI(functools.partial(guide, **options), num_steps=30, compile=False)
    return engine.run(network(), rows(), progress=False)


@pytest.fixture(scope="module")
def posterior() -> Any:
    return fit(BatchEnsemble, num_components=3)


def test_it_is_the_mixture_of_deltas(posterior: Any) -> None:
    same = fit(AutoRank1Mixture, num_components=3, family="delta")
    assert_close(posterior.draws(9), same.draws(9), rtol=0, atol=0)
    assert posterior.losses.tolist() == same.losses.tolist()


def members(posterior: Any, x: Tensor) -> Tensor:
    """The functions of the three networks ``[3, N, 1]``, of materialised weights."""
    loc, biases = posterior.guide.loc.detach(), posterior.guide.biases.detach()
    return torch.stack([by_hand(posterior, loc[k], biases[k], x) for k in range(3)])


def test_its_draws_are_k_networks_of_materialised_weights(posterior: Any) -> None:
    x, _ = rows()
    f: Tensor = posterior.function_draws(x, 30)  # in rounds of three
    expected = members(posterior, x)
    places = [
        next(k for k in range(3) if torch.allclose(value, expected[k], rtol=1e-12, atol=1e-12))
        for value in f
    ]
    assert [sorted(places[i : i + 3]) for i in range(0, 30, 3)] == [[0, 1, 2]] * 10
    assert (posterior.num_atoms, posterior.count(None)) == (3, 999)


def test_a_prediction_weighs_the_k_functions_alike(posterior: Any) -> None:
    """The mean over members, without Monte Carlo error, and p(y) their mean density."""
    x, y = rows()
    f = members(posterior, x)
    prediction = posterior.predict(x)
    assert len(prediction.draws) == 999
    assert len(prediction.draws.unique(dim=0)) == 999  # the noise of y is drawn for each
    assert_close(prediction.mean, f.mean(0), rtol=1e-12, atol=1e-12)
    assert_close(prediction.sd_epistemic, f.std(0, correction=0), rtol=1e-9, atol=1e-12)
    sites = posterior.program.constrain(posterior.guide.loc.detach())
    sd = sites["likelihood.scale"].reshape(3, 1, 1)
    assert_close(prediction.sd_aleatoric, sd.square().mean(0).sqrt().expand(12, 1))
    density = torch.distributions.Normal(f, sd).log_prob(y)[..., 0]  # [3, N]
    expected = density.logsumexp(0) - torch.tensor(3.0, dtype=f.dtype).log()
    assert_close(prediction.log_prob(y), expected, rtol=1e-9, atol=1e-9)


def test_the_predictive_is_no_worse_than_the_average_member(posterior: Any) -> None:
    x, y = rows()
    rows_of_draws = posterior.log_likelihood((x, y), 60)  # [S, N]
    log_mean = rows_of_draws.logsumexp(0) - torch.tensor(60.0).log()
    assert bool((log_mean >= rows_of_draws.mean(0) - 1e-12).all())  # Jensen


def test_the_objective_is_the_mean_over_members_of_the_log_joint() -> None:
    """By hand: N/B times the log likelihood of the rows, and the log prior once."""
    prior = priors.Normal(loc=1.0, scale=0.25)
    model = network(prior=prior, likelihood=likelihoods.Normal(0.5))
    posterior: Any = bnn.SVI(BatchEnsemble, num_steps=5, compile=False).run(
        model, rows(), progress=False
    )
    guide, program = posterior.guide, posterior.program
    batch = Batch(*(part[:4] for part in rows()))  # of 12
    params = {f"guide.{k}": v.detach() for k, v in guide.named_parameters()}
    params |= {f"model.{k}": v for k, v in posterior.params.items()}
    terms = program.elbo(guide, params, guide.draw_noise(1), batch)
    loc = guide.loc.detach()  # the factors [4, 12]: all that is latent
    normal = torch.distributions.Normal
    log_prior = normal(one(1.0), one(0.25)).log_prob(loc).sum(-1)
    f = torch.stack([by_hand(posterior, loc[k], guide.biases[k], batch.x) for k in range(4)])
    likelihood = 3 * normal(f, one(0.5)).log_prob(batch.y).flatten(1).sum(-1)
    assert_close(terms.expected_log_likelihood, likelihood.mean(), rtol=1e-10, atol=1e-10)
    assert_close(terms.kl, -log_prior.mean(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("num_components", [1, 2, 3, 10])
def test_quantiles_are_atoms_by_the_inverse_of_the_distribution(num_components: int) -> None:
    """The least atom at or below which lies a share q; in float32 0.1 is no exact tenth."""
    guide = BatchEnsemble(network(), num_components=num_components)
    guide.setup(rows()[0])
    levels = [0.0, 0.05, 0.1, 0.3, 0.5, 0.51, 0.7, 0.95, 1.0]
    for like in (guide.double(), guide.float()):
        site = like.quantiles(levels)["layers.0.r"]
        atoms = like.loc[:, 3:7].detach().numpy()  # s has three entries
        expected = np.quantile(atoms, levels, axis=0, method="inverted_cdf")
        np.testing.assert_array_equal(site.numpy(), expected)


def test_it_has_no_density_and_says_so(posterior: Any) -> None:
    assert (BatchEnsemble.has_log_prob, BatchEnsemble.kl_kind) == (False, "none")
    assert posterior.elbo_kind == "none"
    with pytest.raises(SiteError, match=r"has no density for the ELBO of pyro.infer.SVI"):
        posterior.guide()


def test_it_is_saved_with_its_options(posterior: Any, tmp_path: Any) -> None:
    posterior.save(tmp_path / "fit.pt")
    read = bnn.Posterior.load(tmp_path / "fit.pt", network())
    assert type(read.guide) is BatchEnsemble  # type: ignore[attr-defined]  # of a guide
    assert_close(read.draws(5), posterior.draws(5), rtol=0, atol=0)
    assert posterior.guide.options() == {
        "num_components": 3,
        "start": "near_one",
        "init_spread": 0.1,
    }


def test_random_signs_and_what_is_refused() -> None:
    guide = BatchEnsemble(network(), num_components=40, start="random_sign", init_spread=0.0)
    guide.setup(rows()[0][:1])
    factors = guide.loc.detach()[:, :12]
    assert set(factors.flatten().tolist()) == {-1.0, 1.0}
    with pytest.raises(OptionError, match="num_components is an integer of at least 1, not 0"):
        BatchEnsemble(network(), num_components=0)
    with pytest.raises(SiteError, match=r"and MLP has none: use .*Rank1MLP or Rank1ResN"):
        BatchEnsemble(MLP(3))


def test_it_has_a_name() -> None:
    assert registry.lookup("guide", "batch-ensemble") is BatchEnsemble
    assert BatchEnsemble.needs_model == Rank1MLP.__name__
    assert BatchEnsemble.suits_models == ("Rank1ResNet",)
