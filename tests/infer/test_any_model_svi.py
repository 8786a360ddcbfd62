"""SVI on a ``Call``: what guides reach in closed form, files, resumed runs, and what is refused."""

from __future__ import annotations

import functools
import math
import pickle
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.infer.autoguide
import pytest
import torch
from pyro.nn import PyroModule
from pyro.optim import Adam  # type: ignore[attr-defined]
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import guides
from pyro_bnn.data import Call
from pyro_bnn.errors import DivergenceError, OptionError, SiteError
from pyro_bnn.infer.batches import Minibatches
from pyro_bnn.infer.svi.judge import most_pairs
from pyro_bnn.infer.svi.paired import MOST
from pyro_bnn.posterior import CallGuide, CallPosterior
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.terms import Batch
from tests.plain_pyro import default_dtype

EFFECTS = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12], dtype=torch.float64)
ERRORS = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18], dtype=torch.float64)
TAU = 6.0


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64):
        yield


def schools(errors: Tensor, effects: Tensor | None = None) -> None:
    """Eight schools with a known spread between them: conjugate."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    with pyro.plate("schools", len(errors)):
        theta = pyro.sample("theta", dist.Normal(mu, TAU))
        pyro.sample("effect", dist.Normal(theta, errors), obs=effects)


CALL = Call(ERRORS, effects=EFFECTS)


def exact() -> tuple[Tensor, Tensor, float]:
    """Mean ``[9]`` and covariance of (mu, theta) given the effects, and the log evidence.

    The precision is that of the prior plus that of the likelihood; the effects are jointly
    Gaussian with mean 0 and covariance diag(errors^2 + tau^2) + 25.
    """
    precision = torch.zeros(9, 9)
    precision[0, 0] = 1 / 25 + 8 / TAU**2
    precision[0, 1:] = precision[1:, 0] = -1 / TAU**2
    precision[1:, 1:] = torch.diag(TAU**-2 + ERRORS**-2)
    covariance = torch.linalg.inv(precision)
    mean = covariance @ torch.cat([torch.zeros(1), EFFECTS / ERRORS**2])
    of_effects = dist.MultivariateNormal(torch.zeros(8), torch.diag(ERRORS**2 + TAU**2) + 25.0)
    return mean, covariance, float(of_effects.log_prob(EFFECTS))


@pytest.fixture(scope="module")
def posterior() -> CallGuide:
    with default_dtype(torch.float64):
        svi = bnn.SVI(
            functools.partial(guides.AutoMultivariateNormal, init_scale=1.0),
            num_steps=16_000,
            learning_rate=0.02,
        )
        found = svi.run(schools, CALL, progress=False)
    assert isinstance(found, CallGuide)
    return found


def test_a_gaussian_guide_reaches_the_exact_posterior(posterior: CallGuide) -> None:
    r"""The ELBO is the log evidence less KL(q || p), which is in closed form of two Gaussians."""
    mean, covariance, evidence = exact()
    guide: Any = posterior.guide
    tril = (guide.scale_tril * guide.scale.unsqueeze(-1)).detach()
    q = torch.distributions.MultivariateNormal(guide.loc.detach(), scale_tril=tril)
    z = posterior.unconstrained(20_000)
    assert_close(z.mean(0), q.mean, atol=5 * float(tril.norm(dim=1).max()) / 141, rtol=0)
    p = torch.distributions.MultivariateNormal(mean, covariance)
    kl = float(torch.distributions.kl_divergence(q, p))
    assert kl < 0.02
    sd = covariance.diagonal().sqrt()
    assert ((q.mean - mean) / sd).abs().max() < 0.1
    assert ((q.covariance_matrix - covariance) / sd.outer(sd)).abs().max() < 0.1
    elbo, error = posterior.elbo(4_000)
    assert error < 0.01
    assert abs(elbo - (evidence - kl)) < 5 * error
    assert posterior.elbo_kind == "exact"


def test_densities_are_those_of_model_and_guide(posterior: CallGuide) -> None:
    draws, guide = posterior.sample(50), posterior.guide
    mu, theta = draws["mu"], draws["theta"]
    expected = (
        dist.Normal(0.0, 5.0).log_prob(mu)
        + dist.Normal(mu.unsqueeze(-1), TAU).log_prob(theta).sum(-1)
        + dist.Normal(theta, ERRORS).log_prob(EFFECTS).sum(-1)
    )
    assert_close(posterior.log_joint(50), expected)
    z = torch.cat([mu.unsqueeze(-1), theta], -1)
    assert_close(posterior.log_q(50), guide.log_prob(z).detach())
    tree: Any = posterior.to_arviz(50)
    log_p, log_q = (torch.tensor(tree[f"sample_stats/{k}"].values[0]) for k in ("log_p", "log_q"))
    assert_close(log_p, expected)
    assert_close(log_q, posterior.log_q(50))
    with pytest.raises(OptionError, match="num_samples of at least 2"):
        posterior.elbo(1)


def test_a_table_and_predictions_are_of_the_draws(posterior: CallGuide) -> None:
    mean, covariance, _ = exact()
    table = posterior.summary(2_000)
    sd = covariance.diagonal().sqrt()
    found = torch.tensor(table["mean"].to_list())
    assert list(table.index) == ["mu", *(f"theta[{i}]" for i in range(8))]
    assert ((found - mean).abs() < 0.2 * sd).all()
    anew = posterior.predictive(num_samples=1_000)["effect"]
    total = (sd[1:] ** 2 + ERRORS**2).sqrt()
    assert ((anew.mean(0) - mean[1:]).abs() < 5 * total / math.sqrt(1_000) + 0.1 * sd[1:]).all()
    assert (anew.std(0) / total - 1).abs().max() < 0.15


def test_copies_and_files_make_the_same_draws(posterior: CallGuide, tmp_path: Path) -> None:
    posterior.save(tmp_path / "schools.st")
    read = CallPosterior.load(tmp_path / "schools.st", schools)
    for other in (read, pickle.loads(pickle.dumps(posterior))):
        assert isinstance(other, CallGuide)
        assert_close(other.draws(300, seed=3), posterior.draws(300, seed=3), rtol=0, atol=0)
        assert other.elbo(300) == posterior.elbo(300)
        assert other.nature == posterior.nature
        assert other.doubling == posterior.doubling
    with pytest.raises(SiteError, match="is of a model with sites mu"):
        CallPosterior.load(
            tmp_path / "schools.st", lambda *_, **__: pyro.sample("w", dist.Normal(0.0, 1.0))
        )


def groups(y: Tensor, noise: Tensor, count: Tensor) -> None:
    """Two observed sites, and latent ones that are independent given them."""
    with pyro.plate("groups", len(noise)):
        level = pyro.sample("level", dist.Normal(1.0, 2.0))
        pyro.sample("seen", dist.Normal(level, noise), obs=y)
    pull = pyro.sample("pull", dist.Normal(0.0, 1.0))
    pyro.factor("held", -0.5 * 3.0 * (pull - 2.0) ** 2)
    rate = pyro.sample("rate", dist.LogNormal(0.5, 0.8))
    pyro.sample("count", dist.LogNormal(rate.log(), 0.4), obs=count)


def test_independent_sites_are_exact_by_independent_normals() -> None:
    """Precisions add: of prior and likelihood, prior and factor; on the log scale of a rate."""
    y, noise, count = torch.tensor([0.5, -2.0, 4.0]), torch.tensor([1.0, 0.5, 3.0]), 4.0
    svi = bnn.SVI(
        functools.partial(guides.AutoNormal, init_scale=0.3), num_steps=8_000, learning_rate=0.02
    )
    call = Call(y, noise, torch.tensor(count))
    posterior = svi.run(groups, call, progress=False)
    level = 0.25 + noise**-2
    precision = torch.cat([level, torch.tensor([4.0, 0.8**-2 + 0.4**-2])])
    weighted = torch.tensor([3.0 * 2.0, 0.5 / 0.8**2 + math.log(count) / 0.4**2])
    mean = torch.cat([0.25 + y / noise**2, weighted]) / precision
    found: Any = posterior
    loc, scale = (value.detach() for value in found.guide.marginals())
    assert ((loc - mean).abs() * precision.sqrt()).max() < 0.05
    assert (scale * precision.sqrt() - 1).abs().max() < 0.05
    evidence = (
        dist.Normal(1.0, (4.0 + noise**2).sqrt()).log_prob(y).sum()
        + dist.Normal(0.0, math.sqrt(1 + 1 / 3)).log_prob(torch.tensor(2.0))
        + 0.5 * math.log(2 * math.pi / 3)  # exp(-3/2 d^2) is that times a density of d
        + dist.LogNormal(0.5, math.sqrt(0.8**2 + 0.4**2)).log_prob(torch.tensor(count))
    )
    kl = 0.5 * ((scale**2 + (loc - mean) ** 2) * precision - 1 - (scale**2 * precision).log()).sum()
    elbo, error = found.elbo(4_000)
    assert abs(elbo - float(evidence - kl)) < 5 * error + 1e-9


def shares(counts: Tensor) -> None:
    p = pyro.sample("p", dist.Dirichlet(torch.full((3,), 2.0)))
    pyro.factor("counts", (counts * p.log()).sum())


def test_a_simplex_is_close_to_its_dirichlet() -> None:
    """The posterior is Dirichlet(2 + n), nearly Gaussian in the coordinates for large n."""
    counts = torch.tensor([30.0, 50.0, 20.0])
    svi = bnn.SVI(guides.AutoMultivariateNormal, num_steps=1_500, learning_rate=0.05)
    posterior: Any = svi.run(shares, Call(counts), progress=False)
    p = posterior.sample(8_000)["p"]
    assert_close(p.sum(-1), torch.ones(8_000))
    expected = torch.distributions.Dirichlet(2.0 + counts)
    assert ((p.mean(0) - expected.mean) / expected.stddev).abs().max() < 0.1
    assert (p.std(0) / expected.stddev - 1).abs().max() < 0.1
    evidence = torch.lgamma(torch.tensor(6.0)) - torch.lgamma(torch.tensor(106.0))
    evidence = evidence + torch.lgamma(2.0 + counts).sum()  # lgamma(2) = 0
    elbo, error = posterior.elbo(4_000)
    assert float(evidence) - 0.05 < elbo < float(evidence) + 5 * error


class Line(PyroModule):
    """A known slope: the point estimate ``a`` is fitted, the spread of ``b`` is ``pyro.param``."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, y: Tensor) -> None:
        spread = pyro.param("spread", torch.tensor(1.0), constraint=dist.constraints.positive)
        with pyro.plate("groups", len(y)):
            b = pyro.sample("b", dist.Normal(self.a, spread))
            pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def test_point_parameters_are_trained_and_predicted_with() -> None:
    """Empirical Bayes: y is normal of mean a and variance spread^2 + 1, whose maximum is known."""
    y = torch.tensor([1.0, 5.0, 9.0, -3.0])
    model = Line()
    svi = bnn.SVI(guides.AutoNormal, num_steps=8_000, learning_rate=0.02)
    posterior: Any = svi.run(model, Call(y), progress=False)
    spread = math.sqrt(float(y.var(correction=0)) - 1)
    assert abs(float(posterior.params["a"]) - 3.0) < 0.1
    assert abs(float(posterior.params["spread"].exp()) / spread - 1) < 0.05
    assert model.a.item() == 1.0
    draws = posterior.sample(4_000)
    shrunk = (3.0 + spread**2 * y) / (1 + spread**2)
    assert ((draws["b"].mean(0) - shrunk).abs() < 0.15).all()
    assert posterior.num_parameters == 4 + 4 + 2


