"""SVI that was stopped and resumed is, bit for bit, SVI that was not."""

from __future__ import annotations

import copy
import functools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import autoguide
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import SVI, Interrupted, guides, likelihoods, models, priors
from pyro_bnn.capture import Captured
from pyro_bnn.errors import DivergenceError, FileFormatError, OptionError
from pyro_bnn.infer.checkpoints import checkpoint
from pyro_bnn.infer.svi import step_loss, stock, training
from pyro_bnn.infer.svi.stock import _StockRun
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.posterior import GuidePosterior, Posterior
from tests.collection import rest_in_soak
from tests.kills import assert_same
from tests.oracle import linear_gaussian
from tests.saves import document_of, end_state, write_document

pytestmark = pytest.mark.usefixtures("nothing_captured")

ORACLE = linear_gaussian()
DATA = (ORACLE.x, ORACLE.y)  # 20 rows


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    """Ctrl-C as in a foreground process, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stock Pyro makes its draws one by one, and a few tell runs apart."""
    monkeypatch.setattr(stock, "NUM_DRAWS", 20)


def mlp() -> models.MLP:
    return models.MLP(3, hidden=(4,), likelihood=likelihoods.Normal(0.3)).double()


def partly_bayesian() -> models.BayesianModule:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return models.bayesian(net, {"2.*": priors.Normal()}, likelihoods.Normal(0.3)).double()


