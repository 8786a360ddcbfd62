"""Pruning by signal-to-noise where the guide's means and sds are set by hand."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from pyro_bnn import SVI, guides, likelihoods, models, priors
from pyro_bnn.diagnostics import prune, signal_to_noise
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.posterior import GuidePosterior, Posterior

LOC = torch.tensor([1.0, -2.0, 0.3, 4.0, -0.1, 0.5], dtype=torch.float64)
SCALE = torch.tensor([1.0, 0.5, 0.1, 8.0, 0.2, 0.01], dtype=torch.float64)
RATIO = torch.tensor([1.0, 4.0, 3.0, 0.5, 0.5, 50.0], dtype=torch.float64)  # |LOC| / SCALE


def linear(num_inputs: int, noise: float | None = 0.1) -> models.MLP:
    likelihood = likelihoods.Normal() if noise is None else likelihoods.Normal(scale=noise)
    model = models.MLP(num_inputs, hidden=(), prior=priors.Normal(1.0), likelihood=likelihood)
    return model.double()


def with_guide(model: models.MLP, x: Tensor, y: Tensor, loc: Tensor, scale: Tensor) -> Posterior:
    """A posterior whose guide has these means and sds in place of fitted ones."""
    fit = SVI(guides.AutoNormal, num_steps=1, compile=False).run(model, (x, y), progress=False)
    guide = cast(guides.AutoNormal, cast(GuidePosterior, fit).guide)
    with torch.no_grad():
        guide.loc.copy_(loc)
        guide.scale = scale
    return fit


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture(scope="module")
def posterior(x: Tensor) -> Posterior:
    return with_guide(linear(5), x, x[:, 0], LOC, SCALE)  # five weights and a bias


def test_ratio_of_every_weight_in_its_shape(posterior: Posterior) -> None:
    ratio = signal_to_noise(posterior)
    names = [site.name for site in posterior.program.sites]
    assert sorted(ratio) == sorted(names) == ["layers.0.bias", "layers.0.weight"]
    assert ratio["layers.0.weight"].shape == (1, 5)
    together = torch.cat([ratio[name].flatten() for name in names])
    torch.testing.assert_close(together, RATIO, rtol=1e-12, atol=0)


def test_the_smallest_ratios_of_all_sites_go_first_and_the_rest_stays(
    posterior: Posterior, x: Tensor
) -> None:
    pruned = prune(posterior, 0.5)
    assert pruned.num_removed == 3
    assert pruned.kept.tolist() == [False, True, True, False, False, True]  # ratios 1, 0.5, 0.5
    z = posterior.unconstrained(20, seed=3) * (RATIO > 1)
    torch.testing.assert_close(pruned.unconstrained(20, seed=3), z, rtol=0, atol=0)
    values = {site.name: site.value(z) for site in posterior.program.sites}
    f = x @ values["layers.0.weight"].mT + values["layers.0.bias"].unsqueeze(1)  # [S, N, 1]
    torch.testing.assert_close(pruned.function_draws(x, 20, seed=3), f, rtol=1e-12, atol=1e-12)


def test_controls_go_by_magnitude_or_at_random(posterior: Posterior) -> None:
    """Of |mean| 1, 2, 0.3, 4, 0.1, 0.5."""
    by_magnitude = prune(posterior, 0.5, by="magnitude")
    assert by_magnitude.kept.tolist() == [True, True, False, True, False, False]
    assert prune(posterior, 0.5, "*.weight", by="magnitude").num_removed == 2  # of five
    chosen = torch.stack([prune(posterior, 0.5, by="random", seed=s).kept for s in range(400)])
    assert (chosen.sum(1) == 3).all()
    assert ((chosen.double().mean(0) - 0.5).abs() / (0.25 / 400) ** 0.5).max() < 4
    assert torch.equal(chosen[7], prune(posterior, 0.5, by="random", seed=7).kept)
    with pytest.raises(OptionError, match=r"by is one of 'signal to noise', 'magnitude', 'random'"):
        prune(posterior, 0.5, by="size")  # type: ignore[arg-type]


def test_a_share_is_rounded_to_whole_weights(posterior: Posterior) -> None:
    shares = {0.2: 1, 0.3: 2, 0.4: 2}  # of six: 1.2, 1.8, 2.4
    assert {share: prune(posterior, share).num_removed for share in shares} == shares


def test_nothing_removed_predicts_the_same_and_all_removed_predicts_zero(
    posterior: Posterior, x: Tensor
) -> None:
    whole, same = posterior.predict(x, 10), prune(posterior, 0.0).predict(x, 10)
    torch.testing.assert_close(same.draws, whole.draws, rtol=0, atol=0)
    assert prune(posterior, 1.0).function_draws(x, 10).count_nonzero() == 0


def test_a_pattern_keeps_pruning_to_its_sites(posterior: Posterior) -> None:
    pruned = prune(posterior, 1.0, "*.bias")
    (bias,) = (site for site in posterior.program.sites if site.name == "layers.0.bias")
    assert (~pruned.kept).nonzero().flatten().tolist() == [bias.start]
    assert list(signal_to_noise(posterior, "*.bias")) == ["layers.0.bias"]


def test_a_positive_site_is_no_weight(x: Tensor) -> None:
    fit = SVI(guides.AutoNormal, num_steps=1, compile=False).run(
        linear(5, noise=None), (x, x[:, 0]), progress=False
    )
    assert "likelihood.scale" not in signal_to_noise(fit)
    pruned = prune(fit, 1.0)
    assert pruned.num_removed == 6
    before, after = fit.sample(10), pruned.sample(10)
    torch.testing.assert_close(after["likelihood.scale"], before["likelihood.scale"])
    with pytest.raises(SiteError, match=r"'likelihood\.\*' matches no weights; there are lay"):
        prune(fit, 0.5, "likelihood.*")


def test_of_a_sparse_regression_the_true_weights_are_left_and_the_fit_is_as_good() -> None:
    # the mean-field optimum of conjugate regression: exact means, variances 1 / P_jj
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(400, 20, generator=generator, dtype=torch.float64)
    weight = torch.zeros(20, dtype=torch.float64)
    weight[[3, 8, 11, 17]] = torch.tensor([1.0, -0.5, 0.3, 2.0], dtype=torch.float64)
    noise = 0.5 * torch.randn(400, generator=generator, dtype=torch.float64)
    train, test = slice(0, 200), slice(200, 400)
    y = x @ weight + noise
    A = torch.cat([x[train], torch.ones(200, 1, dtype=torch.float64)], 1)
    P = A.mT @ A / 0.25 + torch.eye(21, dtype=torch.float64)
    loc = torch.linalg.solve(P, A.mT @ y[train] / 0.25)
    fit = with_guide(linear(20, 0.5), x[train], y[train], loc, P.diagonal().rsqrt())
    pruned = prune(fit, 0.8, "*.weight")
    left = pruned.sample(2)["layers.0.weight"][0, 0].nonzero().flatten().tolist()
    assert left == [3, 8, 11, 17]
    before, after = (p.predict(x[test], 500).log_prob(y[test]) for p in (fit, pruned))
    gain = after - before  # [N]
    assert gain.mean() > -2 * gain.std() / len(gain) ** 0.5


def test_saved_draws_keep_their_zeros(posterior: Posterior, tmp_path: Path) -> None:
    pruned = prune(posterior, 0.5)
    pruned.save(tmp_path / "pruned.pt")
    loaded = Posterior.load(tmp_path / "pruned.pt", linear(5))
    zeros = loaded.unconstrained(1_000).eq(0)
    assert (zeros == ~pruned.kept).all()


def test_a_pruned_posterior_has_no_density(posterior: Posterior) -> None:
    pruned = prune(posterior, 0.5)
    assert not pruned.has_log_prob
    assert pruned.elbo_kind == "none"
    with pytest.raises(SiteError, match=r"AutoNormal has no density q\(z\)"):
        pruned.log_q(10)


@pytest.mark.parametrize("fraction", [-0.1, 1.5, float("nan"), True, "half"])
def test_a_fraction_out_of_range_is_refused(posterior: Posterior, fraction: float) -> None:
    with pytest.raises(OptionError, match="fraction is the share of weights to remove, 0 to 1, n"):
        prune(posterior, fraction)


def test_without_marginals_there_is_no_ratio(x: Tensor) -> None:
    fit = SVI(guides.AutoDelta, num_steps=1, compile=False).run(
        linear(5), (x, x[:, 0]), progress=False
    )
    with pytest.raises(SiteError, match="AutoDelta has no marginal mean and sd of each weight"):
        signal_to_noise(fit)
    assert prune(fit, 0.5, by="magnitude").num_removed == 3  # a point has magnitudes
    with pytest.raises(SiteError, match="AutoDelta has no guide with a centre"):
        prune(prune(fit, 0.0, by="random"), 0.5, by="magnitude")
