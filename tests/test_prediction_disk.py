"""What exceeds the bound on memory: in files, by blocks of rows, with the same numbers."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_bnn import Program, likelihoods, memory, models
from pyro_bnn.data import Standardiser
from pyro_bnn.errors import OptionError, OutputError
from pyro_bnn.files.pages import is_mapped
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.map_draws import Chunks

S, N = 20, 400
UNITS = Standardiser(torch.tensor(5.0).double(), torch.tensor(3.0).double())
# Bytes, where 20 draws are 64,000 of f and four times as many with y and its moments
BY_DRAWS = (200_000, 200_000)  # bound and working set: two draws at all rows at once
BY_ROWS = (60_000, 40_000)  # a draw at all rows, which takes 77,000 or more, exceeds the bound
BOUND = BY_ROWS[0]
NUMBERS: dict[str, Callable[[], PyroModule]] = {
    "homoscedastic": lambda: models.MLP(3, hidden=(8,)),
    "heteroscedastic": lambda: models.MLP(
        3, hidden=(8,), likelihood=likelihoods.HeteroscedasticNormal()
    ),
    "two targets": lambda: models.MLP(3, 2, hidden=(8,)),
}
CLASSES: dict[str, Callable[[], PyroModule]] = {
    "Categorical": lambda: models.MLP(3, hidden=(8,), likelihood=likelihoods.Categorical(3)),
    "Bernoulli": lambda: models.MLP(3, hidden=(8,), likelihood=likelihoods.Bernoulli()),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files; chunks are small enough for several draws and blocks."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(memory, "WORKING_SET", BY_ROWS[1])
    return tmp_path


def rows() -> Tensor:
    return torch.linspace(-2, 2, N * 3, dtype=torch.float64).sin().reshape(N, 3)


def posterior_of(model: PyroModule, y: Tensor | None = None) -> DrawsPosterior:
    """A posterior of prior draws: what it predicts is exact, whatever the draws are."""
    x = rows()
    program = Program(model.double(), x, x[:, 0] if y is None else y)
    z = program.prior_draws(S, x[:1], seed=2).unsqueeze(0)
    return DrawsPosterior(program, z, Provenance("prior", "none", target=UNITS))


def mapped(value: Tensor | None) -> bool:
    return value is not None and is_mapped(value.numpy())


@pytest.mark.parametrize(
    ("kind", "bound", "working_set"),
    [
        ("homoscedastic", *BY_DRAWS),
        ("heteroscedastic", *BY_ROWS),
        ("two targets", *BY_ROWS),
    ],
)
def test_files_of_numbers_hold_the_same_bits(
    kind: str, bound: int, working_set: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "WORKING_SET", working_set)
    x = rows()
    y = x[:, :2] if kind == "two targets" else x[:, 0]
    posterior = posterior_of(NUMBERS[kind](), y)
    whole = posterior.predict(x, S, raw=True)
    streamed = posterior.predict(x, S, raw=True, memory=bound)
    on_disk = posterior.predict(x, S, raw=True, memory=bound, disk=True)
    for name in ("function_draws", "draws", "means", "variances"):
        assert mapped(getattr(on_disk, name)), name
        assert not mapped(getattr(whole, name)), name
        assert torch.equal(getattr(on_disk, name), getattr(whole, name)), name
    for name in ("mean", "sd", "sd_epistemic", "sd_aleatoric"):
        expected = getattr(whole, name)
        torch.testing.assert_close(getattr(on_disk, name), expected, rtol=1e-13, atol=0)
        torch.testing.assert_close(getattr(streamed, name), expected, rtol=1e-9, atol=1e-12)
    levels = [0.05, 0.5, 0.95]
    assert torch.equal(streamed.quantile(levels), whole.quantile(levels))
    np.testing.assert_allclose(
        on_disk.quantile(levels).numpy(),
        np.quantile(whole.draws.numpy(), levels, axis=0),
        rtol=1e-12,
    )
    of_y = UNITS.inverse(y)
    for other in (on_disk, streamed):
        torch.testing.assert_close(
            other.log_prob(of_y), whole.log_prob(of_y), rtol=1e-12, atol=1e-12
        )
    assert [path for path in folder.iterdir() if path.is_file()] == []


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("kind", CLASSES)
def test_files_of_classes_hold_the_same_bits(kind: str) -> None:
    x, y = rows(), torch.arange(N) % 2
    posterior = posterior_of(CLASSES[kind](), y)
    whole, on_disk, streamed = (
        posterior.predict(x, S),
        posterior.predict(x, S, memory=BOUND, disk=True),
        posterior.predict(x, S, memory=BOUND),
    )
    for name in ("function_draws", "draws", "class_probs"):
        assert mapped(getattr(on_disk, name)), name
        assert torch.equal(getattr(on_disk, name), getattr(whole, name)), name
    for name in ("probs", "entropy", "mutual_information"):
        for other in (on_disk, streamed):
            torch.testing.assert_close(
                getattr(other, name), getattr(whole, name), rtol=1e-12, atol=1e-13
            )
    torch.testing.assert_close(streamed.log_prob(y), whole.log_prob(y), rtol=1e-12, atol=1e-12)


@pytest.mark.slow("about a second")
def test_results_beyond_the_bound_are_mapped(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = rows()
    posterior = posterior_of(models.MLP(3, hidden=(8,)))
    data = (x, x[:, 0])
    whole = posterior.log_likelihood(data, S)
    assert not mapped(whole)
    with caplog.at_level(logging.WARNING):
        found = posterior.log_likelihood(data, S, group_by_chain=True, memory=BOUND)
    assert caplog.messages == [
        f"20 draws at 400 rows are 62.5 KiB, more than the bound of 58.6 KiB in memory: they are"
        f" written to a file in {folder}"
    ]
    assert mapped(found)
    assert torch.equal(found, whole.unsqueeze(0))
    with pytest.raises(OptionError, match="num_samples="):
        posterior.log_likelihood(data, S, memory=BOUND, disk=False)
    f = posterior.function_draws(x, S, memory=BOUND, disk=True)
    assert mapped(f)
    assert torch.equal(f, posterior.function_draws(x, S))
    folder.rmdir()
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: posterior.log_likelihood(data, S, memory=BOUND),
        lambda: posterior.function_draws(x, S, memory=BOUND, disk=True),
        lambda: posterior.predict(x, S, memory=BOUND).quantile(0.5),
    )
    for call in calls:
        with pytest.raises(OutputError, match=r"cannot write .* KiB of results to .* No such"):
            call()


# Blocks of rows


def test_a_draw_that_exceeds_the_bound_comes_in_blocks_of_rows() -> None:
    x = rows()
    posterior = posterior_of(models.MLP(3, hidden=(8,)))
    z, program, data = posterior.unconstrained(S), posterior.program, (x, x[:, 0])
    f, log_likelihood = program.function(z, x), program.log_likelihood(z, program.batch(*data))
    found = posterior.function_draws(x, S, memory=BOUND, disk=True)
    torch.testing.assert_close(found, f, rtol=1e-12, atol=1e-12)
    found = posterior.log_likelihood(data, S, memory=BOUND)
    torch.testing.assert_close(found, log_likelihood, rtol=1e-12, atol=1e-12)
    streamed = posterior.predict(x, S, memory=BOUND)
    torch.testing.assert_close(streamed.mean, f.mean(0), rtol=1e-12, atol=1e-12)
    log_mean = log_likelihood.logsumexp(0) - np.log(S)
    torch.testing.assert_close(streamed.log_prob(x[:, 0]), log_mean, rtol=1e-12, atol=1e-12)
    log_joint = log_likelihood.sum(-1) + program.log_prior(z, x)
    torch.testing.assert_close(posterior.log_joint(data, S), log_joint)


class Standardised(PyroModule):
    """A linear model of inputs less their mean over all rows, so that rows are not apart."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(x.new_zeros(3, 8), 1).to_event(2))
        f = pyro.deterministic("f", ((x - x.mean(0)) @ w).tanh().sum(-1, keepdim=True))
        with pyro.plate("data", f.shape[-2]):
            pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)
        return f


