"""Posteriors of plain models compared: LOO and distances in closed form, verdicts, refusals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy import stats
from torch import Tensor

import pyro_bnn as bnn
from pyro_bnn import arviz_io
from pyro_bnn.data import Call
from pyro_bnn.errors import DataError, OptionError, SiteError, UnknownNameError
from pyro_bnn.posterior import CallDraws, Nature, Provenance
from pyro_bnn.program.joint import Joint
from pyro_bnn.report import CallComparison
from tests.plain_pyro import default_dtype

N = 12
Y = torch.linspace(-1.0, 2.5, N, dtype=torch.float64) ** 2 / 2


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with default_dtype(torch.float64):
        yield


class Level:
    """A level of normal data: loc ~ N(0, prior), y_n ~ N(loc, noise); all is in closed form."""

    def __init__(self, prior: float = 2.0, noise: float = 1.0) -> None:
        self.prior, self.noise, self.__name__ = prior, noise, "level"

    def __call__(self, y: Tensor | None) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, self.prior))
        with pyro.plate("data", N):
            pyro.sample("y", dist.Normal(loc, self.noise), obs=y)

    def moments(self, y: Tensor) -> tuple[float, float]:
        """Mean and sd of loc given values."""
        precision = self.prior**-2 + len(y) * self.noise**-2
        return float(y.sum()) * self.noise**-2 / precision, precision**-0.5

    def loo(self) -> np.ndarray:
        """Log density of each value given the others."""
        found = []
        for n in range(N):
            mean, sd = self.moments(torch.cat([Y[:n], Y[n + 1 :]]))
            found.append(stats.norm.logpdf(float(Y[n]), mean, math.hypot(sd, self.noise)))
        return np.array(found)

    def draws(
        self, seed: int = 0, size: tuple[int, int] = (4, 1_000), *, kind: Any = "chains",
        shift: float = 0.0, widen: float = 1.0,
    ) -> CallDraws:  # fmt: skip
        """Independent draws of the posterior, or of a Gaussian beside it, as chains or as q."""
        mean, sd = self.moments(Y)
        q = dist.Normal(mean + shift * sd, widen * sd)
        generator = torch.Generator().manual_seed(seed)
        z = q.loc + q.scale * torch.randn(*size, 1, generator=generator)
        provenance = Provenance(method="draws", engine="MCMC", nature=Nature(kind=kind))
        own: dict[str, Any] = {"sample_stats": {"diverging": np.zeros(size, dtype=bool)}}
        if kind != "chains":
            own = {"log_q": q.log_prob(z).sum(-1)}
        return CallDraws(Joint(self, (Y,)), z, provenance, **own)


def compare(posteriors: Any, **options: Any) -> CallComparison:
    found = bnn.compare(posteriors, **options)
    assert isinstance(found, CallComparison)
    return found


def test_loo_is_that_of_the_closed_form() -> None:
    """Of chains, and of a Gaussian beside the posterior that is reweighted to it."""
    model, expected = Level(), Level().loo()
    for other in ({}, {"kind": "approximation", "shift": 0.3, "widen": 1.2}):
        found = [compare({"a": model.draws(seed, (4, 250), **cast(Any, other))}) for seed in range(12)]  # fmt: skip  # noqa: E501
        elpd = np.array([one.table.loc["a", "elpd_loo"] for one in found])
        error = elpd.std(ddof=1) / math.sqrt(len(elpd))
        assert abs(elpd.mean() - expected.sum()) < 5 * error
        assert error < 0.02
        se = np.mean([one.table.loc["a", "elpd_loo_se"] for one in found])
        assert se == pytest.approx(math.sqrt(N * expected.var(ddof=1)), rel=0.02)


def test_scores_and_their_differences_are_arvizs() -> None:
    posteriors = {"near": Level().draws(0), "far": Level(noise=3.0).draws(1)}
    found = compare(posteriors)
    theirs = {
        name: arviz_io.arviz().loo(own.to_arviz(), pointwise=True, var_name="y")
        for name, own in posteriors.items()
    }
    for name, one in theirs.items():
        row = found.table.loc[name]
        assert row["elpd_loo"] == pytest.approx(float(one.elpd), abs=2e-3)
        assert row["elpd_loo_se"] == pytest.approx(
            float(one.se) * math.sqrt(N / (N - 1)),
            rel=1e-2,  # ArviZ has the divisor N
        )
        assert row["p_loo"] == pytest.approx(float(one.p), abs=2e-3)
        assert row["bad_khat"] == 0
    difference = theirs["far"].elpd_i.values - theirs["near"].elpd_i.values
    assert list(found.table.index) == ["near", "far"]
    assert found.table.loc["far", "difference"] == pytest.approx(difference.sum(), abs=4e-3)
    assert found.table.loc["far", "difference_se"] == pytest.approx(
        math.sqrt(N * difference.var(ddof=1)), rel=1e-2
    )
    exact = Level(noise=3.0).loo() - Level().loo()
    assert found.table.loc["far", "difference"] == pytest.approx(exact.sum(), abs=0.05)


def test_a_worse_model_is_behind_and_posteriors_of_one_model_are_told() -> None:
    posteriors = {"wide": Level(noise=30.0).draws(2), "a": Level().draws(0), "b": Level().draws(1)}
    found = compare(posteriors)
    assert "Behind it by a test over all pairs: wide" in found.verdicts[0]
    assert "a and b are posteriors of one model, ranked by the score of a." in found.verdicts[1]
    assert found.table["tied"].to_dict() == {"a": True, "b": None, "wide": False}
    near = compare({"a": Level().draws(0), "b": Level(noise=1.1).draws(1)})
    assert "Not shown to be behind: " in near.verdicts[0]
    assert "elpd_loo" in found.summary()
    assert "<table" in found._repr_html_()


def test_distances_are_those_of_gaussians() -> None:
    """W1 of N(0, 1) to N(a, 1) is a, and to N(0, b) it is |b - 1| times the root of 2 / pi."""
    own: Any = {"kind": "approximation", "size": (1, 4_000)}
    posteriors = {
        "reference": Level().draws(0),
        "again": Level().draws(3, **own),
        "shifted": Level().draws(1, shift=1.0, **own),
        "narrow": Level().draws(2, widen=0.5, **own),
    }
    found = compare(posteriors, reference="reference")
    at = found.distances.xs("loc", level="site")
    error = 1 / math.sqrt(2_000)  # of a mean of half the draws
    assert at.loc["shifted", "distance"] == pytest.approx(1.0, abs=5 * error)
    assert at.loc["narrow", "distance"] == pytest.approx(
        0.5 * math.sqrt(2 / math.pi), abs=5 * error
    )
    assert at.loc["again", "distance"] < 5 * error
    assert at.loc["shifted", "floor"] < 5 * error
    ratios = {"again": 1.0, "shifted": 1.0, "narrow": 0.5}
    for name, ratio in ratios.items():
        assert at.loc[name, "sd_ratio"] == pytest.approx(ratio, rel=5 / math.sqrt(4_000))
    assert at.loc["shifted", "mean_shift"] == pytest.approx(1.0, abs=5 / math.sqrt(2_000))
    text = "\n".join(found.verdicts)
    assert "again: no fault against reference at loc." in text
    assert "shifted against reference: 'loc': its mean is off by " in text
    assert "narrow against reference: 'loc': its sd is 0.49" in text
    assert found.table["khat"].notna().to_dict() == {
        name: name != "reference" for name in posteriors
    }


def test_chains_are_checked_by_latent_site() -> None:
    stuck = Level().draws(0, (4, 200))
    z = stuck.stored + torch.arange(4.0)[:, None, None]
    apart = CallDraws(stuck.program, z, stuck.provenance)
    found = compare({"apart": apart, "short": Level().draws(1, (4, 50))}, reference="short")
    assert found.table.loc["apart", "r_hat"] == pytest.approx(
        float(arviz_io.rhat(z[..., 0].numpy()))
    )
    few = arviz_io.ess(Level().draws(1, (4, 50)).stored[..., 0].numpy(), kind="bulk")
    assert found.table.loc["short", "ess_bulk"] == pytest.approx(float(few))
    text = "\n".join(found.verdicts)
    assert "apart: R-hat " in text
    assert "of the site loc, above 1.01" in text
    assert "The reference short has defects (" in text
    assert "against short" not in text  # not judged


def test_a_reference_that_is_an_approximation_does_not_judge() -> None:
    posteriors = {"q": Level().draws(0, kind="approximation"), "a": Level().draws(1)}
    text = "\n".join(compare(posteriors, reference="q").verdicts)
    assert "The reference q is of the kind approximation: distances" in text


def test_why_there_is_no_score() -> None:
    far = Level().draws(0, (1, 500), kind="approximation", shift=4.0, widen=0.2)
    point = Level().draws(0, (1, 4), kind="point")
    biased = Level().draws(0)
    biased.provenance = Provenance(method="d", engine="m", nature=Nature(kind="biased chains"))
    found = compare({"a": Level().draws(0), "far": far, "point": point, "biased": biased})
    text = "\n".join(found.verdicts)
    assert "far: no LOO score of 'y': the k-hat of the approximation is " in text
    assert "point: no LOO score of 'y': a point has no importance weights." in text
    assert "biased: no LOO score of 'y': it has no log density" in text
    assert found.table["elpd_loo"].notna().sum() == 1


def test_one_value_that_decides_is_named() -> None:
    """One far value among a few of small noise: its weight is that of a single draw."""

    def model(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 100.0))
        with pyro.plate("data", 2):
            pyro.sample("y", dist.Normal(loc, torch.tensor([0.01, 1.0])), obs=y)

    y = torch.tensor([30.0, 0.0])
    z = 30.0 + 0.01 * torch.randn(4, 250, 1, generator=torch.Generator().manual_seed(0))
    provenance = Provenance(method="d", engine="m", nature=Nature(kind="chains"))
    found = compare({"a": CallDraws(Joint(model, (y,)), z, provenance)})
    assert found.table.loc["a", "bad_khat"] == 0.5
    assert any("is not to be trusted: k-hat is above 0.67 at 1 of 2" in v for v in found.verdicts)
    assert any("Take folds=2, which scores values that refits" in v for v in found.verdicts)


def test_masked_values_are_not_counted() -> None:
    def masked(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
        seen = torch.arange(N) < 7
        with pyro.plate("data", N), poutine.mask(mask=cast(Any, seen)):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    z = Level().draws(0).stored
    provenance = Provenance(method="d", engine="m", nature=Nature(kind="chains"))
    found = compare({"masked": CallDraws(Joint(masked, (Y,)), z, provenance)})
    loo = found.evaluations["masked"].loo
    assert loo is not None
    assert loo.pointwise.shape == (7,)
    with pytest.raises(DataError, match="other numbers of values of 'y': a 12, masked 7"):
        compare({"a": Level().draws(0), "masked": CallDraws(Joint(masked, (Y,)), z, provenance)})


def test_what_cannot_be_compared_is_refused() -> None:
    one = Level().draws(0, (2, 20))
    with pytest.raises(UnknownNameError, match="unknown reference 'NUTS'"):
        bnn.compare({"nuts": one}, reference="NUTS")
    with pytest.raises(OptionError, match="nothing to compare"):
        bnn.compare({})
    with pytest.raises(OptionError, match="the name of a posterior is text"):
        bnn.compare({1: one})  # type: ignore[dict-item]
    with pytest.raises(SiteError, match="a observes no 'x'; it observes y"):
        bnn.compare({"a": one}, site="x")
    other = CallDraws(Joint(Level(), (Y + 1,)), one.stored, one.provenance)
    with pytest.raises(DataError, match="b observes other values of 'y' than a"):
        bnn.compare({"a": one, "b": other})

    def two(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(loc, 1.0).expand([N]).to_event(1), obs=y)
        pyro.sample("x", dist.Normal(loc, 1.0), obs=torch.tensor(0.0))

    both = CallDraws(Joint(two, (Y,)), one.stored, one.provenance)
    with pytest.raises(OptionError, match=r"site= names .* observed are a: y, x; b: y, x"):
        bnn.compare({"a": both, "b": both})
    torch.set_default_dtype(torch.float32)  # of the network
    x = torch.randn(30, 1)
    split = bnn.data.from_arrays(x, x[:, 0])
    with pytest.raises(OptionError, match="site='y' would have no effect with a split"):
        bnn.compare({"a": one}, split, site="y")  # type: ignore[call-overload]
    rows = bnn.Exact().run(bnn.models.LinearRegression(1), split.train, progress=False)
    with pytest.raises(OptionError, match=r"'rows' is a .*, of rows: compare it on held-out rows"):
        bnn.compare({"rows": rows})  # type: ignore[dict-item]


def test_a_run_of_each_kind_end_to_end() -> None:
    call = Call(Y)
    chains = bnn.NUTS(num_chains=4, warmup_steps=100, num_samples=300).run(
        Level(), call, progress=False
    )
    pyro.set_rng_seed(0)
    guide = pyro.infer.autoguide.AutoNormal(Level())
    svi = pyro.infer.SVI(
        Level(), guide, cast(Any, pyro.optim).Adam({"lr": 0.1}), pyro.infer.Trace_ELBO()
    )
    for _ in range(300):
        svi.step(Y)
    approximation = bnn.from_guide(guide, Level(), call)
    pyro.clear_param_store()
    found = compare({"nuts": chains, "mean field": approximation}, site="y", reference="nuts")
    assert found.table.loc["nuts", "elpd_loo"] == pytest.approx(Level().loo().sum(), abs=0.1)
    assert found.distances.loc[("mean field", "loc"), "sd_ratio"] == pytest.approx(1.0, abs=0.3)
