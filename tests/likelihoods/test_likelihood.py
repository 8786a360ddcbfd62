"""The step from f to the observed site, and y in the shape that it takes."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.testing import assert_close

from pyro_bnn import likelihoods
from pyro_bnn.errors import ShapeError
from pyro_bnn.likelihoods import Likelihood, match_observation

F = torch.arange(12.0).reshape(4, 3) / 5

LIKELIHOODS: dict[str, tuple[Likelihood, int, torch.Tensor]] = {
    "Normal": (likelihoods.Normal(0.5), 2, F[:, 1:]),
    "HeteroscedasticNormal": (likelihoods.HeteroscedasticNormal(), 2, F[:, :1]),
    "Bernoulli": (likelihoods.Bernoulli(), 1, torch.tensor([0, 1, 1, 0])),
    "Categorical": (likelihoods.Categorical(3), 3, torch.tensor([0, 2, 1, 1])),
    "Poisson": (likelihoods.Poisson(), 2, torch.tensor([[0.0, 2.0], [1.0, 0], [5.0, 3], [0.0, 1]])),
    "StudentT": (likelihoods.StudentT(4.0, 0.5), 2, F[:, 1:]),
}

every = pytest.mark.parametrize(
    ("likelihood", "num_outputs", "y"), LIKELIHOODS.values(), ids=LIKELIHOODS
)


def test_no_likelihood_is_left_out() -> None:
    exported = {getattr(likelihoods, name) for name in likelihoods.__all__}
    classes = {c for c in exported if isinstance(c, type) and issubclass(c, Likelihood)}
    assert {c.__name__ for c in classes - {Likelihood}} == set(LIKELIHOODS)


@every
def test_the_site_is_y_in_the_plate_data(
    likelihood: Likelihood, num_outputs: int, y: torch.Tensor
) -> None:
    f = F[:, :num_outputs]
    trace = poutine.trace(likelihood).get_trace(f, y)
    node: Any = trace.nodes["y"]
    assert node["is_observed"]
    assert [(frame.name, frame.size) for frame in node["cond_indep_stack"]] == [("data", 4)]
    trace.compute_log_prob()
    expected = likelihood.distribution(f).log_prob(
        match_observation(y.to(node["value"].dtype), node["fn"])
    )
    assert_close(node["log_prob"], expected)
    assert node["log_prob"].shape == (4,)


@every
def test_without_y_it_is_sampled(likelihood: Likelihood, num_outputs: int, y: torch.Tensor) -> None:
    sampled = likelihood(F[:, :num_outputs])
    assert sampled.shape == y.shape


@every
@pytest.mark.parametrize("num_targets", [1, 2, 3])
def test_numbers_of_outputs(
    likelihood: Likelihood, num_outputs: int, y: torch.Tensor, num_targets: int
) -> None:
    expected = dict.fromkeys(("Bernoulli", "Normal", "Poisson", "StudentT"), num_targets)
    expected["HeteroscedasticNormal"] = 2 * num_targets
    name = type(likelihood).__name__
    if name in expected:
        assert likelihood.num_function_outputs(num_targets) == expected[name]
    elif num_targets == 1:
        assert likelihood.num_function_outputs(1) == num_outputs
    else:
        with pytest.raises(ValueError, match=f"{name} has one target: leave num_outputs at 1, not"):
            likelihood.num_function_outputs(num_targets)


NORMAL_1 = dist.Normal(torch.zeros(4, 1), 1.0).to_event(1)
NORMAL_2 = dist.Normal(torch.zeros(4, 2), 1.0).to_event(1)
CLASSES = dist.Categorical(logits=torch.zeros(4, 3))


@pytest.mark.parametrize(
    ("fn", "shape", "expected"),
    [
        (NORMAL_1, (4,), (4, 1)),
        (NORMAL_1, (4, 1), (4, 1)),
        (NORMAL_2, (4, 2), (4, 2)),
        (CLASSES, (4,), (4,)),
        (CLASSES, (4, 1), (4,)),
    ],
)
def test_a_column_comes_and_goes_without_broadcasting(
    fn: Any, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    y = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    matched = match_observation(y, fn)
    assert matched.shape == expected
    assert_close(matched.flatten(), y.flatten())


@pytest.mark.parametrize(
    ("fn", "shape", "expected"),
    [
        (NORMAL_1, (3,), r"\(4, 1\)"),
        (NORMAL_1, (1, 4), r"\(4, 1\)"),
        (NORMAL_1, (4, 2), r"\(4, 1\)"),
        (NORMAL_1, (4, 1, 1), r"\(4, 1\)"),
        (NORMAL_2, (4,), r"\(4, 2\)"),
        (NORMAL_2, (4, 1), r"\(4, 2\)"),
        (CLASSES, (4, 3), r"\(4,\)"),
        (CLASSES, (1,), r"\(4,\)"),
    ],
)
def test_other_shapes_are_refused(fn: Any, shape: tuple[int, ...], expected: str) -> None:
    with pytest.raises(ShapeError) as caught:
        match_observation(torch.zeros(shape), fn)
    assert f"y has shape {shape}, but the likelihood of this network output is over " in str(
        caught.value
    )
    assert caught.match(f"is over {expected}: one row for each row of x, one column for each")


def test_labels_of_classes_lead_to_the_likelihood_of_classes() -> None:
    fn = dist.Normal(torch.zeros(4, 3), 1.0).to_event(1)
    words = r"; if y holds classes, .* below 3 .* likelihood=bnn\.likelihoods\.Categorical\(3\)$"
    for labels in (torch.tensor([0, 2, 1, 0]), torch.tensor([0.0, 2.0, 1.0, 0.0])):
        with pytest.raises(ShapeError, match=words):
            match_observation(labels, fn)
    for numbers in ([0, 3, 1, 0], [0, -1, 1, 0], [0.0, 0.5, 1.0, 2.0]):
        with pytest.raises(ShapeError, match=r"one column for each target$"):
            match_observation(torch.tensor(numbers), fn)


@pytest.mark.parametrize("name", ["Normal", "Bernoulli", "Poisson", "StudentT"])
def test_f_of_one_dimension_is_a_column(name: str) -> None:
    """In a plate of its rows f [N] would otherwise be N targets of each row."""
    likelihood, y = LIKELIHOODS[name][0], torch.tensor([0.0, 1.0, 1.0, 0.0])
    traces = [poutine.trace(likelihood).get_trace(f, y) for f in (F[:, 0], F[:, :1])]
    for trace in traces:
        trace.compute_log_prob()
    assert traces[0].nodes["y"]["log_prob"].shape == (4,)
    assert_close(traces[0].nodes["y"]["log_prob"], traces[1].nodes["y"]["log_prob"])


def test_a_likelihood_without_a_distribution_says_so() -> None:
    class Unfinished(Likelihood):
        pass

    with pytest.raises(TypeError, match=r"Unfinished defines no distribution\(f\), f \(4, 3\)"):
        Unfinished()(F)
    assert Unfinished().num_function_outputs(5) == 5


@pytest.mark.parametrize(
    ("likelihood", "columns", "message"),
    [
        (likelihoods.HeteroscedasticNormal(), 3, r"expects f \[N, 2 O\].* but f has 3 columns"),
        (likelihoods.HeteroscedasticNormal(), 1, r"but f has 1 columns: end the network with an e"),
        (likelihoods.Categorical(3), 5, r"expects f \[N, 3\].* has 5 columns.* num_classes=5"),
        (likelihoods.Categorical(3), 1, r"Categorical\(3\) expects f \[N, 3\].* f has 1 columns"),
    ],
)
def test_columns_of_f_that_the_likelihood_does_not_take_are_refused(
    likelihood: Likelihood, columns: int, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        likelihood(torch.zeros(4, columns))