def drift(y: Tensor) -> None:
    """The prediction alone shows the trained parameter."""
    a = pyro.param("a", torch.tensor(0.0))
    w = pyro.sample("w", dist.Normal(0.0, 0.1))
    pyro.sample("y", dist.Normal(a + w, 0.1), obs=y)


def test_predictions_take_the_trained_parameters() -> None:
    posterior: Any = bnn.SVI(guides.AutoNormal, num_steps=3_000).run(
        drift, Call(torch.tensor(2.0)), progress=False
    )
    anew = posterior.predictive(num_samples=200)["y"]
    assert abs(float(anew.mean()) - 2.0) < 0.1


def test_a_bounded_site_below_another_is_fitted() -> None:
    def within(y: Tensor) -> None:
        high = pyro.sample("high", dist.Uniform(1.0, 3.0))
        low = pyro.sample("low", dist.Uniform(0.0, high))
        pyro.sample("y", dist.Normal(low, 1.0), obs=y)

    posterior: Any = bnn.SVI(guides.AutoMultivariateNormal, num_steps=4_000).run(
        within, Call(torch.tensor(1.0)), progress=False
    )
    draws = posterior.sample(2_000)
    assert (draws["low"] < draws["high"]).all()
    with pytest.raises(SiteError, match="the support of the site 'low' depends on other sites"):
        posterior.guide.median()
    high = torch.linspace(1, 3, 20_001)
    width = torch.special.ndtr(high - 1) - torch.special.ndtr(torch.tensor(-1.0))
    evidence = float(torch.trapezoid(width / high, high) / 2)
    elbo, error = posterior.elbo(4_000)
    assert math.log(evidence) - 0.1 < elbo < math.log(evidence) + 5 * error


