"""Runs of SMC: seeds, checkpoints, what is refused, what is told."""

from __future__ import annotations

import logging
import signal
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_bnn import SMC, likelihoods, models, priors
from pyro_bnn.errors import DivergenceError, FileFormatError, OptionError, SiteError
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.smc.run import Islands
from tests.infer.smc.problems import network

TINY: dict[str, Any] = {
    "num_islands": 2,
    "num_particles": 12,
    "max_moves": 4,
    "num_steps": 4,
    "ess_share": 0.4,
}
TINY["compile"] = False


def fit(**options: Any) -> Any:
    model, data = network()
    own = {name: options.pop(name) for name in list(options) if hasattr(SMC, name)}
    return SMC(**{**TINY, **own}).run(model, data, progress=False, **options)


def test_one_seed_is_one_fit_and_islands_differ() -> None:
    one, again, other = fit(seed=3), fit(seed=3), fit(seed=4)
    torch.testing.assert_close(again.stored, one.stored, rtol=0, atol=0)
    assert again.options["log_evidences"] == one.options["log_evidences"]
    assert other.log_evidence != one.log_evidence
    assert len(set(one.options["log_evidences"])) == 2
    longer = fit(seed=3, num_islands=3)  # the first islands are the same
    torch.testing.assert_close(longer.stored[:2], one.stored, rtol=0, atol=0)


@pytest.mark.parametrize("compile_", [False, True], ids=["captured", "in C"])
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    share: float, compile_: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, count, stop = Checkpoint.step, 0, -1

    def counted(self: Checkpoint, run: Any) -> None:
        nonlocal count
        count += 1
        if count == stop:
            signal.raise_signal(signal.SIGINT)
        step(self, run)

    monkeypatch.setattr(Checkpoint, "step", counted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        whole = fit(compile=compile_)
        stop, count = round(share * count), 0
        with pytest.raises(Interrupted, match=r"stopped at inverse temperature .* of island") as at:
            fit(compile=compile_, checkpoint=tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    reached: Any = at.value.posterior
    assert (reached is None) == (share < 0.5)  # no island had ended
    if reached is not None:
        torch.testing.assert_close(reached.stored, whole.stored[:1], rtol=0, atol=0)
        assert reached.options["interrupted"]
        assert reached.options["log_evidences"] == whole.options["log_evidences"][:1]
    stop = -1
    parts = fit(compile=compile_, checkpoint=tmp_path, resume=True)
    torch.testing.assert_close(parts.stored, whole.stored, rtol=0, atol=0)
    assert {k: v.tolist() for k, v in parts.stages.items()} == {
        k: v.tolist() for k, v in whole.stages.items()
    }
    assert parts.options == whole.options
    over = fit(compile=compile_, checkpoint=tmp_path, resume=True)
    torch.testing.assert_close(over.stored, whole.stored, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("island", 5),
        ("temperature", 1.5),
        ("step_size", 0.0),
        ("roots", torch.full((12,), 99)),
        ("told", torch.zeros(2, 3, dtype=torch.float64)),
        ("drawn", [[torch.zeros(1), torch.zeros(1), torch.zeros(1)]]),
    ],
)
def test_a_state_of_another_run_is_refused(
    name: str, value: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(checkpoint=tmp_path)
    restore = Islands.restore
    monkeypatch.setattr(Islands, "restore", lambda own, state: restore(own, {**state, name: value}))
    with pytest.raises(FileFormatError):
        fit(checkpoint=tmp_path, resume=True)


def test_a_flat_prior_is_refused() -> None:
    model = models.MLP(1, hidden=(3,), prior={"*.weight": priors.Normal(), "*.bias": priors.Flat()})
    with pytest.raises(SiteError, match=r"the flat one of layers.0.bias, layers.1.bias: give it"):
        SMC(**TINY).run(model, network()[1], progress=False)


def test_a_held_value_whose_density_depends_on_others_is_refused() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        weight = pyro.sample("weight", dist.Normal(0.0, scale))
        f = pyro.deterministic("f", weight * x)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f.squeeze(-1), 1.0), obs=y)

    held = pyro.condition(model, data={"weight": torch.tensor(0.7)})
    with pytest.raises(SiteError, match="at which weight is held, as its density depends"):
        SMC(**TINY).run(held, network()[1], progress=False)


def test_a_start_is_refused() -> None:
    with pytest.raises(OptionError, match="whose particles start at draws from the prior: leave"):
        fit(init={"layers.0.bias": torch.zeros(3)})


def test_values_of_parameters_are_held_and_told(caplog: pytest.LogCaptureFixture) -> None:
    x, y = network()[1]
    model = models.Rank1MLP(1, hidden=(3,), likelihood=likelihoods.Normal(0.2))
    with caplog.at_level(logging.WARNING):
        one = SMC(**TINY).run(model, (x, y), progress=False)
    assert "SMC holds point-estimated parameters at their values: " in caplog.text
    for name, value in model.named_parameters():
        if name in one.params:
            torch.testing.assert_close(one.params[name], value.detach())
    other = models.Rank1MLP(1, hidden=(3,), likelihood=likelihoods.Normal(0.2))
    with torch.no_grad():
        for value in other.parameters():
            value.mul_(2)
    trained = SMC(**TINY).run(other, (x, y), progress=False)
    started = SMC(**TINY).run(model, (x, y), init=trained, progress=False)
    torch.testing.assert_close(started.stored, trained.stored, rtol=0, atol=0)


def test_no_draw_of_finite_density() -> None:
    model = models.MLP(1, hidden=(3,), prior=priors.Normal(1e30), likelihood=likelihoods.Normal(1))
    with pytest.raises(DivergenceError, match="no draw of 24 from the prior has a finite density"):
        SMC(**TINY).run(model, network()[1], progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_islands": 0}, "num_islands is an integer of at least 1, not 0"),
        ({"num_particles": 1}, "num_particles is an integer of at least 2, not 1"),
        ({"max_moves": 1}, "max_moves is an integer of at least 2, not 1"),
        ({"num_steps": 0}, "num_steps is an integer of at least 1, not 0"),
        ({"ess_share": 1.0}, "ess_share is a number between 0 and 1, not 1.0"),
        ({"target_accept": 0}, "target_accept is a number between 0 and 1, not 0"),
        ({"compile": "yes"}, "compile is"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SMC(**options)


def test_the_bar_shows_the_inverse_temperature(capfd: pytest.CaptureFixture[str]) -> None:
    model, data = network()
    SMC(**TINY).run(model, data, progress=True)
    shown = capfd.readouterr().err
    assert "SMC: " in shown
    assert "island 2 of 2, inverse temperature 1" in shown


def test_given_steps_are_taken() -> None:
    stages = fit().stages
    assert stages["num_steps"].min() >= 2
    assert stages["num_steps"].max() <= 6
    assert SMC.is_exact


def test_ancestors_are_draws_of_the_prior_and_only_get_fewer() -> None:
    posterior = fit(num_particles=60)
    stages = posterior.stages
    for island in range(2):
        own = stages["ancestors"][stages["island"] == island]
        assert bool((own[1:] <= own[:-1]).all())
        assert own[-1] < 0.6 * own[0]
    assert posterior.sample_stats["ancestor"].max() < 2 * 60  # of which so many were drawn
