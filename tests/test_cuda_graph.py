"""CUDA graphs: inputs copied in, outputs and state copied out, one line where there can be none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import SVI, guides, models
from pyro_bnn.capture import Captured, cuda_graph
from pyro_bnn.capture.cuda_graph import MAX_GRAPHS, CudaGraphs


def step(state: Tensor, rows: Tensor) -> tuple[Tensor]:
    """Adds the rows' sum to the state in place; returns the state's square."""
    state += rows.sum()
    return (state.square(),)


class OnTheHost(cuda_graph._Recording):
    """A recording whose replay calls the function again, at the same addresses."""

    def __init__(self, fn: Callable[..., tuple[Tensor, ...]], args: Sequence[Tensor]) -> None:
        self._inputs = [a.detach().clone() for a in args]
        self._outputs = tuple(torch.empty_like(v) for v in fn(*(a.clone() for a in args)))
        self._fn = fn
        self._graph = self  # type: ignore[assignment]  # it replays itself

    def replay(
        self, args: Sequence[Tensor] | None = None, num_state: int = 0
    ) -> tuple[Tensor, ...]:
        if args is not None:
            return super().replay(args, num_state)
        for kept, value in zip(self._outputs, self._fn(*self._inputs), strict=True):
            kept.copy_(value)
        return ()


def test_state_is_written_and_outputs_survive_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_graph, "_Recording", OnTheHost)
    graphs = CudaGraphs(step, num_state=1)
    state = torch.tensor([1.0, 2.0])
    (first,) = graphs(state, torch.tensor([1.0, 1.0]))
    assert_close(state, torch.tensor([3.0, 4.0]))
    other = torch.tensor([10.0, 0.0])  # another tensor of the same shape has its own state
    (second,) = graphs(other, torch.tensor([0.0, -1.0]))
    assert_close(other, torch.tensor([9.0, -1.0]))
    assert_close(state, torch.tensor([3.0, 4.0]))
    assert_close(first, torch.tensor([9.0, 16.0]))
    assert_close(second, torch.tensor([81.0, 1.0]))
    (third,) = graphs(state, torch.tensor([5.0]))  # another shape
    assert_close(third, torch.tensor([64.0, 81.0]))


def test_what_is_called_before_the_recording_starts_from_the_values_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("device", "Stream", "stream", "graph", "CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())

    def look_up(place: Tensor, table: Tensor) -> tuple[Tensor]:
        found = table[place]
        place += 1
        return (found,)

    place, table = torch.tensor([2]), torch.tensor([4.0, 5.0, 6.0])
    kept = cuda_graph._Recording(look_up, (place, table))  # an IndexError if it went on to 3
    assert_close(kept._outputs[0], torch.tensor([6.0]))
    assert place.item() == 2


def test_recordings_are_limited_and_further_shapes_still_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_graph, "_Recording", OnTheHost)
    graphs = CudaGraphs(step, num_state=1)
    for n in range(1, MAX_GRAPHS + 3):
        state = torch.zeros(1)
        (value,) = graphs(state, torch.ones(n))
        assert_close(value, torch.tensor([float(n * n)]))
        assert_close(state, torch.tensor([float(n)]))
    assert len(graphs._recordings) == MAX_GRAPHS


def test_what_cannot_be_recorded_is_called_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cuda_graph, "_Recording", fails)
    graphs = CudaGraphs(step, num_state=1)
    state = torch.zeros(1)
    with caplog.at_level(logging.WARNING, logger="pyro_bnn"):
        for total in (2.0, 4.0):
            (value,) = graphs(state, torch.ones(2))
            assert_close(value, torch.tensor([total**2]))
    (record,) = [r for r in caplog.records if r.name == "pyro_bnn"]
    assert record.message == (
        "the graph cannot be replayed as a CUDA graph, and its kernels are launched one by one: "
        "operation not permitted when stream is capturing"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_a_captured_function_gives_the_numbers_of_the_function(compiled: bool) -> None:
    def fn(state: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        total = rows.sin().sum(0)
        return total.exp(), state + total

    captured = Captured(fn, "it", compiled=compiled, rows={1: 0}, num_state=1, strict=True)
    state = torch.zeros(3, dtype=torch.float64, device="cuda")
    expected = state.clone()
    for n in (4, 7, 4):
        rows = torch.randn(n, 3, dtype=torch.float64, device="cuda")
        (value,) = captured(state, rows)
        expected += rows.sin().sum(0)
        assert_close(value, rows.sin().sum(0).exp(), rtol=1e-10, atol=0)
        assert_close(state, expected, rtol=1e-10, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("guide", [guides.AutoNormal, guides.AutoLowRankMultivariateNormal])
def test_on_a_gpu_the_loss_curves_of_both_paths_agree(guide: type[guides.Guide]) -> None:
    x = torch.linspace(-1, 1, 50, dtype=torch.float64, device="cuda").unsqueeze(-1)
    losses = []
    for compile_ in (True, False):
        torch.manual_seed(0)
        model = models.MLP(1, hidden=(20,)).to(device="cuda", dtype=torch.float64)
        svi = SVI(guide, num_steps=200, batch_size=20, compile=compile_)
        losses.append(svi.run(model, (x, x[:, 0].sin()), progress=False).losses)
    assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-8, atol=0)
