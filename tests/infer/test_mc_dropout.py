"""MC dropout as an engine: networks as they are, and the training that SVI makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_bnn import SVI, MCDropout, bayesian_dropout, guides, likelihoods, mc_dropout, models
from pyro_bnn.errors import ModelError, OptionError

X = torch.linspace(-1, 1, 24).reshape(8, 3)
Y = X.sum(-1).sin()


def model() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 1))
    return bayesian_dropout(net, likelihoods.Normal(0.1))


def test_without_steps_the_network_is_taken_as_it_is(tmp_path: Path) -> None:
    posterior: Any = MCDropout(num_steps=0).run(
        model(), (X, Y), progress=False, checkpoint=tmp_path / "run"
    )
    f = posterior.function_draws(X, 50)
    first = next(iter(posterior.sample(50).values()))  # the noise of masks, one a draw
    w, b, v, c = (p.detach() for p in model().net.parameters())
    kept = (torch.special.ndtr(first) >= 0.4) / 0.6  # the lowest are dropped
    expected = ((X @ w.T + b).relu() * kept.reshape(50, 1, 8)) @ v.T + c
    assert_close(f, expected)
    assert_close(mc_dropout(model(), (X, Y)).function_draws(X, 50), f, rtol=0, atol=0)
    assert (posterior.engine, posterior.method) == ("MCDropout", "AutoDropout")
    again = MCDropout(num_steps=0).run(
        model(), (X, Y), progress=False, checkpoint=tmp_path / "run", resume=True
    )
    assert_close(again.function_draws(X, 50), f, rtol=0, atol=0)


def test_with_steps_it_is_trained_under_masks_of_each_row() -> None:
    options: dict[str, Any] = {"num_steps": 30, "batch_size": 4, "compile": False}
    ours = MCDropout(**options).run(model(), (X, Y), seed=2, progress=False)
    svi = SVI(guides.AutoDropout, per_example_draws=True, **options)
    theirs = svi.run(model(), (X, Y), seed=2, progress=False)
    assert_close(ours.function_draws(X, 20), theirs.function_draws(X, 20), rtol=0, atol=0)
    assert_close(ours.losses, theirs.losses, rtol=0, atol=0)
    assert ours.engine == "MCDropout"
    as_it_is = mc_dropout(model(), (X, Y)).function_draws(X, 20)
    assert not torch.allclose(ours.function_draws(X, 20), as_it_is)


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(ModelError, match="this one is not of bayesian_dropout"):
        MCDropout(num_steps=0).run(models.MLP(3), (X, Y), progress=False)
    with pytest.raises(OptionError, match="init would have no effect"):
        MCDropout(num_steps=0).run(model(), (X, Y), init=nn.Linear(3, 1), progress=False)
    with pytest.raises(OptionError, match="num_steps"):
        MCDropout(num_steps=-1)
