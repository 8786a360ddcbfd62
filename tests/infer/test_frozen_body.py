"""Engines on the head of a frozen body: its rows go through once, and the posterior is the same."""

from __future__ import annotations

import copy
import dataclasses
import gc
import logging
import pickle
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import guides, likelihoods, models, priors
from pyro_bnn.data import Dataset
from pyro_bnn.diagnostics.trust.attack import fgsm
from pyro_bnn.errors import ModelError, ShapeError
from pyro_bnn.infer import HMC, IVON, MAMS, MCLMC, NUTS, SGHMC, SVI, SWAG, Ensemble, Laplace
from pyro_bnn.infer.engine import Engine
from pyro_bnn.infer.problem import Problem
from pyro_bnn.posterior import Posterior
from pyro_bnn.program import Program
from pyro_bnn.program import features as module
from pyro_bnn.program.features import FIRST_ROWS

NUM_ROWS = 50
CHUNK = 20  # rows after the first chunk
CHECKED = 40  # most rows that a search for the cut runs
MEAN_FIELD = SVI(guides.AutoNormal, num_steps=20)

ENGINES: dict[str, Engine[Any]] = {
    "SVI": MEAN_FIELD,
    "SVI in batches": SVI(guides.AutoMultivariateNormal, num_steps=20, batch_size=15),
    "SVI, drawn weights": SVI(guides.AutoNormal, num_steps=20, estimator="weight_sampling"),
    "NUTS": NUTS(num_chains=2, warmup_steps=20, num_samples=10),
    "HMC": HMC(num_chains=2, warmup_steps=20, num_samples=10),
    "SGHMC": SGHMC(num_chains=2, warmup_steps=100, num_samples=10, batch_size=15),
    "Laplace": Laplace(num_steps=20),
    "Laplace, Kronecker": Laplace(num_steps=20, structure="kron"),
    "IVON": IVON(num_steps=20, batch_size=15),
    "Ensemble": Ensemble(num_members=3, num_steps=20),
    "Ensemble of guides": Ensemble(num_members=2, member=MEAN_FIELD),
}


class Recurrent(nn.Module):
    """A body of each frozen kind, and its head."""

    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body: nn.Module
        if kind in ("LSTM", "GRU"):
            self.body = getattr(nn, kind)(1, 6, batch_first=True)
        else:
            self.body = nn.Sequential(
                nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 6, 3), nn.BatchNorm1d(6), nn.Dropout(0.5)
            )
            self.get_buffer("body.2.running_mean").fill_(0.3)
        self.head = nn.Linear(6, 1)
        self.body.requires_grad_(requires_grad=False)
        self.double().eval()

    def features(self, x: Tensor) -> Tensor:
        if isinstance(self.body, nn.RNNBase):
            out: Tensor = self.body(x.unsqueeze(-1))[0][:, -1]
            return out
        pooled: Tensor = self.body(x).mean(-1)
        return pooled

    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(x))


class Head(nn.Module):
    """The head alone, by the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1).double()

    def forward(self, features: Tensor) -> Any:
        return self.head(features)


def bayesian(net: nn.Module) -> models.BayesianModule:
    likelihood = likelihoods.Normal(0.3)
    return models.bayesian(net, {"head.*": priors.Normal()}, likelihood).double()


def rows() -> Dataset:
    x = torch.arange(5.0 * NUM_ROWS, dtype=torch.float64).sin().reshape(NUM_ROWS, 5)
    return Dataset(x, x.sum(1).cos())


NEW = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(7, 5)
COUNTED: list[int] = []


def count(_: nn.Module, args: tuple[Tensor, ...], __: object) -> None:
    COUNTED.append(len(args[0]))


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a known number of rows, whatever a row costs."""
    COUNTED.clear()
    monkeypatch.setattr(module, "rows_at_once", lambda *_: CHUNK)


def counted(net: nn.Module) -> models.BayesianModule:
    model = bayesian(net)
    body: Any = model.net.body
    body.register_forward_hook(count)
    return model


KINDS = [("SVI", "GRU"), ("Laplace", "GRU"), ("SVI in batches", "conv"), ("Laplace", "conv")]


