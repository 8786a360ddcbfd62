"""Any Pyro distribution as a prior; which prior belongs to which name; priors that move."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_bnn import models, priors
from pyro_bnn.errors import OptionError, ShapeError, SiteError
from pyro_bnn.priors import Prior, PriorModule, as_prior, match_priors

SHAPE = torch.Size([5, 3])

DISTRIBUTIONS: dict[str, Any] = {
    "Normal": lambda: dist.Normal(0.5, 2.0),
    "Laplace": lambda: dist.Laplace(torch.tensor(0.0), torch.tensor(0.7)),
    "LogNormal": lambda: dist.LogNormal(-1.0, 0.5),
    "HalfNormal": lambda: dist.HalfNormal(0.3),
    "Gamma": lambda: dist.Gamma(2.0, 4.0),
    "StudentT": lambda: dist.StudentT(4.0, 0.0, 1.5),
    "Uniform": lambda: dist.Uniform(-1.0, 2.0),
    "expanded": lambda: dist.Normal(0, 1).expand([1]),
    "columns": lambda: dist.Normal(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])),
    "affine": lambda: dist.TransformedDistribution(
        dist.Normal(torch.tensor(0.0), torch.tensor(1.0)),
        [torch.distributions.AffineTransform(torch.tensor(2.0), torch.tensor(3.0))],
    ),
}


def plain(distribution: Any) -> Prior:
    """A Pyro distribution as a prior: one sample site."""
    prior = as_prior(distribution)
    assert isinstance(prior, Prior)
    return prior


every = pytest.mark.parametrize("name", DISTRIBUTIONS)


@every
def test_a_distribution_holds_for_every_entry(name: str) -> None:
    univariate = DISTRIBUTIONS[name]()
    prior = plain(univariate).distribution(SHAPE)
    assert (prior.batch_shape, prior.event_shape) == (torch.Size([]), SHAPE)
    value = prior.sample()
    assert value.shape == SHAPE
    assert_close(prior.log_prob(value), univariate.log_prob(value).sum())


@every
def test_draws_have_the_distribution_they_claim(name: str) -> None:
    """Kolmogorov-Smirnov: sqrt(n) times the distance exceeds 2.7 once in a million."""
    torch.manual_seed(0)
    univariate = DISTRIBUTIONS[name]()
    draws = plain(univariate).distribution(torch.Size([4_000, 3])).sample()
    if name == "StudentT":  # torch has no cdf of it: compare with draws of its definition
        chi2 = torch.distributions.Chi2(4.0).sample(torch.Size([4_000, 3]))
        other = (1.5 * torch.randn(4_000, 3) * (4.0 / chi2).sqrt()).flatten().sort().values
        ranks = torch.searchsorted(other, draws.flatten().sort().values) / other.numel()
        size = draws.numel() / 2
    else:
        cdf = univariate.base_dist.cdf if name in ("LogNormal", "affine") else univariate.cdf
        values = {"LogNormal": lambda z: z.log(), "affine": lambda z: (z - 2) / 3}.get(
            name, lambda z: z
        )(draws)
        ranks = cdf(values).flatten().sort().values
        size = draws.numel()
    grid = torch.arange(1, len(ranks) + 1) / len(ranks)
    assert float((ranks - grid).abs().max()) * size**0.5 < 2.7


def test_a_distribution_over_the_whole_weight_is_taken_as_it_is() -> None:
    whole = dist.Normal(torch.arange(15.0).reshape(5, 3), 1.0).to_event(2)
    assert_close(plain(whole).distribution(SHAPE).mean, whole.mean)


@pytest.mark.parametrize("shape", [SHAPE, torch.Size([15])])
def test_a_distribution_over_another_shape_is_refused(shape: torch.Size) -> None:
    fn = dist.Normal(torch.zeros(4), 1.0).to_event(1)
    with pytest.raises(
        ShapeError, match=r"a prior of event shape \(4,\) does not fit a weight of shape \(\d+,"
    ):
        plain(fn).distribution(shape)


def test_a_batch_that_does_not_broadcast_is_refused() -> None:
    with pytest.raises(
        ShapeError,
        match=r"a prior of batch shape \(4,\) does not broadcast to a weight of shape \(5, 3\)",
    ):
        plain(dist.Normal(torch.zeros(4), 1.0)).distribution(SHAPE)


def test_what_is_no_prior_is_refused() -> None:
    with pytest.raises(
        OptionError,
        match=r"a prior is a pyro_bnn.priors object, with distribution\(shape\) or "
        r"hierarchy\(shape\), or a pyro.distributions distribution, but "
        r"Normal\(loc: 0.0, scale: 1.0\) is a torch.distributions.normal.Normal; write for "
        r"example pyro.distributions.Laplace",
    ):
        as_prior(torch.distributions.Normal(0.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"but 0.1 is a builtins.float; write"):
        as_prior(0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", [priors.Normal, priors.Flat, dist.Normal])
def test_a_class_in_place_of_an_object_is_refused(cls: Any) -> None:
    with pytest.raises(
        OptionError, match=rf"a prior is an object, not the class {cls.__name__}: write"
    ):
        as_prior(cls)


def test_objects_of_the_package_are_priors() -> None:
    for prior in (priors.Normal(), priors.Flat()):
        assert isinstance(prior, Prior)
        assert as_prior(prior) is prior


# --- names ---------------------------------------------------------------------------------------


def test_one_prior_is_for_all_names() -> None:
    prior = priors.Normal()
    assert match_priors(prior, ["a", "b"]) == {"a": prior, "b": prior}


def test_the_first_pattern_that_matches_wins() -> None:
    first, second, last = priors.Normal(1.0), priors.Normal(2.0), priors.Normal(3.0)
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    matched = match_priors({"0.weight": first, "*.weight": second, "0.*": last}, names)
    assert matched == {"0.weight": first, "0.bias": last, "2.weight": second}


def test_the_names_of_a_network_keep_their_order_whatever_that_of_the_patterns() -> None:
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    patterns = {"2.*": priors.Normal(1.0), "*.bias": priors.Normal(2.0), "*": priors.Normal(3.0)}
    assert list(match_priors(patterns, names)) == names


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    patterns = {"*.weight": priors.Normal(), "head.*": priors.Normal()}
    with pytest.raises(
        SiteError, match=r"the prior pattern 'head\.\*' matches no parameter; there are 0.weight, 0"
    ):
        match_priors(patterns, ["0.weight", "0.bias"])


def test_names_are_matched_in_their_case() -> None:
    with pytest.raises(SiteError, match="matches no parameter"):
        match_priors({"Weight": priors.Normal()}, ["weight"])


# --- movement ------------------------------------------------------------------------------------


@every
def test_a_prior_module_moves_with_its_parent(name: str) -> None:
    module = PriorModule(plain(DISTRIBUTIONS[name]()).distribution(SHAPE))
    parent = nn.ModuleDict({"prior": module}).double()
    moved = module()
    value = moved.sample()
    assert value.dtype == torch.float64
    assert moved.log_prob(value).dtype == torch.float64
    fresh = plain(DISTRIBUTIONS[name]()).distribution(SHAPE)
    assert_close(moved.log_prob(value).float(), fresh.log_prob(value.float()), rtol=1e-4, atol=1e-4)
    parent.to("meta")
    assert module().sample().device.type == "meta"


def test_moving_leaves_the_users_distribution_alone() -> None:
    user = dist.Normal(torch.tensor(0.0), torch.tensor(1.0))
    module = PriorModule(plain(user).distribution(SHAPE)).double()
    assert user.loc.dtype == torch.float32
    assert module().mean.dtype == torch.float64


def test_copies_of_a_prior_module_are_apart() -> None:
    module = PriorModule(
        plain(dist.Normal(torch.tensor(0.0), torch.tensor(1.0))).distribution(SHAPE)
    )
    other = copy.deepcopy(module)
    other().base_dist.loc.untyped_storage().copy_(torch.tensor(5.0).untyped_storage())
    assert_close(module().mean, torch.zeros(SHAPE))
    assert_close(other().mean, torch.full(SHAPE, 5.0))


def test_two_weights_of_one_prior_do_not_share_tensors() -> None:
    prior = plain(dist.Normal(torch.tensor(0.0), torch.tensor(1.0)))
    first, second = prior.distribution(SHAPE), prior.distribution(SHAPE)
    first.base_dist.loc.untyped_storage().copy_(torch.tensor(5.0).untyped_storage())
    assert_close(second.mean, torch.zeros(SHAPE))


def test_a_pattern_in_the_shadow_of_earlier_ones_is_refused() -> None:
    patterns = {"*": priors.Normal(), "a.weight": priors.Normal(3.0)}
    message = r"pattern 'a\.weight' has no effect: a\.weight match the earlier '\*'; put the narr"
    with pytest.raises(SiteError, match=message):
        match_priors(patterns, ["a.weight", "a.bias"])
    matched = match_priors(dict(reversed(patterns.items())), ["a.weight", "a.bias"])
    assert matched == {"a.weight": priors.Normal(3.0), "a.bias": priors.Normal()}


def test_patterns_respect_case_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.normcase", str.lower)  # as on Windows
    with pytest.raises(SiteError, match=r"'A\.weight' matches no parameter"):
        match_priors({"A.weight": priors.Normal()}, ["a.weight"])


def test_models_share_no_prior_function_that_pyro_renames() -> None:
    first, second = models.MLP(2), models.MLP(2)
    for model in (first, second):
        copied = pickle.loads(pickle.dumps(model.layers[0]))
        assert copied.weight.shape == (50, 2)
    shared = [model.layers[0].__dict__["_pyro_samples"]["weight"] for model in (first, second)]
    assert shared[0] is not shared[1]
    assert not hasattr(shared[0], "__name__")