def rank1() -> models.Rank1MLP:
    return models.Rank1MLP(3, hidden=(4,), activation="tanh").double()


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the step of this number, once."""
    for run in (Training, _StockRun):
        advance = run._advance

        def stopped(
            self: Any, number: int, rows: Any, advance: Callable[..., None] = advance
        ) -> None:
            advance(self, number, rows)
            if number + 1 == step:
                monkeypatch.setattr(type(self), "_advance", advance)
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(run, "_advance", stopped)


def fit(
    make: Callable[[], Any], folder: Path | None = None, *, resume: bool = False, **options: Any
) -> Posterior:
    keywords = {k: options.pop(k) for k in ("init", "seed", "data") if k in options}
    data = keywords.pop("data", DATA)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = make()
    engine = SVI(**{"guide": guides.AutoNormal, "num_steps": 30, **options})
    posterior: Posterior = engine.run(
        model, data, progress=False, checkpoint=folder, resume=resume, **keywords
    )
    return posterior


def resumed_is_uninterrupted(
    make: Callable[[], Any],
    options: dict[str, Any],
    stops: list[int],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Posterior:
    """Compare a run that was stopped after each of these steps with one that was not."""
    whole = fit(make, folder / "whole", **copy.deepcopy(options))
    for i, stop in enumerate(stops):
        stop_after(stop, monkeypatch)
        with pytest.raises(Interrupted, match=f"stopped at step {stop} of") as stopped:
            fit(make, folder / "parts", resume=i > 0, **copy.deepcopy(options))
        assert isinstance(stopped.value.posterior, Posterior)
        assert len(stopped.value.posterior.losses) == stop
        np.testing.assert_array_equal(stopped.value.posterior.losses, whole.losses[:stop])
    parts = fit(make, folder / "parts", resume=True, **copy.deepcopy(options))
    assert_same(end_state(folder / "parts"), end_state(folder / "whole"))
    np.testing.assert_array_equal(parts.losses, whole.losses)
    assert torch.equal(parts.unconstrained(7), whole.unconstrained(7))
    assert parts.options == whole.options
    return parts


RUNS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "all rows": (mlp, {"kl_warmup": 15, "loc_warmup": 14, "clip_norm": 5.0}),
    "minibatches, the last of four rows": (mlp, {"batch_size": 8, "num_particles": 2}),
    "one row left over": (mlp, {"batch_size": 19, "schedule": "constant"}),
    "draws for each row": (
        mlp,
        {
            "guide": guides.AutoLowRankMultivariateNormal,
            "batch_size": 6,
            "per_example_draws": True,
        },
    ),
    "signs of rows": (mlp, {"batch_size": 6, "estimator": "flipout"}),
    "outputs of rows": (mlp, {"batch_size": 8, "estimator": "local_reparameterization"}),
    "no draws": (mlp, {"batch_size": 8, "estimator": "analytic"}),
    "momentum": (
        mlp,
        {
            "optimizer": functools.partial(torch.optim.SGD, momentum=0.9),
            "learning_rate": 1e-4,
            "loc_warmup": 14,
        },
    ),
    "unfused Adam": (mlp, {"optimizer": functools.partial(torch.optim.Adam, fused=False)}),
    "weight decay": (partly_bayesian, {"optimizer": torch.optim.AdamW, "batch_size": 7}),
    "biases of components": (
        rank1,
        {
            "guide": functools.partial(guides.AutoRank1Mixture, num_components=2),
            "batch_size": 6,
            "kl_warmup": 20,
        },
    ),
    "stock Pyro": (mlp, {"guide": autoguide.AutoMultivariateNormal, "num_particles": 2}),
    "stock Pyro, minibatches": (
        partly_bayesian,
        {"guide": autoguide.AutoNormal, "batch_size": 8, "kl_warmup": 20, "clip_norm": 5.0},
    ),
}


KEPT = [  # of each kind of batch, noise, optimiser and engine one
    "all rows",
    "minibatches, the last of four rows",
    "one row left over",
    "draws for each row",
    "outputs of rows",
    "momentum",
    "weight decay",
    "stock Pyro, minibatches",
]


@pytest.mark.parametrize(
    "name", rest_in_soak([(name,) for name in RUNS], [(name,) for name in KEPT])
)
def test_a_run_that_is_resumed_equals_one_that_was_not_stopped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, options = RUNS[name]
    stops = [1, 14, 29] if name.startswith("minibatches") else [14]  # before a smaller batch
    resumed_is_uninterrupted(make, options, stops, tmp_path, monkeypatch)


def test_noise_made_of_a_counter_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_loss, "COUNTED_NORMALS", 3)
    resumed_is_uninterrupted(mlp, {"batch_size": 8}, [12], tmp_path, monkeypatch)


def test_plain_pyro_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = functools.partial(Captured, enabled=False)
    with monkeypatch.context() as first:
        first.setattr(training, "Captured", plain)
        whole = fit(mlp, tmp_path / "whole")
        stop_after(9, first)
        with pytest.raises(Interrupted):
            fit(mlp, tmp_path / "parts")
    parts = fit(mlp, tmp_path / "parts", resume=True)  # follows the path of the checkpoint
    np.testing.assert_array_equal(parts.losses, whole.losses)
    assert end_state(tmp_path / "parts")["compile_path"] == "eager"


@pytest.mark.parametrize("guide", [guides.AutoNormal, autoguide.AutoNormal])
def test_a_run_that_is_stopped_in_its_last_step_ends(
    guide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop_after(1, monkeypatch)
    with pytest.raises(Interrupted, match="stopped at step 1 of 1; run"):
        fit(mlp, tmp_path, guide=guide, num_steps=1)
    caplog.clear()
    first, second = (fit(mlp, tmp_path, guide=guide, num_steps=1, resume=True) for _ in range(2))
    assert torch.equal(first.unconstrained(7), second.unconstrained(7))
    assert end_state(tmp_path)["compile_path"] in ("captured", "eager")
    assert not [record for record in caplog.records if "not bit for bit" in record.message]


def test_a_model_that_fails_while_its_graph_is_made_again_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(3, monkeypatch)
    with pytest.raises(Interrupted):
        fit(mlp, tmp_path)

    def fails(*_: object) -> None:
        raise ValueError("of the model")

    monkeypatch.setattr(Training, "_make_graph", fails)
    with pytest.raises(ValueError, match=r"^of the model$") as raised:
        fit(mlp, tmp_path, resume=True)
    assert not isinstance(raised.value, FileFormatError)


@pytest.mark.slow("about a second")
def test_patience_goes_on_and_stops_at_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "guide": guides.AutoDelta,
        "num_steps": 1_000,
        "patience": 250,
        "optimizer": torch.optim.SGD,
        "learning_rate": 1e-30,
    }
    posterior = resumed_is_uninterrupted(mlp, options, [150, 399], tmp_path, monkeypatch)
    assert len(posterior.losses) == 400


def test_a_guide_that_is_an_instance_goes_on_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mlp()
    whole = SVI(guides.AutoNormal(model), num_steps=40).run(model, DATA, progress=False)
    guide = guides.AutoNormal(model)
    engine = SVI(guide, num_steps=40)
    stop_after(7, monkeypatch)
    with pytest.raises(Interrupted):
        engine.run(model, DATA, progress=False, checkpoint=tmp_path)
    parts = engine.run(model, DATA, progress=False, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(parts.losses, whole.losses)
    assert parts.options == whole.options  # with the loc_warmup of a new guide
    assert isinstance(parts, GuidePosterior)
    assert_same(dict(guide.named_parameters()), dict(parts.guide.named_parameters()))


SCRIPT = """
import signal, sys, torch
from pathlib import Path
import pytest
from tests.infer.test_svi_checkpoint import fit, mlp, stop_after
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)
stop_after(17, pytest.MonkeyPatch())
fit(mlp, Path(sys.argv[1]), batch_size=8)
"""


@pytest.mark.slow("a process of its own")
def test_another_process_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "parts")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "pyro_bnn.infer.checkpoints.interrupts.Interrupted: stopped at step 17 of 30; run("
    )
    parts = fit(mlp, tmp_path / "parts", resume=True, batch_size=8)
    whole = fit(mlp, tmp_path / "whole", batch_size=8)
    np.testing.assert_array_equal(parts.losses, whole.losses)
    assert_same(end_state(tmp_path / "parts"), end_state(tmp_path / "whole"))


def test_a_network_whose_trained_weights_start_elsewhere_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere() -> models.BayesianModule:
        model = partly_bayesian()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        return model

    whole = fit(partly_bayesian)
    stop_after(3, monkeypatch)
    with pytest.raises(Interrupted):
        fit(partly_bayesian, tmp_path)
    parts = fit(elsewhere, tmp_path, resume=True)
    np.testing.assert_array_equal(parts.losses, whole.losses)


@pytest.mark.slow("whole fits")
def test_a_run_that_is_complete_gives_its_posterior_without_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: object) -> None:
        raise AssertionError("a step")

    for guide in (guides.AutoNormal, autoguide.AutoNormal):
        folder = tmp_path / guide.__module__
        first = fit(mlp, folder, guide=guide)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with monkeypatch.context() as patch:
            patch.setattr(Training, "_advance", step)
            patch.setattr(_StockRun, "_advance", step)
            again = fit(mlp, folder, guide=guide, resume=True)
        assert torch.equal(again.unconstrained(7), first.unconstrained(7))
        np.testing.assert_array_equal(again.losses, first.losses)
        assert 0 < again.wall_time < first.wall_time  # that of its last checkpoint
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_divergence_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    with pytest.raises(DivergenceError, match="not finite at step 1,"):
        fit(mlp, tmp_path, learning_rate=1e200, num_steps=10)
    document = document_of(tmp_path)
    assert (document["place"], document["is_complete"]) == ("step 1 of 10", False)
    with pytest.raises(DivergenceError, match="not finite at step 1,"):
        fit(mlp, tmp_path, learning_rate=1e200, num_steps=10, resume=True)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run that was stopped; to be read alone."""
    folder = tmp_path_factory.mktemp("run")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Interrupted):
            fit(mlp, folder)
    signal.signal(signal.SIGINT, before)
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 40}, "num_steps=30 where this run has 40: run it with the same options"),
        ({"batch_size": 5}, "batch_size=None where this run has 5"),
        ({"seed": 1}, "seed=0 where this run has 1"),
        ({"loc_warmup": 3}, "loc_warmup=None where this run has 3"),
        ({"guide": guides.AutoDelta}, "guide='AutoNormal' where this run has 'AutoDelta'"),
        (
            {"guide": functools.partial(guides.AutoNormal, init_scale=0.2)},
            "init_scale=0.01 where this run has 0.2",
        ),
        ({"optimizer": torch.optim.SGD}, "optimizer='Adam' where this run has 'SGD'"),
    ],
)
def test_other_options_are_named(options: dict[str, Any], message: str, stopped: Path) -> None:
    with pytest.raises(OptionError, match=message):
        fit(mlp, stopped, resume=True, **options)