@pytest.mark.parametrize(("name", "kind"), [*((name, "LSTM") for name in ENGINES), *KINDS])
def test_the_posterior_is_that_of_the_head_on_features(name: str, kind: str) -> None:
    net, data = Recurrent(kind), rows()
    with torch.no_grad():
        features, new = net.features(data.x), net.features(NEW)
    engine = ENGINES[name]
    expected = engine.run(bayesian(Head()), (features, data.y), progress=False)
    posterior = engine.run(counted(net), data, progress=False)
    chunks = [FIRST_ROWS, CHUNK, NUM_ROWS - FIRST_ROWS - CHUNK]
    assert [n for n in COUNTED if n >= chunks[-1]] == chunks  # all others look for the cut
    assert sum(COUNTED) <= NUM_ROWS + CHECKED * (2 if "guides" in name else 1)
    COUNTED.clear()
    predicted, known = posterior.predict(NEW, 20), expected.predict(new, 20)
    assert [len(NEW)] == COUNTED
    for one, other in ((predicted.mean, known.mean), (predicted.sd, known.sd)):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(
        posterior.log_likelihood((NEW, NEW[:, 0]), 20),
        expected.log_likelihood((new, NEW[:, 0]), 20),
        rtol=1e-6,
        atol=1e-8,
    )


@pytest.mark.parametrize("kind", ["LSTM", "conv"])
def test_an_exported_program_takes_rows_and_not_features(kind: str, tmp_path: Path) -> None:
    posterior = MEAN_FIELD.run(bayesian(Recurrent(kind)), rows(), progress=False)
    posterior.export(tmp_path / "net.pt2", NEW, num_samples=20)
    program = torch.export.load(tmp_path / "net.pt2").module()
    expected = posterior.predict(NEW, 20)
    found = program(NEW)
    torch.testing.assert_close(found["mean"], expected.mean)
    torch.testing.assert_close(found["sd"], expected.sd)


def test_rows_of_another_shape_are_told_in_the_shape_of_rows(tmp_path: Path) -> None:
    net = nn.Sequential()
    net.add_module("body", nn.Linear(5, 4).requires_grad_(requires_grad=False))
    net.add_module("head", nn.Linear(4, 1))
    posterior = MEAN_FIELD.run(bayesian(net.double()), rows(), progress=False)
    with pytest.raises(ShapeError, match=r"rows of shape \(3,\).* of shape \(5,\)"):
        posterior.export(tmp_path / "it.pt2", torch.zeros(2, 3, dtype=torch.float64))


def test_attacks_move_rows_and_not_features() -> None:
    net, y = Recurrent("conv"), NEW[:, 0]
    posterior = SVI(guides.AutoDelta, num_steps=5).run(bayesian(net), rows(), progress=False)
    z = posterior.unconstrained(1)[0]
    x = NEW.clone().requires_grad_()
    f = net.features(x) @ z[:6] + z[6]
    loss = -torch.distributions.Normal(f, 0.3).log_prob(y).sum()
    (expected,) = torch.autograd.grad(loss, x)
    attacked = fgsm(posterior, (NEW, y), 0.1, num_samples=1)
    torch.testing.assert_close(attacked.gradient, expected)
    torch.testing.assert_close(attacked.x, NEW + 0.1 * expected.sign())


class TwoHeads(Recurrent):
    """The head's output times a function of x: the tensors that cross the cut are two."""

    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(x)) * x[:, :1].exp()


@pytest.mark.parametrize("name", ["SVI", "NUTS", "SGHMC", "Laplace", "Ensemble"])
def test_a_network_around_its_head_has_the_posterior_of_the_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = ENGINES[name].run(counted(TwoHeads("conv")), rows(), progress=False)
    assert sum(COUNTED) <= NUM_ROWS + CHECKED
    with monkeypatch.context() as without:
        without.setattr(models.BayesianModule, "frozen_body", lambda *_: None)
        expected = ENGINES[name].run(bayesian(TwoHeads("conv")), rows(), progress=False)
        known = expected.predict(NEW, 20)
    found = posterior.predict(NEW, 20)
    torch.testing.assert_close(found.mean, known.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.sd, known.sd, rtol=1e-6, atol=1e-8)


def test_what_is_read_back_runs_new_rows_through_the_body(tmp_path: Path) -> None:
    """The file holds rows, not features, and the values of the body."""
    posterior = MEAN_FIELD.run(bayesian(Recurrent()), rows(), progress=False)
    expected = posterior.predict(NEW, 20).mean
    posterior.save(tmp_path / "fit")
    other = Recurrent()
    with torch.no_grad():
        other.get_parameter("body.weight_ih_l0").add_(1)
    read = Posterior.load(tmp_path / "fit", bayesian(other))
    torch.testing.assert_close(read.program.example_x, rows().x[:2])
    copies = (read, pickle.loads(pickle.dumps(posterior)), copy.deepcopy(posterior))
    for each in copies:
        torch.testing.assert_close(each.predict(NEW, 20).mean, expected)


