"""On a GPU: every guide is trained, every engine runs, and a CPU computes the same from the draws.

A GPU draws other random numbers than a CPU of the same seed, so both are given the same draws, and
results in which there is no chance are compared as they are. The rows stay on the CPU, as those of
most users do; the program moves what it reads.
"""

from __future__ import annotations

import copy
import functools
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import SVI, Posterior, infer, likelihoods, models, priors
from pyro_bnn.cli.main import main
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.program import Program
from tests.collection import EVERY_KIND
from tests.test_engines import CLASSES, default_handler, small  # noqa: F401  # a fixture

WHERE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

N = 40
X = torch.linspace(-1, 1, 2 * N, dtype=torch.float64).reshape(N, 2)
Y = (3 * X[:, 0]).sin() + 0.1 * torch.linspace(-9, 9, N, dtype=torch.float64).cos()
TEST = torch.linspace(-1.5, 1.5, 14, dtype=torch.float64).reshape(7, 2)

compiles = pytest.mark.slow("compiles kernels of a GPU")
ENGINES = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def on_gpu(model: Any) -> Any:
    return model.to(device=WHERE, dtype=torch.float64)


def linear() -> Any:
    return models.LinearRegression(2, likelihood=likelihoods.Normal(0.3))


def network(**options: Any) -> Any:
    return models.MLP(2, hidden=(8,), activation="tanh", **options)


def halves() -> bnn.Split:
    train, test = (bnn.Dataset(X[i::2], Y[i::2]) for i in range(2))
    return bnn.Split(train, test, "regression", "waves")


def model_for(name: str) -> Any:
    """A network that a guide serves, with scales that have priors where it serves these."""
    kind = EVERY_KIND[name]
    cls: Any = kind.func if isinstance(kind, functools.partial) else kind
    if "Rank1" in cls.__name__ or "Dropout" in cls.__name__ or "Batch" in cls.__name__:
        return network()
    return network(prior=priors.HalfCauchyScale())


def assert_same_function(posterior: Posterior, model: Any) -> None:
    """The outputs at draws of a posterior are those of the model on the CPU at the same draws."""
    z = posterior.unconstrained(20)
    f = posterior.function_draws(TEST, 20)
    assert z.device.type == f.device.type == WHERE
    on_cpu = Program(copy.deepcopy(model).cpu(), X, Y)
    params = {name: value.cpu() for name, value in posterior.params.items()}
    expected = torch.stack([on_cpu.function(one, TEST, params) for one in z.cpu()])
    assert_close(f.cpu(), expected, rtol=1e-9, atol=1e-9)


@compiles
@pytest.mark.parametrize("compile_", [True, False])
@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_guide_is_trained_and_read_without_a_gpu(
    name: str, compile_: bool, tmp_path: Path
) -> None:
    model = on_gpu(model_for(name))
    svi = SVI(EVERY_KIND[name], num_steps=200, compile=compile_)
    posterior = svi.run(model, (X, Y), progress=False)
    assert posterior.gpu == torch.cuda.get_device_name()
    assert np.isfinite(posterior.losses).all()
    assert_same_function(posterior, model)
    prediction = posterior.predict(TEST, 50)
    assert bool(prediction.log_prob(Y[:7]).isfinite().all())
    assert prediction.to_frame().notna().all(axis=None)
    posterior.save(tmp_path / "fit")
    read = Posterior.load(tmp_path / "fit", copy.deepcopy(model).cpu())
    assert read.function_draws(TEST, 5).device.type == "cpu"
    back = Posterior.load(tmp_path / "fit", model).function_draws(TEST, 20)
    assert_close(back, posterior.function_draws(TEST, 20), rtol=0, atol=0)


