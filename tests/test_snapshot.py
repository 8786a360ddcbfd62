"""What a module is besides its parameters, as it was."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_bnn import likelihoods, models
from pyro_bnn.priors import PriorModule
from pyro_bnn.program.snapshot import Snapshot


def test_a_function_has_nothing_to_keep() -> None:
    snapshot = Snapshot(torch.relu)
    with snapshot.held():
        assert snapshot.buffers == {}


def test_buffers_are_copies() -> None:
    model = models.MLP(2, likelihood=likelihoods.Normal(0.5))
    snapshot = Snapshot(model)
    model.likelihood.scale.fill_(3.0)
    assert_close(snapshot.buffers, {"likelihood.scale": torch.tensor(0.5)})


def test_priors_are_copies() -> None:
    scale = torch.ones(2)
    prior = PriorModule(dist.Normal(torch.zeros(2), scale).to_event(1))
    snapshot = Snapshot(prior)
    scale.fill_(2.0)
    value = torch.zeros(2)  # of log density -log(2 pi s^2) / 2 an entry
    with snapshot.held():
        assert float(prior().log_prob(value)) == pytest.approx(-math.log(2 * math.pi), rel=1e-6)
    assert float(prior().log_prob(value)) == pytest.approx(-math.log(8 * math.pi), rel=1e-6)


def test_the_modules_own_priors_and_modes_come_back_after_an_error() -> None:
    model = models.MLP(2, hidden=())
    snapshot = Snapshot(model)
    layer: Any = model.layers[0]
    kept = layer.weight_prior.distribution
    model.double().eval()
    moved = layer.weight_prior.distribution

    def fail() -> None:
        with snapshot.held():
            held = layer.weight_prior.distribution
            assert held.base_dist.scale.dtype == kept.base_dist.scale.dtype == torch.float32
            assert model.training
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert layer.weight_prior.distribution is moved
    assert not model.training


def test_a_snapshot_pickles_with_its_model() -> None:
    model = nn.Sequential(nn.Dropout())
    pair = pickle.loads(pickle.dumps((model, Snapshot(model))))
    pair[0].eval()
    with pair[1].held():
        assert pair[0][0].training
    assert not pair[0][0].training
