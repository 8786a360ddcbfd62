"""Many fits at once are the fits one by one."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_bnn import SVI, guides, registry
from pyro_bnn.capture.c.library import compile_c
from pyro_bnn.infer.svi.fit_each import fit_each, fits_at_once
from pyro_bnn.posterior import GuidePosterior
from pyro_bnn.program import Program
from tests.diagnostics.made_engines import LINEAR, X
from tests.laws import problem

YS = torch.randn(3, 8, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def at_zero(site: dict[str, Any]) -> Tensor:
    return torch.zeros_like(site["value"])


def program() -> Program:
    return Program(LINEAR, X, YS[0])


def parameters(svi: SVI, ys: Tensor = YS) -> list[list[Tensor] | None]:
    fits = fit_each(svi, program(), X, ys, progress=False)
    return [None if g is None else [p.detach() for p in g.parameters()] for g in fits]


@pytest.mark.parametrize(
    "options",
    [{"schedule": "cosine"}, {"schedule": "constant"}, {"kl_warmup": 25}],
    ids=["cosine", "constant", "KL warm-up"],
)
def test_fits_are_those_of_runs_one_by_one(options: dict[str, Any]) -> None:
    make = functools.partial(guides.AutoDelta, init_loc_fn=at_zero)  # no noise: the same steps
    svi = SVI(make, num_steps=30, learning_rate=0.1, compile=False, **options)
    for y, (loc,) in zip(YS, filter(None, parameters(svi)), strict=True):
        posterior = svi.run(LINEAR, (X, y), progress=False)
        assert isinstance(posterior, GuidePosterior)
        (expected,) = posterior.guide.parameters()
        torch.testing.assert_close(loc, expected.detach(), rtol=1e-10, atol=1e-12)


def test_noise_and_starts_differ_between_data_sets_and_repeat_with_the_seed() -> None:
    svi = SVI(guides.AutoNormal, num_steps=5, loc_warmup=0, compile=False)
    same = YS[:1].expand(2, -1, -1)
    state = torch.get_rng_state()
    (first, second), again = parameters(svi, same), parameters(svi, same)
    torch.testing.assert_close(torch.get_rng_state(), state)
    assert first is not None
    assert second is not None
    assert all(bool((a != b).all()) for a, b in zip(first, second, strict=True))
    torch.testing.assert_close(again, [first, second], rtol=0, atol=0)


def test_scales_are_held_in_the_warm_up_of_the_means() -> None:
    make = functools.partial(guides.AutoNormal, init_loc_fn=at_zero)
    svi = SVI(make, num_steps=10, loc_warmup=9, learning_rate=0.03, schedule="constant")
    start = guides.AutoNormal(LINEAR)
    start.setup(X[:1])
    unmoved = start.get_parameter("scale_unconstrained").detach()
    for fit in parameters(svi):
        assert fit is not None
        loc, scale = fit
        # Adam's first step is the learning rate, whatever the gradient
        torch.testing.assert_close(
            (scale - unmoved).abs(), torch.full_like(loc, 0.03), rtol=1e-5, atol=0
        )
        assert float(loc.abs().max()) > 0.1


def test_all_means_of_a_guide_in_parts_move_in_their_warm_up() -> None:
    make = functools.partial(guides.AutoComposite, init_loc_fn=at_zero)
    svi = SVI(make, num_steps=10, loc_warmup=9, learning_rate=0.03, schedule="constant")
    assert fits_at_once(svi)
    for guide in fit_each(svi, program(), X, YS, progress=False):
        assert guide is not None
        assert float(guide.centre().abs().max()) > 0.1  # one step of Adam is the learning rate


def test_a_fit_that_fails_leaves_the_others_as_they_are() -> None:
    svi = SVI(guides.AutoNormal, num_steps=20, compile=False)
    ys = YS.clone()
    good = parameters(svi, ys)
    ys[1] = 1e200
    first, failed, third = parameters(svi, ys)
    assert failed is None
    torch.testing.assert_close([first, third], [good[0], good[2]], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "guide", [n for n, cls in registry.entries("guide").items() if cls.needs_model is None]
)
def test_every_guide_is_batched(guide: str) -> None:
    given = problem("matrix")
    svi = SVI(registry.lookup("guide", guide), num_steps=3, compile=False)
    ys = torch.stack([given.y, 2 * given.y])
    for fit in fit_each(svi, given.program, given.x, ys, progress=False):
        assert fit is not None
        assert bool(fit.sample(5).isfinite().all())


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2},
        {"patience": 5, "num_steps": 100},
        {"clip_norm": 1.0},
        {"optimizer": torch.optim.SGD},
        {"per_example_draws": True},
        {"estimator": "flipout"},
    ],
)
def test_options_that_tie_fits_together_run_one_by_one(options: dict[str, Any]) -> None:
    assert fits_at_once(SVI(guides.AutoNormal))
    assert not fits_at_once(SVI(guides.AutoNormal, **options))
    assert not fits_at_once(SVI(guides.AutoNormal(LINEAR)))


@pytest.mark.slow("whole fits")
def test_steps_are_compiled_where_the_fits_are_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """By sizes alone; the fits are those of uncompiled steps."""
    made: list[object] = []

    def counted(*args: Any, **options: Any) -> Any:
        made.append(compile_c(*args, **options))
        return made[-1]

    monkeypatch.setattr("pyro_bnn.capture.compilers.compile_c", counted)
    make = functools.partial(guides.AutoNormal, init_loc_fn=at_zero)
    short, long = (SVI(make, num_steps=steps, learning_rate=0.05) for steps in (1_000, 1_400))
    parameters(short)
    assert not made
    compiled = parameters(long)
    assert len(made) == 1
    plain = parameters(dataclasses.replace(long, compile=False))
    torch.testing.assert_close(compiled, plain, rtol=1e-8, atol=1e-8)