@ENGINES
def test_one_seed_is_one_fit_and_the_generators_stay(cls: type[Any], tmp_path: Path) -> None:
    before = torch.cuda.get_rng_state()
    fits = [small(cls).run(on_gpu(linear()), (X, Y), seed=3, progress=False) for _ in range(2)]
    assert torch.equal(torch.cuda.get_rng_state(), before)
    draws = [fit.function_draws(TEST, 20) for fit in fits]
    assert_close(draws[0], draws[1], rtol=0, atol=0)
    assert_same_function(fits[0], linear().double())
    split = bnn.data.Dataset(X, Y), bnn.data.Dataset(TEST, TEST[:, 0])
    assert "posterior" in fits[0].to_arviz(*split, num_samples=20).children
    fits[0].save(tmp_path / "fit")
    Posterior.load(tmp_path / "fit", linear().double())


@compiles
@pytest.mark.parametrize("compile_", [True, False])
@ENGINES
def test_an_engine_runs_a_network(cls: type[Any], compile_: bool) -> None:
    model = linear() if cls in (infer.Exact, infer.CAVI) else network()
    if cls is infer.MCDropout:
        net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.1), nn.Linear(8, 1))
        model = bnn.bayesian_dropout(net, likelihoods.Normal(0.3))
    own = {"predictive": "weights"} if cls is infer.Laplace else {}  # not those of a linear model
    fit = small(cls, compile=compile_, **own).run(on_gpu(model), (X, Y), seed=3, progress=False)
    assert_same_function(fit, model)