def test_the_body_has_the_values_of_init() -> None:
    data, net, other = rows(), Recurrent(), Recurrent()
    with torch.no_grad():
        other.get_parameter("body.weight_ih_l0").add_(1)
        features = other.features(data.x)
    still = SVI(guides.AutoDelta, num_steps=1, learning_rate=1e-12)
    init = still.run(bayesian(other), data, progress=False)
    for start in (init, other):
        posterior = still.run(bayesian(net), data, init=start, progress=False)
        z = posterior.unconstrained(1)[0]
        f = features @ z[:6] + z[6]
        expected = torch.distributions.Normal(f, 0.3).log_prob(data.y).sum()
        torch.testing.assert_close(posterior.log_likelihood(data, 1).sum(), expected)
        prior = posterior.log_joint(data, 1) - expected
        assert posterior.losses[0] == pytest.approx(float(-(expected + prior)), rel=1e-6)


class Clamped(Recurrent):
    """What comes after the head does nothing where its output is small."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).clamp(-3.0, 3.0)


class Bent(Recurrent):
    """A skip connection that is off at most rows."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + 10 * (x[:, :1] - 1.5).relu()


class ClampedInPlace(Recurrent):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).clamp_(-3.0, 3.0)


@pytest.mark.parametrize("kind", [Clamped, Bent, ClampedInPlace])
def test_what_comes_after_the_head_is_kept_where_it_does_nothing_at_most_rows(
    kind: type[Recurrent],
) -> None:
    torch.manual_seed(0)
    net, data = kind(), rows()
    model = bayesian(net)
    program = Program(model, data.x, data.y)
    z = 50.0 * torch.ones(program.num_latents, dtype=torch.float64)
    x = torch.linspace(-3, 3, 40, dtype=torch.float64).reshape(8, 5)
    with torch.no_grad():
        f = program.function(z, program.inputs(x), program.params)
        net.get_parameter("head.weight").fill_(50.0)
        net.get_parameter("head.bias").fill_(50.0)
        torch.testing.assert_close(f.reshape(-1), net(x).reshape(-1))


INIT_ENGINES = {
    **ENGINES,
    "MAMS": MAMS(num_chains=2, warmup_steps=20, num_samples=10),
    "MCLMC": MCLMC(num_chains=2, warmup_steps=20, num_samples=10),
    "SWAG": SWAG(),
}


@pytest.mark.parametrize("name", INIT_ENGINES)
def test_every_engine_fits_on_the_features_of_the_body_of_init(name: str) -> None:
    data, net, other = rows(), Recurrent(), Recurrent()
    with torch.no_grad():
        other.get_parameter("body.weight_ih_l0").add_(1)
    how: dict[str, Any] = {"init": other, "seed": 1, "progress": False}
    found = INIT_ENGINES[name].run(bayesian(net), data, **how)
    expected = INIT_ENGINES[name].run(bayesian(other), data, **how)
    torch.testing.assert_close(found.unconstrained(4), expected.unconstrained(4))
    torch.testing.assert_close(found.predict(NEW, 4).mean, expected.predict(NEW, 4).mean)


def test_rows_of_a_problem_are_features_of_the_body_as_it_is() -> None:
    data, net, other = rows(), Recurrent(), Recurrent()
    problem = Problem(bayesian(net), data, data, None, 0, "SVI")
    before = problem.rows.x
    assert problem.rows.x is before
    copied = pickle.loads(pickle.dumps(problem))
    torch.testing.assert_close(copied.rows.x, before, rtol=0, atol=0)
    with torch.no_grad():
        changed = other.get_parameter("body.weight_ih_l0").add_(1)
        problem.program.set_params({"net.body.weight_ih_l0": changed})
        expected, first = other.features(data.x), other.features(data.x[:2])
    torch.testing.assert_close(problem.rows.x[:, 0], expected)
    torch.testing.assert_close(problem.program.example.x[:, 0], first)
    member = dataclasses.replace(problem, seed=1)
    torch.testing.assert_close(member.rows.x, before)


def test_a_posterior_keeps_no_features_of_its_rows() -> None:
    posterior = MEAN_FIELD.run(bayesian(Recurrent()), rows(), progress=False)
    gc.collect()
    shape = (NUM_ROWS, 1, 6)
    held = [v for v in gc.get_objects() if isinstance(v, Tensor) and tuple(v.shape) == shape]
    assert not held
    assert posterior.predict(NEW, 20).mean.shape == (7, 1)