def test_a_flat_prior_has_draws_and_no_bound() -> None:
    def flat(y: Tensor) -> None:
        w = pyro.sample("w", dist.ImproperUniform(dist.constraints.positive, (), ()))
        pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    posterior: Any = bnn.SVI(guides.AutoNormal, num_steps=3_000).run(
        flat, Call(torch.tensor(8.0)), progress=False
    )
    w = posterior.sample(4_000)["w"]
    assert abs(float(w.mean()) - 8.0) < 0.1
    assert abs(float(w.std()) - 1.0) < 0.1
    assert posterior.elbo_kind == "none"
    with pytest.raises(SiteError, match="no ELBO under the flat prior of w"):
        posterior.elbo()


class _StopError(Exception):
    pass


@pytest.mark.parametrize("compiled", [True, False])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path, *, compiled: bool) -> None:
    svi = bnn.SVI(guides.AutoMultivariateNormal, num_steps=600, compile=compiled)
    whole: Any = svi.run(schools, CALL, progress=False)

    def stop(at: Any) -> None:
        if at.step >= 300:
            raise _StopError

    with pytest.raises(_StopError):
        svi.run(schools, CALL, progress=False, checkpoint=tmp_path, on_step=stop)
    again: Any = svi.run(schools, CALL, progress=False, checkpoint=tmp_path, resume=True)
    assert_close(again.draws(100), whole.draws(100), rtol=0, atol=0)
    assert_close(torch.as_tensor(again.losses), torch.as_tensor(whole.losses), rtol=0, atol=0)
    assert len(whole.losses) == 600