@pytest.mark.usefixtures("default_handler")
@ENGINES
def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    cls: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(**options: Any) -> Any:
        return small(cls).run(on_gpu(linear()), (X, Y), progress=False, **options)

    whole, step, count = fit(), Checkpoint.step, 0

    def counted(self: Checkpoint, run: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            signal.raise_signal(signal.SIGINT)
        step(self, run)

    monkeypatch.setattr(Checkpoint, "step", counted)
    try:
        fit(checkpoint=tmp_path)
    except Interrupted:
        assert count == 2
    else:
        assert count < 2  # an engine without steps, or of one
    found = fit(checkpoint=tmp_path, resume=True)
    draws = [one.function_draws(TEST, 20) for one in (found, whole)]
    assert_close(draws[0], draws[1], rtol=0, atol=0)


@compiles
@pytest.mark.parametrize("cls", [infer.Exact, infer.CAVI, infer.Laplace])
def test_results_without_chance_are_those_of_a_cpu(cls: type[Any]) -> None:
    gpu = cls().run(on_gpu(linear()), (X, Y), progress=False).guide.state_dict()
    cpu = cls().run(linear().double(), (X, Y), progress=False).guide.state_dict()
    tensors = {name: value for name, value in cpu.items() if isinstance(value, torch.Tensor)}
    assert tensors
    for name, value in tensors.items():
        assert_close(gpu[name].cpu(), value, rtol=1e-6, atol=1e-8)


@compiles
@pytest.mark.parametrize("name", ["NUTS", "HMC"])
def test_chains_have_the_moments_of_the_exact_posterior(name: str) -> None:
    engine = getattr(bnn, name)(num_chains=4)
    fit = engine.run(on_gpu(linear()), (X, Y), progress=False)
    exact = bnn.Exact().run(linear().double(), (X, Y), progress=False)
    z, expected = fit.unconstrained().cpu(), exact.unconstrained(100_000)
    error = expected.std(0) / math.sqrt(200)  # of at least 200 effective draws
    assert bool(((z.mean(0) - expected.mean(0)).abs() < 5 * error).all())
    assert_close(z.std(0), expected.std(0), rtol=0.2, atol=0)


@compiles
def test_many_chains_go_on_in_smaller_batches() -> None:
    """Each size of a batch is recorded, at whatever uniform number the chains then are."""
    x, y = X.repeat(25, 1), Y.repeat(25)
    hmc = infer.HMC(num_chains=128, warmup_steps=15, num_samples=5)
    z = hmc.run(on_gpu(network()), (x, y), progress=False).unconstrained(128 * 5)
    assert z.isfinite().all()


@pytest.mark.parametrize("where", ["cpu", WHERE])
def test_a_comparison_of_rows_on_either(where: str, tmp_path: Path) -> None:
    split = halves().to(where)
    model = on_gpu(network())
    engines: dict[str, Any] = {
        "AutoNormal": SVI(bnn.guides.AutoNormal, num_steps=300),
        "NUTS": bnn.NUTS(num_chains=2, warmup_steps=100, num_samples=100),
    }
    fits = {n: engine.run(model, split.train, progress=False) for n, engine in engines.items()}
    found = bnn.compare(fits, split, reference="NUTS")
    assert (found.save(tmp_path) / "index.html").stat().st_size > 10_000
    assert list(found.table["log_score"].notna()) == [True, True]


def test_a_posterior_of_a_gpu_and_one_of_a_cpu_are_compared() -> None:
    split = halves()
    of = {where: linear().double().to(where) for where in ("cpu", WHERE)}
    fits = {n: bnn.Exact().run(model, split.train, progress=False) for n, model in of.items()}
    scores = bnn.compare(fits, split, num_samples=4_000).table["log_score"]
    assert abs(scores["cpu"] - scores[WHERE]) < 0.05


def test_images_are_classified_judged_and_attacked() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = 0.1 * torch.rand(60, 1, 8, 8, generator=generator) + 0.3 * y[:, None, None, None]
    train, test = bnn.Dataset(x[:40], y[:40]), bnn.Dataset(x[40:], y[40:])
    split = bnn.Split(train, test, "classification", "steps")
    like = likelihoods.Categorical(3)
    nets = {
        "LeNet": models.LeNet((1, 8, 8), likelihood=like),
        "ResNet": models.ResNet((1, 8, 8), depth=8, width=4, likelihood=like),
        "Rank1ResNet": models.Rank1ResNet((1, 8, 8), depth=8, width=4, likelihood=like),
    }
    for name, net in nets.items():
        guide = bnn.guides.AutoRank1Mixture if name == "Rank1ResNet" else bnn.guides.AutoNormal
        svi = SVI(guide, num_steps=60, batch_size=16)
        fit = svi.run(net.to(WHERE), split.train, progress=False)
        assert fit.predict(x[:5], 10).probs.device.type == WHERE
        page = bnn.trust({name: fit}, split, corruptions=[3], attack=0.1, num_samples=20)
        assert page.table["log_score"].notna().all()


def test_a_network_of_torch_and_rows_of_numpy() -> None:
    net = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))
    model = on_gpu(bnn.bayesian(net, likelihood=likelihoods.Normal(0.3)))
    fit = SVI(bnn.guides.AutoNormal, num_steps=100).run(model, (X.numpy(), Y.numpy()))
    assert_same_function(fit, model)


@compiles
def test_stock_guides_and_samplers_of_pyro() -> None:
    model = on_gpu(network())
    fit = SVI(pyro.infer.autoguide.AutoNormal, num_steps=20).run(model, (X, Y), progress=False)
    assert_same_function(fit, model)
    mcmc = pyro.infer.MCMC(pyro.infer.NUTS(model), 5, 5, disable_progbar=True)
    mcmc.run(X.to(WHERE), Y.to(WHERE))
    assert all(value.device.type == WHERE for value in mcmc.get_samples().values())


def test_estimators_fit_and_answer_in_numpy() -> None:
    net = bnn.sklearn.BNNRegressor(num_steps=100, random_state=0, device=WHERE)
    mean, sd = net.fit(X.numpy(), Y.numpy()).predict(TEST.numpy(), return_std=True)
    assert isinstance(mean, np.ndarray)
    assert np.isfinite([mean, sd]).all()
    assert net.posterior_.program.device.type == WHERE
    classes = bnn.sklearn.BNNClassifier(num_steps=100, random_state=0, device=WHERE)
    classes.fit(X.numpy(), Y.numpy() > 0)
    assert classes.predict_proba(TEST.numpy()).shape == (7, 2)


