"""The last layer in closed form where some rows, none of the first two, have more than f."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_bnn import SVI, bayesian, guides, likelihoods, priors
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.infer.svi.estimators.expectations import OneOutputEach, Square, expectation_of
from pyro_bnn.models.from_network import BayesianModule
from pyro_bnn.models.outputs import record_output
from pyro_bnn.program.program import Program
from pyro_bnn.program.rows import spread_over

N = 300
X = torch.randn(N, 2, generator=torch.Generator().manual_seed(0)).sort(0).values


class OfRows(BayesianModule):
    """A network, whose rows have what ``distribution`` makes of f and x."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The model."""
        f = record_output(self, self.network, x)
        with pyro.plate("data", len(x), dim=-1):
            drawn: Tensor = pyro.sample("y", self.distribution(f, x), obs=y)
        return drawn

    def distribution(self, f: Tensor, x: Tensor) -> Any:
        """Three classes, one of which is more frequent in some rows."""
        return dist.Categorical(logits=f + x.clamp(min=0)[:, :1] * torch.eye(3)[0])


class Bounded(OfRows):
    """Noise around f within bounds."""

    def distribution(self, f: Tensor, x: Tensor) -> Any:
        """Of the same sd in all rows."""
        return dist.Normal(f[:, 0].clamp(-30, 30), torch.ones_like(x[:, 0]))


class Plain(OfRows):
    """Noise of an sd that is known, and another one in some rows."""

    def distribution(self, f: Tensor, x: Tensor) -> Any:
        """Gaussian around f as it is."""
        return dist.Normal(f[:, 0], torch.where(x[:, 0] > 0, 3.0, 0.1))


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        f: Tensor = self.layer(x)
        return f.clamp(-30, 30)


def fit(model: Any, y: Tensor) -> Any:
    engine = SVI(guides.AutoComposite, estimator="last_layer", num_steps=2, compile=False)
    return engine.run(model, (X, y), progress=False)


def test_classes_with_an_offset_in_later_rows_are_refused() -> None:
    """Jensen's bound takes the logits of all rows to be f."""
    model = OfRows(nn.Linear(2, 3), priors.Normal(1.0), likelihoods.Categorical(3))
    with pytest.raises(OptionError, match="last_layer_draws"):
        fit(model, torch.arange(N) % 3)


def test_a_network_with_bounds_that_no_row_reaches_is_refused() -> None:
    model = bayesian(Clamped(), likelihood=likelihoods.Normal(1.0))
    with pytest.raises(SiteError, match="linear"):
        fit(model, X.sum(-1))


@pytest.mark.parametrize(("kind", "expected"), [(Bounded, OneOutputEach), (Plain, Square)])
def test_two_nodes_serve_a_square_alone(kind: Any, expected: type) -> None:
    program = Program(
        kind(nn.Linear(2, 1), priors.Normal(1.0), likelihoods.Normal(1.0)), X, X[:, 0]
    )
    assert type(expectation_of(program, program.sites)) is expected


def test_rows_that_are_looked_at_are_the_first_and_the_extremes_and_few() -> None:
    x = torch.zeros(10_000, 3)
    x[4_321, 1], x[7_777, 2] = 5.0, -5.0
    rows = spread_over(x, 100).tolist()
    assert {0, 1, 4_321, 7_777, 9_999} <= set(rows)
    assert len(rows) <= 100
    assert spread_over(x[:1], 100).tolist() == [0]
    assert spread_over(x[:, :0], 4).tolist() == [0, 1, 9_999]
