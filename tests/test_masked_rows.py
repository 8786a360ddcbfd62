"""Rows that are masked, by a handler or in the distribution of y: whichever they are."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_bnn import NUTS, VON, Laplace
from pyro_bnn.errors import ModelError, OptionError

NUM_ROWS, NOISE = 12, 0.5
PLACES = torch.arange(NUM_ROWS)
MASKS = {
    "first": PLACES == 0,
    "second": PLACES == 1,
    "last": PLACES == NUM_ROWS - 1,
    "some": PLACES % 3 == 0,
    "none": PLACES < 0,
    "all": PLACES >= 0,
}
KINDS = ("handler", "plate inside", "distribution", "event", "each number", "event, handler")


def masked(kind: str) -> Any:
    """A linear model of two inputs; the third says whether a row is seen."""

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        f, seen = pyro.deterministic("f", x[:, :2] @ w), cast(Any, x[:, 2] > 0.5)
        fn: Any = dist.Normal(f, NOISE)
        if kind.startswith("event"):
            fn = dist.Normal(f[:, None], NOISE).to_event(1)
        if kind == "each number":
            fn = dist.Normal(f[:, None], NOISE).mask(seen[:, None]).to_event(1)
        by_fn = kind in ("distribution", "event")
        handler = kind in ("handler", "event, handler")
        outside = poutine.mask(mask=seen) if kind == "plate inside" else contextlib.nullcontext()
        inside = poutine.mask(mask=seen) if handler else contextlib.nullcontext()
        with outside, pyro.plate("data", len(x)), inside:
            return pyro.sample("y", fn.mask(seen) if by_fn else fn, obs=y)

    return model


def rows(hidden: Tensor) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_ROWS, 2, generator=generator, dtype=torch.double)
    y = x @ torch.tensor([1.0, -1.0], dtype=torch.double)
    noise = NOISE * torch.randn(NUM_ROWS, generator=generator, dtype=torch.double)
    return torch.cat([x, ~hidden[:, None]], 1), y + noise


@pytest.fixture(autouse=True)
def double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.double)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("hidden", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_posterior_is_that_of_the_rows_that_are_seen(kind: str, hidden: Tensor) -> None:
    """In closed form; it was refused where one of the first two rows was masked by a handler."""
    x, y = rows(hidden)
    engine = Laplace(structure="full", curvature="hessian")
    posterior = engine.run(masked(kind), (x, y), progress=False)
    of_seen = x[~hidden, :2]
    precision = torch.eye(2) + of_seen.T @ of_seen / NOISE**2
    mean = torch.linalg.solve(precision, of_seen.T @ y[~hidden] / NOISE**2)
    guide = cast(Any, posterior.guide)
    torch.testing.assert_close(guide.loc.detach(), mean, rtol=1e-4, atol=1e-5)
    factor = (guide.scale[:, None] * guide.scale_tril).detach()
    torch.testing.assert_close(factor @ factor.T, torch.linalg.inv(precision), rtol=1e-6, atol=0)

    prediction = posterior.predict(x, num_samples=50)
    f = prediction.function_draws[..., 0]
    expected = dist.Normal(f, NOISE).log_prob(y).logsumexp(0) - torch.tensor(50.0).log()
    found = prediction.log_prob(y)
    torch.testing.assert_close(found, torch.where(hidden, 0.0, expected))
    assert prediction.sd.min() > NOISE  # a row that is masked has a distribution of y, too


@pytest.mark.parametrize("hidden", MASKS.values(), ids=MASKS)
def test_a_sampler_takes_the_same_rows(hidden: Tensor) -> None:
    x, y = rows(hidden)
    engine = NUTS(num_chains=1, warmup_steps=5, num_samples=5)
    for kind in ("handler", "distribution"):
        program = engine.run(masked(kind), (x, y), progress=False).program
        z = torch.tensor([0.3, -0.2])
        found = program.log_likelihood(z, program.batch(x, y))
        expected = dist.Normal(x[:, :2] @ z, NOISE).log_prob(y)
        torch.testing.assert_close(found, torch.where(hidden, 0.0, expected))


@pytest.mark.parametrize("hidden", MASKS.values(), ids=MASKS)
def test_what_is_not_built_for_masks_refuses_them_wherever_they_are(hidden: Tensor) -> None:
    for engine in (Laplace(), VON()):
        for kind, what in (("handler", "rows that are masked"), ("event", "MaskedDistribution")):
            with pytest.raises(OptionError, match=f'curvature="ggn" is not built for .*{what}'):
                engine.run(masked(kind), rows(hidden), progress=False)


@pytest.mark.parametrize("hidden", MASKS.values(), ids=MASKS)
def test_an_obs_mask_is_refused_by_its_name(hidden: Tensor) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        f, seen = pyro.deterministic("f", x[:, :2] @ w), cast(Any, x[:, 2] > 0.5)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, NOISE), obs=y, obs_mask=seen)

    with pytest.raises(ModelError, match=r'obs_mask= makes of "y" a latent .*poutine\.mask\(mask='):
        Laplace().run(model, rows(hidden), progress=False)
