"""Posteriors of every kind on disk and back, bit for bit, and writes that fail."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pyro_bnn import HMC, NUTS, SVI, guides, likelihoods, memory, models, priors
from pyro_bnn.errors import DivergenceError
from pyro_bnn.guides.matrix_sites import MatrixGuide
from pyro_bnn.posterior import GuidePosterior, Posterior, Provenance
from pyro_bnn.program import Program
from pyro_bnn.program.handlers import Model
from tests.collection import GUIDES, cover, rest_in_soak
from tests.test_storage import assert_same

pytestmark = pytest.mark.usefixtures("uncaptured")

X = torch.linspace(-1, 1, 24).view(8, 3)
CLASSES = torch.arange(8) % 3


def whole() -> models.BayesianModule:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return models.bayesian(net, priors.Normal(), likelihoods.HeteroscedasticNormal())


MODELS: dict[str, Any] = {
    "plain": lambda: models.MLP(3, hidden=(4,)),
    "hierarchy": lambda: models.MLP(3, hidden=(4,), prior=priors.HalfCauchyScale(per="unit")),
    "horseshoe": lambda: models.MLP(3, hidden=(4,), prior=priors.Horseshoe()),
    "classes": lambda: models.MLP(3, hidden=(4,), likelihood=likelihoods.Categorical(3)),
    "bayesian": whole,
    "rank-1": lambda: models.Rank1MLP(3, hidden=(4,)),
}


def suits(guide: str, model: str) -> bool:
    cls = GUIDES[guide]
    if model != "rank-1":
        return cls.needs_model is None
    return not issubclass(cls, MatrixGuide | guides.AutoDropout)  # there is no matrix


PAIRS = [(guide, model) for guide in GUIDES for model in MODELS if suits(guide, model)]


def target(model: str) -> torch.Tensor:
    return CLASSES if model == "classes" else X[:, 0] * 2


def assert_returns(posterior: Posterior, model: Model, y: torch.Tensor, path: Path) -> None:
    """Saved and loaded it is the same: draws, predictions, densities, statistics, provenance."""
    posterior.save(path)
    loaded = Posterior.load(path, model)
    assert_same(loaded, posterior, X, y)
    for site, value in posterior.sample(7, seed=3).items():
        assert torch.equal(loaded.sample(7, seed=3)[site], value)
    first, second = (one.predict(X, 10, seed=2) for one in (posterior, loaded))
    names = ("mean", "sd", "sd_epistemic") if y.is_floating_point() else ("probs", "entropy")
    for name in names:
        assert torch.equal(getattr(second, name), getattr(first, name)), name
    data = (X, y)
    assert torch.equal(loaded.log_likelihood(data, 5), posterior.log_likelihood(data, 5))
    assert torch.equal(loaded.log_joint(data, 5), posterior.log_joint(data, 5))


@pytest.mark.parametrize(
    ("guide", "model"), rest_in_soak(PAIRS, cover(GUIDES, MODELS, suits=suits))
)
def test_every_guide_on_every_kind_of_model(guide: str, model: str, tmp_path: Path) -> None:
    y, made = target(model), MODELS[model]()
    cls = GUIDES[guide]
    own = cls(made)
    own.setup(X)
    with torch.no_grad():
        for number, parameter in enumerate(own.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape) + 0.01 * number)
    provenance = Provenance(
        cls.__name__,
        "SVI",
        {"num_steps": 2, "schedule": None, "clip_norm": 0.5},
        seed=-3,
        wall_time=1.25,
        num_parameters=7,
        losses=np.array([3.0, np.inf, -1.5]),
    )
    posterior = GuidePosterior(Program(made, X, y), own, provenance)
    assert_returns(posterior, MODELS[model](), y, tmp_path / "fit.pt")


@pytest.mark.parametrize("engine", [NUTS, HMC])
def test_draws_of_samplers(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = (
        engine(num_chains=2, warmup_steps=4, num_samples=10, max_tree_depth=2, compile=False)
        if engine is NUTS
        else engine(num_chains=2, warmup_steps=4, num_samples=10, num_steps=3, compile=False)
    )
    y = target("hierarchy")
    posterior = sampler.run(MODELS["hierarchy"](), (X, y), seed=1, progress=False)
    assert posterior.sample_stats
    for bound in (memory.STORED_DRAWS, 1):  # in memory, and left in the file
        monkeypatch.setattr(memory, "STORED_DRAWS", bound)
        assert_returns(posterior, MODELS["hierarchy"](), y, tmp_path / "fit.pt")


def test_a_posterior_that_diverged(tmp_path: Path) -> None:
    rough = SVI(guides.AutoNormal, num_steps=200, learning_rate=1e30, compile=False)
    y = target("plain")
    with pytest.raises(DivergenceError) as caught:
        rough.run(MODELS["plain"](), (X, y), progress=False)
    assert isinstance(caught.value.posterior, Posterior)
    assert_returns(caught.value.posterior, MODELS["plain"](), y, tmp_path / "fit.pt")


# Writes that fail

FULL = """
import resource, signal, sys
from pathlib import Path
import numpy as np
import torch
from pyro_bnn.arviz_io import datatree, save_netcdf
from pyro_bnn.errors import OutputError
from pyro_bnn.files.tensors import write_tensors

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit then fails as a disk does
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
folder = Path(sys.argv[1])
z = np.random.default_rng(0).normal(size=(2, 50_000))
for name in ("fit.pt", "fit.nc"):
    try:
        if name == "fit.pt":
            write_tensors({"z": torch.as_tensor(z)}, folder / name / name)
        else:
            save_netcdf(datatree({"posterior": {"z": z}}), folder / name / name)
    except OutputError as error:
        print(repr(str(error)), flush=True)
    else:
        print("''", flush=True)
"""
FILES = ("fit.pt", "fit.nc")


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder of each file on a disk that is full, by one process, and what it said of each."""
    folder = tmp_path_factory.mktemp("full")
    for name in FILES:
        (folder / name).mkdir()
        (folder / name / name).write_text("before")
    command = [sys.executable, "-c", FULL, str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr  # HDF5 would end in a segmentation fault
    said = [ast.literal_eval(line) for line in found.stdout.splitlines()]
    return folder, dict(zip(FILES, said, strict=True))


@pytest.mark.slow("a second or more")
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
@pytest.mark.parametrize("name", FILES)
def test_a_disk_that_is_full_leaves_what_was_there(
    name: str, full_disk: tuple[Path, dict[str, str]]
) -> None:
    folder, said = full_disk
    path = folder / name / name
    assert said[name].startswith(f"cannot write {path}: ")
    assert "File too large" in said[name]
    assert [p.read_text() for p in path.parent.iterdir()] == ["before"]