def test_a_run_ends_by_itself_and_is_compiled() -> None:
    posterior: Any = bnn.SVI(guides.AutoNormal).run(schools, CALL, progress=False)
    assert posterior.options["compiled"]
    assert posterior.options["num_starts"] == 4
    assert not posterior.doubling.is_unfinished
    assert "batch_size" not in {k for k, v in posterior.options.items() if v is not None}


def test_a_fit_starts_from_another(posterior: CallGuide) -> None:
    svi = bnn.SVI(guides.AutoNormal, num_steps=1, learning_rate=1e-9)
    started: Any = svi.run(schools, CALL, init=posterior, progress=False)
    assert_close(started.guide.loc.detach(), posterior.guide.centre(), atol=1e-6, rtol=0)
    values = {"mu": torch.tensor(2.0), "theta": torch.arange(8.0)}
    started = svi.run(schools, CALL, init=values, progress=False)
    expected = torch.cat([torch.tensor([2.0]), torch.arange(8.0)])
    assert_close(started.guide.loc.detach(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 4}, "batch_size=4 needs a plate whose rows a step can choose"),
        ({"per_example_draws": True}, "per_example_draws=True needs rows"),
        ({"estimator": "flipout"}, 'estimator="flipout" needs rows.*"auto"'),
    ],
)
def test_options_of_rows_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        bnn.SVI(guides.AutoNormal, **options).run(schools, CALL, progress=False)


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (guides.AutoMatrixNormal, "AutoMatrixNormal needs a real latent site whose value is a"),
        (guides.AutoKTiedNormal, "AutoKTiedNormal needs a real latent site"),
        (guides.AutoRank1Mixture, "over the factors of rank-1 layers"),
        (guides.AutoDropout, "AutoDropout drops the inputs of weights"),
        (guides.AutoComposite, "the part 'last layer' takes the sites of a network's last layer"),
    ],
)
def test_guides_of_networks_are_refused(guide: Any, message: str) -> None:
    with pytest.raises(SiteError, match=message):
        bnn.SVI(guide, num_steps=1).run(schools, CALL, progress=False)