def test_a_body_that_is_trained_later_leaves_the_earlier_posterior() -> None:
    model, data = bayesian(Recurrent("conv")), rows()
    first = MEAN_FIELD.run(model, data, progress=False)
    expected = first.predict(NEW, 20).mean
    with torch.no_grad():
        model.net.get_parameter("body.1.weight").add_(1)
    model.net.requires_grad_(requires_grad=True)
    second = MEAN_FIELD.run(model, data, progress=False)
    own = dict(model.named_parameters())["net.body.1.weight"].detach()
    assert bool((second.params["net.body.1.weight"] != own).all())
    torch.testing.assert_close(first.predict(NEW, 20).mean, expected)
    model.net.requires_grad_(requires_grad=False)
    third = MEAN_FIELD.run(model, data, progress=False)
    torch.testing.assert_close(first.predict(NEW, 20).mean, expected)
    assert bool((third.predict(NEW, 20).mean != expected).all())


def test_batches_of_a_loader_go_through_the_body() -> None:
    data = rows()
    loader: Any = DataLoader(TensorDataset(data.x, data.y), batch_size=25)
    posterior = MEAN_FIELD.run(counted(Recurrent()), loader, progress=False)
    assert COUNTED.count(FIRST_ROWS) >= 20  # steps
    assert posterior.predict(NEW, 20).mean.shape == (7, 1)


def test_dropout_and_batch_normalisation_in_training_mode_are_refused() -> None:
    net = Recurrent("conv")
    net.get_submodule("body.3").train()
    with pytest.raises(ModelError, match=r"net.body.3 is a Dropout in training mode"):
        MEAN_FIELD.run(bayesian(net), rows(), progress=False)
    net = Recurrent("conv")
    net.get_submodule("body.2").train()
    with pytest.raises(ModelError, match=r"net.body.2 is a BatchNorm1d in training mode"):
        MEAN_FIELD.run(bayesian(net), rows(), progress=False)


def test_rows_of_another_shape_are_named_as_such() -> None:
    posterior = MEAN_FIELD.run(bayesian(Recurrent("conv")), rows(), progress=False)
    with pytest.raises(ShapeError, match=r"rows of shape \(4,\); it was fitted to rows of shape"):
        posterior.predict(NEW[:, :4])


def test_without_room_on_the_disk_the_body_runs_at_every_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = rows()
    expected = MEAN_FIELD.run(bayesian(Recurrent("conv")), data, progress=False)
    monkeypatch.setattr("pyro_bnn.memory.STORED_DRAWS", 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: dataclasses.make_dataclass("D", ["free"])(1))
    with caplog.at_level(logging.WARNING, "pyro_bnn"):
        posterior = MEAN_FIELD.run(bayesian(Recurrent("conv")), data, progress=False)
    assert "the body of the network runs at every step, not once" in caplog.text
    torch.testing.assert_close(posterior.predict(NEW, 20).mean, expected.predict(NEW, 20).mean)


def test_features_in_a_file_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data, engine = rows(), ENGINES["SVI in batches"]
    expected = engine.run(bayesian(Recurrent()), data, progress=False)
    monkeypatch.setattr("pyro_bnn.memory.STORED_DRAWS", 0)
    posterior = engine.run(bayesian(Recurrent()), data, progress=False)
    torch.testing.assert_close(
        posterior.predict(NEW, 20).mean, expected.predict(NEW, 20).mean, rtol=0, atol=0
    )


class Autocast(nn.Module):
    """A body in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 6).requires_grad_(requires_grad=False), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Any:
        with torch.autocast(x.device.type, torch.bfloat16):
            h = self.layer(x)
        return self.head(h.float())


def test_a_body_under_autocast() -> None:
    net, data = Autocast(), rows()
    x, y = data.x.float(), data.y.float()
    program = Program(models.bayesian(net, {"head.*": priors.Normal()}), x, y)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = net.layer(x)
    assert expected.dtype == torch.bfloat16
    torch.testing.assert_close(program.inputs(x)[:, 0], expected.float(), rtol=0, atol=0)


def test_features_are_taken_as_they_are() -> None:
    data = rows()
    program = Program(bayesian(Recurrent()), data.x, data.y)
    features = program.inputs(data.x)
    assert program.inputs(features) is features
    torch.testing.assert_close(program.batch(features, data.y).x, features, rtol=0, atol=0)
    z = program.initial
    torch.testing.assert_close(program.function(z, features), program.function(z, data.x))


class Weighted(models.BayesianModule):
    """Each row counts by what its first input says, which no feature has."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        assert x.ndim == 2
        with pyro.poutine.scale(scale=1.0 + x[:, 0].sigmoid()):
            return super().forward(x, y)


def test_a_forward_of_ones_own_reads_rows_and_not_features() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    net[0].requires_grad_(requires_grad=False)
    model = Weighted(net, {"2.*": priors.Normal()}, likelihoods.Normal(0.1))
    x = torch.randn(12, 3, dtype=torch.float64)
    program = Program(model, x, x[:, 0])
    assert program.inputs(x).shape == x.shape
