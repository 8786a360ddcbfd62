"""What all engines share: data in several forms, starting points, refusals."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import Dataset as TorchDataset

from pyro_bnn import NUTS, SVI, VON, Exact, guides, models, priors
from pyro_bnn.checks import check_positive, check_positive_int
from pyro_bnn.data import Dataset
from pyro_bnn.errors import DataError, OptionError, SiteError
from pyro_bnn.infer.compiling import C_TIME, check_compile, is_compiled
from pyro_bnn.infer.inputs import as_dataset
from pyro_bnn.infer.starting_points import starting_points
from pyro_bnn.program import Program
from tests.oracle import linear_gaussian

X = torch.arange(10.0)[:, None]
Y = torch.arange(10.0) ** 2


# Data


def test_a_data_set_is_itself_and_pairs_and_loaders_become_one() -> None:
    dataset = Dataset(X, Y)
    assert as_dataset(dataset) is dataset
    for data in ((X, Y), DataLoader(TensorDataset(X, Y), batch_size=4)):
        converted = as_dataset(data)
        torch.testing.assert_close(converted.x, X)
        torch.testing.assert_close(converted.y, Y)


class Named(TorchDataset[dict[str, Tensor]]):
    """Rows by name, as many data sets give them."""

    def __init__(self, **parts: Tensor) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts["x"])

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {name: values[row] for name, values in self.parts.items()}


def test_loaders_of_dicts_with_x_and_y() -> None:
    converted = as_dataset(DataLoader(Named(y=Y, x=X), batch_size=4))
    torch.testing.assert_close(converted.x, X)
    torch.testing.assert_close(converted.y, Y)
    oracle = linear_gaussian()
    loaders = [
        DataLoader(rows, batch_size=8)
        for rows in (TensorDataset(oracle.x, oracle.y), Named(x=oracle.x, y=oracle.y))
    ]
    engine = SVI(guides.AutoNormal, num_steps=3, compile=False)
    fits = [engine.run(oracle.model, loader, progress=False) for loader in loaders]
    assert fits[0].losses.tolist() == fits[1].losses.tolist()
    for parts, what in (
        ({"x": X, "target": Y}, "a dict with 'x', 'target'"),
        ({"x": X, "y": Y, "weight": Y}, "a dict with 'x', 'y', 'weight'"),
    ):
        with pytest.raises(DataError, match=f"dicts with keys 'x' and 'y', but .* yields {what}"):
            as_dataset(DataLoader(Named(**parts), batch_size=4))


@pytest.mark.parametrize("engine", [SVI(guides.AutoNormal), NUTS(), Exact(), VON()])
def test_classes_are_no_numbers(engine: Any) -> None:
    """Else text would be fitted by its codes, numbers written as text too."""
    for text in (["ill", "well"] * 5, ["1.5", "2.5"] * 5):
        with pytest.raises(DataError, match=f"classes '{text[0]}', '{text[1]}', but .* a Normal, "):
            engine.run(models.LinearRegression(1), (X, text), progress=False)


def test_other_kinds_of_data_are_refused() -> None:
    with pytest.raises(DataError, match=r"a pair \(x, y\) or a torch DataLoader, not Tensor; of a"):
        as_dataset(X)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="the DataLoader yields no batch"):
        as_dataset(DataLoader(TensorDataset(X[:0], Y[:0])))
    with pytest.raises(DataError, match="the DataLoader drops rows of the data: pass drop_last=F"):
        as_dataset(DataLoader(TensorDataset(X, Y), batch_size=4, drop_last=True))
    with pytest.raises(DataError, match="NaN"):
        as_dataset((X, torch.full((10,), math.nan)))


# Refusals


@pytest.mark.parametrize("value", ["max", None, 1, 0, 1.0])
def test_another_value_of_compile_is_refused(value: object) -> None:
    with pytest.raises(OptionError, match='compile is "auto", True or False, not '):
        check_compile(value)
    for known in ("auto", True, False):
        check_compile(known)


@pytest.mark.parametrize(
    ("option", "num_calls", "num_numbers", "expected"),
    [
        ("auto", 9_000, 1_200, False),  # 6.9 s saved, 7 s to compile
        ("auto", 10_000, 1_200, True),  # the default of SVI
        ("auto", 700, 950_000, True),  # 10.25 ms a step
        ("auto", 650, 950_000, False),
        (True, 1, 1, True),
        (False, 10**9, 10**9, False),
    ],
)
def test_a_graph_is_compiled_where_the_run_gains_more_than_compiling_takes(
    option: Any, num_calls: int, num_numbers: int, expected: bool
) -> None:
    assert is_compiled(option, num_calls, num_numbers) is expected
    sevenths = -(-num_calls // 7) if expected else num_calls // 7
    assert is_compiled(option, sevenths, num_numbers, C_TIME) is expected


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None])
def test_integers_are_checked(value: object) -> None:
    with pytest.raises(OptionError, match="num_steps is an integer of at least 1, not"):
        check_positive_int("num_steps", value)


@pytest.mark.parametrize("value", [0, -0.5, math.inf, math.nan, True, "0.1", None])
def test_positive_numbers_are_checked(value: object) -> None:
    with pytest.raises(OptionError, match="learning_rate is a positive number, not"):
        check_positive("learning_rate", value)


# Starting points


def linear_program(num_inputs: int = 3) -> Program:
    oracle = linear_gaussian(num_inputs=num_inputs)
    return Program(oracle.model, oracle.x, oracle.y)


def test_without_init_points_are_at_the_default() -> None:
    program = linear_program()
    z = starting_points(program, None, 2, seed=0)
    assert torch.equal(z, program.initial.expand(2, -1))
    given = torch.arange(4.0).double()
    assert torch.equal(starting_points(program, None, 1, seed=0, default=given)[0], given)


def test_values_of_sites_and_the_prior_for_the_rest() -> None:
    program = linear_program()
    w = torch.tensor([[1.0], [2.0], [3.0]])
    z = starting_points(program, {"w": w}, 2, seed=0)
    expected = torch.cat([w[:, 0].double(), program.initial[3:]])
    torch.testing.assert_close(z, expected.expand(2, -1))


def test_unknown_sites_and_wrong_shapes_are_refused() -> None:
    program = linear_program()
    with pytest.raises(SiteError, match="init holds 'v', but the model's sites are w, b"):
        starting_points(program, {"v": torch.zeros(1)}, 1, seed=0)
    with pytest.raises(SiteError, match=r"the value of site 'w' has shape \(2, 1\), but the"):
        starting_points(program, {"w": torch.zeros(2, 1)}, 1, seed=0)


def test_other_kinds_of_start_are_refused() -> None:
    with pytest.raises(
        OptionError, match="init is a Posterior, a trained torch module, a dict of sites"
    ):
        starting_points(linear_program(), [1.0], 1, seed=0)  # type: ignore[arg-type]


def test_draws_of_a_posterior() -> None:
    oracle = linear_gaussian()
    posterior = SVI(guides.AutoNormal, num_steps=2).run(
        oracle.model, (oracle.x, oracle.y), progress=False
    )
    program = linear_program()
    z = starting_points(program, posterior, 3, seed=5)
    torch.testing.assert_close(z, posterior.unconstrained(3, seed=5))
    other = linear_program(num_inputs=2)
    with pytest.raises(SiteError, match=r"over w \(3, 1\), b \(1,\), but the model has w \(2, "):
        starting_points(other, posterior, 1, seed=0)


def net(hidden: int = 4) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def data() -> tuple[Tensor, Tensor]:
    return torch.linspace(-1, 1, 12).reshape(6, 2), torch.linspace(0, 1, 6)


def test_a_trained_network_by_name() -> None:
    x, y = data()
    trained = net()
    program = Program(models.bayesian(net(), likelihood=None), x, y)
    z = starting_points(program, trained, 1, seed=0)
    torch.testing.assert_close(program.function(z[0], x), trained(x).detach())


def test_a_trained_network_by_order_and_shape() -> None:
    x, y = data()
    trained = net()
    program = Program(models.MLP(2, hidden=(4,), activation="tanh"), x, y)
    z = starting_points(program, trained, 1, seed=0)
    torch.testing.assert_close(program.function(z[0], x), trained(x).detach())


def test_point_estimates_start_at_the_trained_values_too() -> None:
    x, y = data()
    trained, start = net(), net()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.5)
    program = Program(models.bayesian(start, {"2.*": priors.Normal()}), x, y)
    z = starting_points(program, trained, 1, seed=0)
    torch.testing.assert_close(program.function(z[0], x), trained(x).detach())


@pytest.mark.parametrize("model", ["bayesian", "mlp"])
def test_a_network_that_does_not_fit_is_refused(model: str) -> None:
    """Its last bias fits by name; the rest must not be dropped in silence."""
    x, y = data()
    made = models.bayesian(net()) if model == "bayesian" else models.MLP(2, hidden=(4,))
    with pytest.raises(SiteError, match=r"fit the model neither by name nor by order: it has 0.w"):
        starting_points(Program(made, x, y), net(hidden=5), 1, seed=0)


# DataLoaders that do not yield the data


def test_loaders_that_do_not_yield_the_data_are_refused() -> None:
    rows = TensorDataset(X, Y)
    part = DataLoader(rows, batch_size=4, sampler=RandomSampler(rows, num_samples=6))
    with pytest.raises(DataError, match="sampler draws 6 of the 10 rows of its data set"):
        as_dataset(part)
    drawn, weights = RandomSampler(rows, replacement=True), Y.exp().flatten().tolist()
    for repeating in (
        DataLoader(rows, batch_size=4, sampler=drawn),
        DataLoader(rows, batch_size=4, sampler=WeightedRandomSampler(weights, len(Y))),
        DataLoader(rows, batch_sampler=BatchSampler(drawn, 4, drop_last=False)),
    ):
        with pytest.raises(DataError, match="RandomSampler draws with replacement, so that some"):
            as_dataset(repeating)
    whole = WeightedRandomSampler(weights, len(Y), replacement=False)
    found = as_dataset(DataLoader(rows, batch_size=4, sampler=whole))
    torch.testing.assert_close(found.x.sort(0).values, X.sort(0).values, rtol=0, atol=0)
    with pytest.raises(DataError, match=r"yields pairs \(x, y\), .* but this one yields 3 items"):
        as_dataset(DataLoader(TensorDataset(X, Y, Y), batch_size=4))
    with pytest.raises(DataError, match=r"yields pairs \(x, y\), .* but this one yields Tensor"):
        as_dataset(DataLoader(cast(Any, X), batch_size=4))