def test_a_composite_takes_sites_by_their_names() -> None:
    guide = functools.partial(guides.AutoComposite, parts={"theta": guides.AutoMultivariateNormal})
    posterior: Any = bnn.SVI(guide, num_steps=50).run(schools, CALL, progress=False)
    assert posterior.guide.names_of_parts == [["theta"], ["mu"]]


def drawn_by_hand(errors: Tensor, effects: Tensor | None = None) -> None:
    """A guide function with the exact marginals of (mu, theta)."""
    mean, covariance, _ = exact()
    sd = covariance.diagonal().sqrt()
    loc = pyro.param("loc", mean)
    pyro.sample("mu", dist.Normal(loc[0], sd[0]))
    with pyro.plate("schools", len(errors)):
        pyro.sample("theta", dist.Normal(loc[1:], sd[1:]))


def of_errors(errors: Tensor) -> None:
    """One of one argument, which might be taken for what makes a guide of the model."""
    drawn_by_hand(errors)


stock = pyro.infer.autoguide
STOCK = (stock.AutoNormal, stock.AutoMultivariateNormal, drawn_by_hand, of_errors)


@pytest.mark.parametrize("guide", [*STOCK, lambda model: stock.AutoNormal(model)])  # noqa: PLW0108
def test_guides_of_stock_pyro_are_refused_with_the_way_out(guide: Any) -> None:
    message = "is a guide of stock Pyro, which on a Call is not trained.*bnn.from_guide"
    with pytest.raises(OptionError, match=message):
        bnn.SVI(guide, num_steps=1).run(schools, CALL, progress=False)


def test_a_maker_of_guides_that_fails_is_not_taken_for_a_guide() -> None:
    with pytest.raises(OptionError, match="init_scale"):
        bnn.SVI(lambda model: guides.AutoNormal(model, init_scale=-1.0), num_steps=1).run(
            schools, CALL, progress=False
        )


@pytest.mark.parametrize("make", [stock.AutoNormal, drawn_by_hand])
def test_the_way_out_for_stock_guides_has_their_draws(make: Any) -> None:
    mean, covariance, _ = exact()
    pyro.clear_param_store()
    guide = make if make is drawn_by_hand else make(schools)
    rate = 1e-6 if make is drawn_by_hand else 0.3
    svi = pyro.infer.SVI(schools, guide, Adam({"lr": rate}), pyro.infer.Trace_ELBO())
    for _ in range(1 if make is drawn_by_hand else 80):
        svi.step(*CALL.args, **CALL.kwargs)
    found = bnn.from_guide(guide, schools, CALL, num_samples=300)
    draws = found.sample(300)
    z = torch.cat([draws["mu"].unsqueeze(-1), draws["theta"]], -1)
    sd = covariance.diagonal().sqrt()
    wrong = 5 / math.sqrt(300) if make is drawn_by_hand else 1.0  # of few steps
    assert ((z.mean(0) - mean).abs() < wrong * sd).all()
    pyro.clear_param_store()


