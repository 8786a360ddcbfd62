"""Closed-form probabilities of scalars, against SciPy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from scipy import stats
from torch import Tensor

from pyro_bnn.diagnostics.simulation.estimands import Estimands
from pyro_bnn.program import Program
from pyro_bnn.program.latents import Marginals
from tests.diagnostics.made_engines import LINEAR, X
from tests.laws import problem

Y = torch.zeros(8, 1, dtype=torch.float64)


def with_marginals(*parts: Any) -> Any:
    """A guide of which these marginals alone are known."""
    return SimpleNamespace(components=lambda: Marginals(*parts))


def test_components_are_averaged_and_cauchy_sites_are_cauchy() -> None:
    estimands = Estimands(Program(LINEAR, X, Y), X, weights=False, extra=None)
    loc = torch.tensor([[0.0, 1.0], [2.0, -1.0]], dtype=torch.float64)  # of w, b
    scale = torch.tensor([[1.0, 0.5], [3.0, 2.0]], dtype=torch.float64)
    truth = torch.tensor([0.7, 0.2], dtype=torch.float64)
    found = estimands.exact(with_marginals(loc, scale, frozenset({"b"})), truth)
    expected = [
        (stats.norm(0, 1).cdf(0.7) + stats.norm(2, 3).cdf(0.7)) / 2,
        (stats.cauchy(1, 0.5).cdf(0.2) + stats.cauchy(-1, 2).cdf(0.2)) / 2,
    ]
    weights = torch.tensor([0.75, 0.25])
    weighted = estimands.exact(with_marginals(loc, scale, frozenset(), "normal", weights), truth)
    other = 0.75 * stats.norm(0, 1).cdf(0.7) + 0.25 * stats.norm(2, 3).cdf(0.7)
    np.testing.assert_allclose(next(iter(weighted.values())), other, rtol=1e-12)
    places = [estimands.names.index(name) for name in ("w", "b")]
    assert list(found) == places
    known = with_marginals(loc[0], scale[0], frozenset(), "moments")
    assert estimands.exact(known, truth) == {}  # by its mean and sd alone
    unknown: Any = SimpleNamespace(components=lambda: None)
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-12)
    assert estimands.exact(unknown, truth) == {}


def test_values_and_names_follow_the_sites() -> None:
    given = problem("mixed")
    estimands = Estimands(given.program, given.x, weights=True, extra=None)
    assert estimands.names == (
        *("f(x[0])", "f(x[6])", "f(x[13])", "f(x[19])", "noise", "rate"),
        *("w[0,0]", "w[1,0]", "w[2,0]", "z of mixing[0]", "z of mixing[1]"),
        *("offset[0]", "offset[1]", "gain[0]", "gain[1]"),
    )
    z = torch.randn(3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = dict(zip(estimands.names, estimands(z).T, strict=True))
    np.testing.assert_allclose(values["noise"], z[:, 3].exp(), rtol=1e-12)
    np.testing.assert_allclose(values["w[2,0]"], z[:, 2])
    np.testing.assert_allclose(values["z of mixing[1]"], z[:, 6])
    np.testing.assert_allclose(values["gain[1]"], z[:, 10])


def test_a_value_that_falls_with_z_has_no_closed_form() -> None:
    class Below(dist.TransformedDistribution):  # type: ignore[misc]  # untyped in Pyro
        """Minus a log-normal value, whose support ends at 0."""

        support = constraints.less_than(0.0)

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        flip = torch.distributions.AffineTransform(x.new_zeros(()), -x.new_ones(()))
        slope = pyro.sample("slope", Below(dist.LogNormal(x.new_zeros(()), x.new_ones(())), [flip]))
        f = pyro.deterministic("f", slope * x)
        with pyro.plate("data", len(x)):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, x.new_ones(())).to_event(1), obs=y)
        return sampled

    estimands = Estimands(Program(model, X, Y), X, weights=True, extra=None)
    assert estimands.names[4:] == ("slope",)
    one = torch.ones(1, dtype=torch.float64)
    assert estimands.exact(with_marginals(one, one), one) == {}