# The command line


@pytest.fixture
def _gpu_is_used() -> Iterator[None]:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    yield
    assert torch.cuda.max_memory_allocated() > before


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y}).to_csv(path, index=False)
    return str(path)


HOW = ["--quiet", "--steps", "200", "--device", WHERE]
CHAINS = ["--chains", "2", "--warmup", "50", "--samples", "50"]


@pytest.mark.usefixtures("_gpu_is_used")
@compiles
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_compare(jobs: str, table: str, tmp_path: Path) -> None:
    methods = "auto-normal,nuts,auto-rank1-mixture,laplace,ensemble"
    own = ["--methods", methods, "--out", str(tmp_path / "out"), "--jobs", jobs]
    assert main(["compare", "--data", table, *own, *HOW, *CHAINS]) == 0
    found = pd.read_csv(tmp_path / "out" / "table.csv")
    assert len(found) == 5
    assert found["log_score"].notna().all()


@pytest.mark.usefixtures("_gpu_is_used")
@compiles
def test_a_fit_predicts_on_either(table: str, tmp_path: Path) -> None:
    own = ["--data", table, "--method", "nuts", "--out", str(tmp_path / "fit")]
    assert main(["fit", *own, *HOW[:1], *HOW[3:], *CHAINS]) == 0
    means = []
    for device in ("cpu", WHERE):
        out = tmp_path / f"{device}.csv"
        where = ["--posterior", str(tmp_path / "fit"), "--out", str(out), "--device", device]
        assert main(["predict", table, *where]) == 0
        means.append(pd.read_csv(out)["predicted_mean"])
    np.testing.assert_allclose(means[0], means[1], rtol=1e-4, atol=1e-4)  # float32, stored draws


@pytest.mark.usefixtures("_gpu_is_used")
def test_sbc(table: str, tmp_path: Path) -> None:
    own = ["--data", table, "--method", "auto-normal", "--out", str(tmp_path / "sbc")]
    few = ["--simulations", "20", "--rows", "10", "--json"]
    assert main(["sbc", *own, *few, *HOW[1:]]) == 0


@pytest.mark.usefixtures("_gpu_is_used")
def test_trust(tmp_path: Path) -> None:
    own = ["--data", "digits", "--methods", "auto-normal,ensemble", "--out", str(tmp_path / "page")]
    assert main(["trust", *own, "--corrupt", "3", "--rows", "50", "--draws", "20", *HOW]) == 0


# Several processes

SHARED = """
import sys
import torch
import torch.distributed as dist
import pyro_bnn as bnn

backend, path = sys.argv[1:]
dist.init_process_group(backend)
x = torch.linspace(-1, 1, 26, dtype=torch.float64).reshape(13, 2)
torch.manual_seed(0)
model = bnn.models.MLP(2, hidden=(3,)).to(device="cuda", dtype=torch.float64)
svi = bnn.SVI(bnn.guides.AutoNormal, num_steps=50, batch_size=5)
engine = bnn.infer.parallel.DataParallel(svi)
fit = engine.run(model, (x, x[:, 0].sin()), progress=False)
alone = svi.run(model, (x, x[:, 0].sin()), progress=False)
for own, other in zip(fit.guide.parameters(), alone.guide.parameters(), strict=True):
    torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-12)
assert own.is_cuda
open(f"{path}/{dist.get_rank()} of {dist.get_world_size()}", "w").close()
dist.destroy_process_group()
"""


@compiles
@pytest.mark.parametrize(("backend", "count"), [("nccl", 1), ("gloo", 2)])  # NCCL: a GPU a process
def test_processes_share_the_rows(backend: str, count: int, tmp_path: Path) -> None:
    script = tmp_path / "fit.py"
    script.write_text(SHARED)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    run += ["--nproc-per-node", str(count), str(script), backend, str(tmp_path)]
    subprocess.run(run, check=True)
    assert len(list(tmp_path.glob(f"* of {count}"))) == count