def test_other_options_of_an_optimiser_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sgd = functools.partial(torch.optim.SGD, lr=1e-4, momentum=0.9)
    stop_after(3, monkeypatch)
    with pytest.raises(Interrupted):
        fit(mlp, tmp_path, optimizer=sgd)
    other = functools.partial(torch.optim.SGD, lr=1e-4, momentum=0.5)
    with pytest.raises(
        OptionError, match=r"optimizer has momentum=0\.9, but this one has momentum=0\.5: pass the"
    ):
        fit(mlp, tmp_path, optimizer=other, resume=True)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("losses", torch.zeros(1 << 20)),
        ("step", 10**9),
        ("values", {"guide.loc": torch.zeros(3)}),
        ("optimizer", {"rates": [0.01], "optimizer": {"state": {}, "param_groups": []}}),
        ("generator", torch.zeros(3)),
        ("batches", {"generator": torch.zeros(8, dtype=torch.uint8), "place": 0}),
        ("row_counts", [10**12]),
        ("last_good", None),
        ("best", [1]),
    ],
)
def test_a_state_that_is_not_of_this_run_is_refused(
    entry: str, value: Any, stopped: Path, tmp_path: Path
) -> None:
    document = document_of(stopped)
    document["state"][entry] = value
    write_document(document, tmp_path)
    with pytest.raises(
        FileFormatError, match=r"checkpoint.saf.* is no state of this run: \w+Error"
    ):
        fit(mlp, tmp_path, resume=True)