def test_rows_that_depend_on_each_other_are_not_taken_apart() -> None:
    posterior = posterior_of(Standardised())
    x = rows()
    f = posterior.function_draws(x, S)
    w = posterior.sample(S)["w"]
    expected = torch.einsum("ni,siw->snw", x - x.mean(0), w).tanh().sum(-1)
    torch.testing.assert_close(f[..., 0], expected)
    with pytest.raises(OptionError, match="pass fewer rows at a time, or raise memory="):
        posterior.log_likelihood((x, x[:, 0]), S, memory=BOUND)


def test_which_dimension_is_that_of_the_rows() -> None:
    program = Program(models.MLP(3, hidden=(4,)), rows().float(), rows().float()[:, 0])

    def fn(z: Tensor, rows: tuple[Tensor, ...], params: object) -> tuple[Tensor, ...]:
        f = z[:, :1] * rows[0][:, 0]  # [s, N]
        return f, z, f.unsqueeze(1).expand(-1, 4, -1)

    def of_all(z: Tensor, rows: tuple[Tensor, ...], params: object) -> tuple[Tensor, ...]:
        return (z.sum() * rows[0].sum(0, keepdim=True),)

    for name, function, axes in (("a", fn, (1, None, 2)), ("b", of_all, None)):
        run = Chunks(program).over(name, function, Draws.of(torch.ones(5, 2)), (rows(),), {})
        assert run.axes == axes
    single = Chunks(program).over("a", fn, Draws.of(torch.ones(5, 2)), (rows()[:1],), {})
    assert single.axes is None