@pytest.mark.parametrize(
    "guide",
    [
        guides.AutoDelta,
        guides.AutoLowRankMultivariateNormal,
        guides.AutoNormalMixture,
        guides.AutoFlow,
        guides.AutoRadial,
    ],
)
def test_guides_of_any_sites_run_and_are_saved(guide: Any, tmp_path: Path) -> None:
    posterior: Any = bnn.SVI(guide, num_steps=30).run(schools, CALL, progress=False)
    posterior.save(tmp_path / "it.st")
    read = CallPosterior.load(tmp_path / "it.st", schools)
    assert_close(read.draws(20), posterior.draws(20), rtol=0, atol=0)
    assert read.has_log_prob == posterior.has_log_prob
    assert posterior.sample(20)["theta"].shape == (20, 8)


def covariance_of(y: Tensor) -> None:
    """A site whose map is none of torch's, and a latent one named as rows of networks are."""
    spread = pyro.sample("spread", dist.InverseGamma(torch.tensor(3.0), torch.tensor(2.0)))
    tril: Any = dist.constraints.positive_definite
    S = pyro.sample("S", dist.ImproperUniform(tril, (), (2, 2)))
    pyro.factor("wishart", dist.Wishart(torch.tensor(4.0), torch.eye(2)).log_prob(S))
    with pyro.plate("data", 2):
        latent = pyro.sample("y", dist.Normal(0.0, spread.sqrt()))
        pyro.sample("seen", dist.Normal(latent, 1.0), obs=y)


@pytest.mark.parametrize("guide", [guides.AutoNormal, guides.AutoFlow])
def test_guides_cover_what_the_joint_covers(guide: Any, tmp_path: Path) -> None:
    call = Call(torch.tensor([1.0, -1.0]))
    posterior: Any = bnn.SVI(guide, num_steps=40).run(covariance_of, call, progress=False)
    draws = posterior.sample(20)
    assert {name: value.shape[1:] for name, value in draws.items()} == {
        "spread": (),
        "S": (2, 2),
        "y": (2,),
    }
    assert (torch.linalg.eigvalsh(draws["S"]) > 0).all()
    posterior.save(tmp_path / "it.st")
    read = CallPosterior.load(tmp_path / "it.st", covariance_of)
    assert_close(read.draws(20), posterior.draws(20), rtol=0, atol=0)


def test_comparisons_of_rounds_take_a_share_of_the_time() -> None:
    """Of n observed numbers a step and a pair of draws cost 6 n P and 8 n P products."""

    def many(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([100]).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(w[0], 1.0), obs=y)

    few, large = (Joint(many, (torch.zeros(n),)) for n in (1, 1_000_000))
    assert (few.num_observed, large.num_observed) == (1, 1_000_000)
    row = torch.zeros(1)
    batches = Minibatches(Batch(row, row), None, 0)
    assert most_pairs(few, batches, 1_000) == MOST
    step, pair = 1e-4 + 6e8 / 1e10, 8e8 / 1e10
    assert most_pairs(large, batches, 1_000) == int(0.25 * 1_000 * step / pair)


def test_a_factor_that_is_not_finite_is_named() -> None:
    def logs(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(1.0, 0.1))
        pyro.factor("pull", -(y - w.log()).square())

    svi = bnn.SVI(guides.AutoNormal, num_steps=3_000, learning_rate=0.5)
    with pytest.raises(DivergenceError, match=r"not finite at step .*, at 'pull'") as e:
        svi.run(logs, Call(torch.tensor(-9.0)), progress=False)
    assert isinstance(e.value.posterior, CallGuide)