def test_moments_of_another_shape_are_refused(stopped: Path, tmp_path: Path) -> None:
    document = document_of(stopped)
    moments = document["state"]["optimizer"]["optimizer"]["state"][0]
    moments["exp_avg"] = torch.zeros(2, dtype=torch.float64)
    write_document(document, tmp_path)
    with pytest.raises(FileFormatError, match=r"exp_avg of a parameter \(\d+,\) is \(2,\)"):
        fit(mlp, tmp_path, resume=True)


def test_a_learning_rate_of_numpy_is_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"learning_rate": np.float64(0.01)}
    resumed_is_uninterrupted(mlp, options, [3], tmp_path, monkeypatch)


def test_a_loader_goes_on_in_an_order_of_its_own_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = DataLoader(TensorDataset(*DATA), batch_size=8, shuffle=True)
    stop_after(14, monkeypatch)
    with pytest.raises(Interrupted) as stopped:
        fit(mlp, tmp_path, data=data)
    posterior = fit(mlp, tmp_path, data=data, resume=True)
    assert isinstance(stopped.value.posterior, Posterior)
    np.testing.assert_array_equal(posterior.losses[:14], stopped.value.posterior.losses)
    assert len(posterior.losses) == 30
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        "resumed at step 14 of 30, but not bit for bit: the order of a DataLoader is its own"
    ]


def test_a_stock_guide_whose_parameters_appear_later_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(10**6))

    def guide(x: Tensor, y: Tensor | None = None) -> None:
        del x, y
        late = pyro.param("late", torch.zeros(4).double) if next(calls) > 5 else 0.0
        pyro.sample("w", dist.Normal(torch.zeros(3, 1).double(), 1.0).to_event(2))
        pyro.sample("b", dist.Normal(pyro.param("loc", torch.zeros(1).double), 1.0).to_event(1))
        del late

    stop_after(20, monkeypatch)
    with pytest.raises(Interrupted):
        fit(lambda: ORACLE.model, tmp_path, guide=lambda model: guide)
    calls = iter(range(10**6))
    with pytest.raises(OptionError, match="has 1 parameters at its first step and 2 in the check"):
        fit(lambda: ORACLE.model, tmp_path, guide=lambda model: guide, resume=True)


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("interpreted")
def test_gradients_alone_go_on_on_the_path_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"batch_size": 8, "compile": True, "optimizer": torch.optim.AdamW}
    posterior = resumed_is_uninterrupted(mlp, options, [14], tmp_path, monkeypatch)
    assert posterior.options["compiled"]
    assert end_state(tmp_path / "parts")["compile_path"] == "compiled"


@pytest.mark.slow("compiles")
@pytest.mark.parametrize(
    ("optimizer", "stops"),
    [
        (None, [2, 14]),  # the whole step, stopped while scales are held and after
        pytest.param(torch.optim.AdamW, [14], marks=pytest.mark.soak),  # the gradient alone
    ],
)
def test_compiled_steps_go_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    optimizer: Any,
    stops: list[int],
) -> None:
    """The graph was made for 8 rows; the run is resumed before a batch of 4."""
    options = {"batch_size": 8, "compile": True, "loc_warmup": 5, "optimizer": optimizer}
    posterior = resumed_is_uninterrupted(mlp, options, stops, tmp_path, monkeypatch)
    assert posterior.options["compiled"]
    assert end_state(tmp_path / "parts")["compile_path"] == "compiled"
    assert not [record for record in caplog.records if "not bit for bit" in record.message]
