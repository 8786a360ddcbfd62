"""What a run of NUTS promises to its caller: seeds, state, draws on disk, a bar, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import memory
from pyro_bnn.errors import CaptureError, ModelError, OptionError, SiteError
from pyro_bnn.infer import NUTS
from pyro_bnn.infer.mcmc import lockstep as lockstep_module
from tests.infer.chains import all_draws, of_package, quick
from tests.infer.scores import moment_scores
from tests.oracle import LinearGaussian

SMALL = NUTS(num_chains=2, warmup_steps=10, num_samples=6, compile=False)


# --- seeds, and the caller's state ---------------------------------------------------------------


def draws_of(nuts: NUTS, oracle: LinearGaussian, **options: Any) -> Tensor:
    return all_draws(nuts.run(oracle.model, (oracle.x, oracle.y), progress=False, **options))


@pytest.mark.slow("a second or more")
@quick  # captured steps repeat in test_lockstep, compiled ones in test_nuts_checkpoint
def test_draws_repeat_for_a_seed(oracle: LinearGaussian) -> None:
    nuts = NUTS(num_chains=5, warmup_steps=12, num_samples=8, compile=False)  # drops chains
    first = draws_of(nuts, oracle)
    torch.randn(3)
    assert torch.equal(draws_of(nuts, oracle), first)
    assert not (draws_of(nuts, oracle, seed=1) == first).any()
    starts = first[:, 0]
    assert len(starts.unique()) == starts.numel()


@quick
def test_chains_from_one_start_go_apart(oracle: LinearGaussian) -> None:
    init = {"w": torch.zeros(3, 1), "b": torch.zeros(1)}
    z = draws_of(SMALL, oracle, init=init)
    assert not (z[0] == z[1]).any()


@pytest.mark.slow("about a second")
@quick
def test_state_of_the_caller_is_left_alone(oracle: LinearGaussian) -> None:
    store: Any = pyro.get_param_store()
    pyro.param("mine", torch.tensor(1.0))
    torch.manual_seed(11)
    before = (torch.get_rng_state(), pyro.settings.get(), torch.get_num_threads())
    numpy_before: Any = np.random.get_state()  # noqa: NPY002
    SMALL.run(oracle.model, (oracle.x, oracle.y), progress=False)
    SMALL.run_each(oracle.model, oracle.x, oracle.y[None], progress=False)
    assert list(store.keys()) == ["mine"]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (pyro.settings.get(), torch.get_num_threads()) == before[1:]
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    numpy_after: Any = np.random.get_state()  # noqa: NPY002
    np.testing.assert_array_equal(numpy_after[1], numpy_before[1])
    assert not any(p.requires_grad for p in oracle.model.buffers())


@pytest.mark.slow("about a second")
@quick
def test_a_shuffling_loader_gives_one_result_whatever_the_global_state(
    oracle: LinearGaussian,
) -> None:
    loader = DataLoader(TensorDataset(oracle.x, oracle.y), batch_size=4, shuffle=True)
    draws = []
    for global_seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(global_seed)
            state = torch.get_rng_state()
            posterior = SMALL.run(oracle.model, loader, progress=False)
            assert torch.equal(torch.get_rng_state(), state)
            draws.append(posterior.unconstrained())
    assert torch.equal(draws[0], draws[1])


# --- point-estimated parameters ------------------------------------------------------------------


class Shifted(PyroModule):
    """y = w + shift + noise: with the shift held fixed, the posterior of w is Gaussian."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(1).double(), 1.0).to_event(1))
        f = pyro.deterministic("f", x * 0 + w + self.shift)
        with pyro.plate("data", len(x)):
            out: Tensor = pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
        return out


@pytest.mark.slow("about a second")
@quick
@pytest.mark.parametrize("from_init", [False, True])
def test_point_parameters_are_held_and_named(
    from_init: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With N = 9 rows y = 3, noise and prior sd 1: mean 9 (3 - shift) / 10, variance 1/10."""
    x = torch.zeros(9, 1, dtype=torch.float64)
    model = Shifted(0.0 if from_init else 2.0)
    nuts = NUTS(num_chains=30, warmup_steps=40, num_samples=20, compile=False)
    init = Shifted(2.0) if from_init else None
    run = nuts.run(model, (x, x[:, 0] + 3), init=init, progress=False)
    assert of_package(caplog) == ["NUTS holds point-estimated parameters at their values: shift"]
    assert float(run.params["shift"]) == 2
    assert float(model.shift.detach()) == (0 if from_init else 2)
    assert model.shift.requires_grad
    mean, covariance = torch.tensor([0.9]), torch.tensor([[0.1]])
    assert moment_scores(all_draws(run), mean.double(), covariance.double()).max() < 4.5


@quick
def test_a_frozen_parameter_of_the_users_model_stays_frozen() -> None:
    model = Shifted(2.0)
    model.shift.requires_grad = False
    x = torch.zeros(4, 1, dtype=torch.float64)
    SMALL.run(model, (x, x), progress=False)
    assert not model.shift.requires_grad


# --- draws on disk, the bar ----------------------------------------------------------------------


@pytest.mark.slow("about a second")
@quick
def test_draws_beyond_the_bound_are_on_disk_and_the_same(
    oracle: LinearGaussian, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nuts = NUTS(num_chains=5, warmup_steps=10, num_samples=20, compile=False)
    expected = draws_of(nuts, oracle)
    assert of_package(caplog) == []
    monkeypatch.setattr(memory, "STORED_DRAWS", 5 * 20 * 4 * 8 - 1)
    run = nuts.run(oracle.model, (oracle.x, oracle.y), progress=False)
    (line,) = of_package(caplog)
    assert line.startswith("100 draws of 4 numbers need 3.1 KiB, more than the bound of 3.1 KiB")
    assert torch.equal(all_draws(run), expected)
    lp = torch.from_numpy(run.sample_stats["lp"])
    torch.testing.assert_close(oracle.log_joint(all_draws(run)), lp, rtol=1e-10, atol=0)
    assert run.predict(oracle.x).mean.isfinite().all()


@pytest.mark.slow("about a second")
@quick
def test_the_bar_counts_all_draws_and_shows_how_chains_do(
    oracle: LinearGaussian, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SMALL.run(oracle.model, (oracle.x, oracle.y))
    shown = capsys.readouterr().err
    assert "NUTS: 100%" in shown
    assert "32/32" in shown
    stats = run.sample_stats  # of the draws that are kept; the warm-up's diverge
    last = shown.rpartition("\r")[2]
    assert f"{stats['diverging'].sum()} divergences, " in last
    assert "acceptance 0." in last
    assert ", step " in last
    SMALL.run(oracle.model, (oracle.x, oracle.y), progress=False)
    assert capsys.readouterr().err == ""


@quick
def test_an_interrupted_run_closes_its_bar(
    oracle: LinearGaussian, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, count = lockstep_module.Lockstep.steps, 0

    def interrupted(self: lockstep_module.Lockstep, num_steps: int) -> lockstep_module.BlockDraws:
        nonlocal count
        count += 1
        if count == 30:
            raise KeyboardInterrupt
        return steps(self, num_steps)

    monkeypatch.setattr(lockstep_module.Lockstep, "steps", interrupted)
    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        SMALL.run(oracle.model, (oracle.x, oracle.y))
    assert torch.equal(torch.get_rng_state(), before)
    assert capsys.readouterr().err.endswith("\n")  # of a closed bar; an open one awaits its return
    assert not pyro.get_param_store().keys()


# --- models that cannot be captured --------------------------------------------------------------


def make_branching() -> Callable[..., None]:
    def branching(x: Tensor, y: Tensor | None = None) -> None:
        """f = |w| by a truth test on a tensor, so at y = 0 the posterior is N(0, 1 / (N + 1))."""
        w = pyro.sample("w", dist.Normal(torch.tensor(0.0), 1.0))
        f = pyro.deterministic("f", x + (w if w > 0 else -w))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)

    return branching


@pytest.mark.slow("about a second")
def test_a_model_that_cannot_be_captured_is_sampled_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nuts = NUTS(num_chains=10, warmup_steps=12, num_samples=12, compile=False)
    run = nuts.run(make_branching(), (torch.zeros(3, 1), torch.zeros(3)), progress=False)
    batched, captured = of_package(caplog)
    assert "branching cannot be batched over draws and runs draw by draw" in batched
    assert captured == (
        "the NUTS step of branching cannot be captured as a graph and runs through plain Pyro, "
        "which is slower: it has data-dependent control flow: its operations depend on values of "
        "tensors"
    )
    assert moment_scores(all_draws(run), torch.zeros(1), torch.tensor([[0.25]])).max() < 5


def test_a_model_that_cannot_be_compiled_is_refused() -> None:
    nuts = NUTS(num_chains=2, warmup_steps=2, num_samples=2, compile=True)
    with pytest.raises(CaptureError, match=r"step of branching cannot be compiled: .*flow"):
        nuts.run(make_branching(), (torch.zeros(3, 1), torch.zeros(3)), progress=False)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_chains": 0}, "num_chains is an integer of at least 1, not 0"),
        ({"warmup_steps": -1}, "warmup_steps is an integer of at least 0, not -1"),
        ({"num_samples": 2.5}, "num_samples is an integer of at least 1, not 2.5"),
        ({"max_tree_depth": 0}, "max_tree_depth is an integer of at least 1, not 0"),
        ({"max_tree_depth": 21}, "max_tree_depth is at most 20, not 21"),
        ({"target_accept": 1.0}, "target_accept is a number between 0 and 1, not 1.0"),
        ({"target_accept": "high"}, "target_accept is a number between 0 and 1, not 'high'"),
        ({"mass_matrix": "dense"}, 'mass_matrix is "diagonal" or "low_rank", not \'dense\''),
        ({"compile": 1.5}, 'compile is "auto", True or False, not 1.5'),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as error:
        NUTS(**options)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"resume": True}, "resume=True needs checkpoint='folder'"),
        ({"seed": -1}, "seed is an integer of at least 0, not -1"),
        ({"init": 3}, 'a trained torch module, a dict of sites or "prior", not int'),
    ],
)
def test_bad_options_of_a_run_are_refused(
    options: dict[str, Any], text: str, oracle: LinearGaussian
) -> None:
    with pytest.raises(OptionError) as error:
        SMALL.run(oracle.model, (oracle.x, oracle.y), progress=False, **options)
    assert text in str(error.value)


def test_broken_models_and_inits_are_refused_before_sampling(oracle: LinearGaussian) -> None:
    data = (oracle.x, oracle.y)
    with pytest.raises(SiteError, match="init holds 'weight', but the model's sites are w, b"):
        SMALL.run(oracle.model, data, init={"weight": oracle.y}, progress=False)

    def no_f(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w.expand(len(x), 1), 1.0).to_event(1), obs=y)

    with pytest.raises(ModelError, match='does not record its network output "f"'):
        SMALL.run(no_f, data, progress=False)
