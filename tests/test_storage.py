"""Posteriors on disk: what comes back is what was saved, and nothing is unpickled."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pyro_bnn import SVI, guides, likelihoods, memory, models, priors, registry
from pyro_bnn.data import Dataset, Standardiser
from pyro_bnn.errors import FileFormatError, OutputError, SiteError
from pyro_bnn.files import tensors
from pyro_bnn.files.tensors import read_tensors, write_tensors
from pyro_bnn.guides import Guide
from pyro_bnn.infer.svi import stock
from pyro_bnn.posterior import DrawsPosterior, GuidePosterior, Posterior, Provenance, storage
from pyro_bnn.program import Program
from tests.guides.exact import exact_posterior, stored_posterior
from tests.laws import rank1_network
from tests.oracle import linear_gaussian

pytestmark = pytest.mark.usefixtures("uncaptured")

GUIDES: dict[str, type[Guide]] = registry.entries("guide")


def assert_same(a: Posterior, b: Posterior, x: Tensor, y: Tensor) -> None:
    """Bitwise the same predictions, densities and provenance."""
    assert type(a) is type(b)
    torch.testing.assert_close(a.unconstrained(20), b.unconstrained(20), rtol=0, atol=0)
    first, second = a.predict(x, 20, raw=True), b.predict(x, 20, raw=True)
    for name in ("draws", "function_draws"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=0, atol=0)
    torch.testing.assert_close(first.log_prob(y), second.log_prob(y), rtol=0, atol=0)
    assert a.has_log_prob == b.has_log_prob
    if a.has_log_prob:
        torch.testing.assert_close(a.log_q(20), b.log_q(20), rtol=0, atol=0)
    for name in ("method", "engine", "options", "seed", "wall_time", "num_parameters", "phases",
                 "threads", "input_names", "target_names", "class_names"):  # fmt: skip
        assert getattr(a.provenance, name) == getattr(b.provenance, name)
    np.testing.assert_array_equal(a.losses, b.losses)
    assert a.sample_stats.keys() == b.sample_stats.keys()
    for name, value in a.sample_stats.items():
        np.testing.assert_array_equal(value, b.sample_stats[name])
        assert value.dtype == b.sample_stats[name].dtype
    assert a.params.keys() == b.params.keys()
    for name, tensor in a.params.items():
        torch.testing.assert_close(tensor, b.params[name], rtol=0, atol=0)
    for units in ("inputs", "target"):
        before, after = getattr(a.provenance, units), getattr(b.provenance, units)
        assert (before is None) == (after is None)
        if before is not None:
            torch.testing.assert_close(before.loc, after.loc, rtol=0, atol=0)
            torch.testing.assert_close(before.scale, after.scale, rtol=0, atol=0)


def partly_bayesian() -> models.BayesianModule:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 1))
    return models.bayesian(net, {"2.*": priors.Normal()}, likelihoods.Normal()).double()


# Round trips


@pytest.mark.parametrize("guide", GUIDES)
def test_a_trained_guide(guide: str, tmp_path: Path) -> None:
    oracle = linear_gaussian()
    dataset = Dataset(
        oracle.x,
        oracle.y,
        inputs=Standardiser(torch.zeros(3).double(), torch.full((3,), 2.0).double()),
        target=Standardiser(torch.tensor(3.0).double(), torch.tensor(0.5).double()),
    )
    make_model = partly_bayesian if GUIDES[guide].needs_model is None else rank1_network
    posterior = SVI(GUIDES[guide], num_steps=5).run(make_model(), dataset, seed=4, progress=False)
    posterior.save(tmp_path / "fit.pt")
    loaded = Posterior.load(tmp_path / "fit.pt", make_model())
    assert isinstance(loaded, GuidePosterior)
    assert type(loaded.guide) is GUIDES[guide]
    assert_same(loaded, posterior, oracle.x, oracle.y)
    assert [path.name for path in tmp_path.iterdir()] == ["fit.pt"]


def test_the_gpu_of_a_fit_is_kept_and_older_files_have_none(tmp_path: Path) -> None:
    oracle, path = linear_gaussian(), tmp_path / "fit.pt"
    posterior = stored_posterior(oracle)
    posterior.provenance = dataclasses.replace(posterior.provenance, gpu="NVIDIA H100")
    posterior.save(path)
    assert Posterior.load(path, linear_gaussian().model).gpu == "NVIDIA H100"
    document = read_tensors(path)
    del document["header"]["gpu"]
    write_tensors(document, path)
    assert Posterior.load(path, linear_gaussian().model).gpu is None


def test_stored_draws_with_statistics(tmp_path: Path) -> None:
    oracle = linear_gaussian()
    stats = {
        "diverging": np.arange(100).reshape(2, 50) % 7 == 0,
        "tree_depth": np.arange(100).reshape(2, 50),
        "lp": np.linspace(-1, 0, 100).reshape(2, 50),
    }
    posterior = stored_posterior(oracle, sample_stats=stats)
    posterior.save(str(tmp_path / "draws.pt"))
    loaded = Posterior.load(str(tmp_path / "draws.pt"), linear_gaussian().model)
    assert loaded.num_chains == 2
    assert_same(loaded, posterior, oracle.x, oracle.y)


def test_draws_of_a_stock_guide_keep_log_q(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyro.infer.autoguide import AutoNormal

    monkeypatch.setattr(stock, "NUM_DRAWS", 25)
    oracle = linear_gaussian()
    posterior = SVI(AutoNormal, num_steps=2).run(oracle.model, (oracle.x, oracle.y), progress=False)
    posterior.save(tmp_path / "stock.pt")
    loaded = Posterior.load(tmp_path / "stock.pt", linear_gaussian().model)
    assert_same(loaded, posterior, oracle.x, oracle.y)
    torch.testing.assert_close(loaded.log_q(25), posterior.log_q(25), rtol=0, atol=0)


class OwnGuide(guides.AutoNormal):
    """A guide of a user."""


def test_a_guide_of_another_package_is_stored_as_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_bnn.posterior.site_posterior.DRAWS_OF_UNKNOWN_GUIDES", 40)
    oracle = linear_gaussian()
    posterior = SVI(OwnGuide, num_steps=2).run(oracle.model, (oracle.x, oracle.y), progress=False)
    posterior.save(tmp_path / "own.pt")
    loaded = Posterior.load(tmp_path / "own.pt", linear_gaussian().model)
    assert isinstance(loaded, DrawsPosterior)
    assert loaded.method == "OwnGuide"
    torch.testing.assert_close(loaded.unconstrained(40), posterior.unconstrained(40))
    torch.testing.assert_close(loaded.log_q(40), posterior.log_q(40))


def test_the_likelihood_is_scaled_by_all_rows_after_loading(tmp_path: Path) -> None:
    oracle = linear_gaussian()
    exact_posterior(oracle).save(tmp_path / "fit.pt")
    program = Posterior.load(tmp_path / "fit.pt", linear_gaussian().model).program
    assert program.num_data == 20
    z = torch.zeros(4, dtype=torch.float64)
    batch = program.batch(oracle.x, oracle.y)
    torch.testing.assert_close(program.log_joint(z, batch), oracle.log_joint(z))


def test_a_file_is_replaced_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "fit.pt"
    path.write_text("what was there")
    posterior = exact_posterior(linear_gaussian())
    posterior.save(path)
    Posterior.load(path, linear_gaussian().model)
    fresh = tmp_path / "fresh.pt"
    posterior.save(fresh)
    umask = os.umask(0)
    os.umask(umask)
    assert fresh.stat().st_mode & 0o777 == 0o666 & ~umask


def test_phases_of_the_run(tmp_path: Path) -> None:
    path, phases = tmp_path / "fit.pt", {"warm-up": 1.5, "sampling": 2.25}
    exact_posterior(linear_gaussian(), phases=phases).save(path)
    assert load(path).provenance.phases == phases


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"input_names": ["a", "b"]}, r"x \[2, 3\] has another number of columns than of names"),
        ({"class_names": "ab"}, "class_names is a str, not a list"),
        ({"target_names": ["a", 1]}, "target_names is a int, not a str"),
    ],
)
def test_names_that_are_none(names: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "fit.pt"
    exact_posterior(linear_gaussian()).save(path)

    def named(document: dict[str, Any]) -> None:
        document["header"] |= names

    with pytest.raises(FileFormatError, match=reason):
        load(changed(path, named))


# Draws of any size


def draws_posterior(z: Tensor) -> DrawsPosterior:
    oracle = linear_gaussian()
    return DrawsPosterior(Program(oracle.model, oracle.x, oracle.y), z, Provenance("NUTS", "NUTS"))


def test_a_part_of_a_larger_tensor_is_written_alone(tmp_path: Path) -> None:
    z = torch.randn(2, 1_000, 8, dtype=torch.float64)
    for part in (z[:, :10, :4], z[..., :4].contiguous()[:, ::100], z.flatten()[:80].view(2, 10, 4)):
        draws_posterior(part).save(tmp_path / "fit.pt")
        assert (tmp_path / "fit.pt").stat().st_size < 20_000
        loaded = load(tmp_path / "fit.pt")
        assert isinstance(loaded, DrawsPosterior)
        assert torch.equal(loaded.stored, part)


@pytest.mark.parametrize("bound", [1, 1 << 20], ids=["mapped", "in memory"])
def test_draws_of_another_precision(
    bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model computes in its own, whatever the draws are stored in."""
    monkeypatch.setattr(memory, "STORED_DRAWS", bound)
    x = torch.linspace(-1, 1, 12).unsqueeze(-1)
    model = models.MLP(1, hidden=(3,))
    program = Program(model, x, x[:, 0])
    z = torch.randn(2, 5, program.num_latents)
    posterior = DrawsPosterior(program, z, Provenance("NUTS", "NUTS"))
    posterior.save(tmp_path / "fit.pt")
    double = Posterior.load(tmp_path / "fit.pt", models.MLP(1, hidden=(3,)).double())
    assert isinstance(double, DrawsPosterior)
    assert double.stored.dtype == (torch.float32 if bound == 1 else torch.float64)
    assert torch.equal(double.unconstrained(), z.flatten(0, 1).double())
    f = posterior.function_draws(x).double()
    torch.testing.assert_close(double.function_draws(x), f, rtol=1e-5, atol=1e-5)


LARGER_THAN_THE_MEMORY = """
import resource, sys
from pathlib import Path
import torch
from pyro_bnn import memory
from pyro_bnn.errors import FileFormatError
from pyro_bnn.posterior import Posterior
from tests.oracle import linear_gaussian

path = Path(sys.argv[1])
model = linear_gaussian().model
own = Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]
limit = (int(own) << 10) + (80 << 20)  # of private memory, maps of files included
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
before = path.stat().st_mtime_ns
try:
    Posterior.load(path, model)
except FileFormatError:  # the limit is one
    memory.STORED_DRAWS = 1 << 20
posterior = Posterior.load(path, model)
print(float(posterior.log_joint((torch.zeros(1, 3), torch.zeros(1)), 10).sum()))
assert path.stat().st_mtime_ns == before
assert memory.STORED_DRAWS == 1 << 20
"""


@pytest.mark.slow("a process")
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_a_file_larger_than_the_memory_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fit.pt"
    z = torch.zeros(2, 2_000_000, 4, dtype=torch.float64)  # 128 MB
    z[0, -1] = 1.0
    posterior = draws_posterior(z)
    posterior.save(path)
    command = [sys.executable, "-c", LARGER_THAN_THE_MEMORY, str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    expected = posterior.log_joint((torch.zeros(1, 3), torch.zeros(1)), 10).sum()
    assert float(found.stdout) == pytest.approx(float(expected), rel=1e-12)


# Files that cannot be read


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "fit.pt"
    exact_posterior(linear_gaussian()).save(path)
    return path


def load(path: Path) -> Posterior:
    return Posterior.load(path, linear_gaussian().model)


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The file with its document changed."""
    document = read_tensors(path)
    change(document)
    write_tensors(document, path)
    return path


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.pt", tmp_path):
        with pytest.raises(FileFormatError, match="does not exist or is not a file"):
            load(path)


def test_truncated_files(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    for size in (0, 100, len(content) // 2, len(content) - 10):
        path.write_bytes(content[:size])
        with pytest.raises(FileFormatError, match=r"is truncated, or is not|not fully covered"):
            load(path)


def test_a_file_with_a_hole(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[-100:-50] = bytes(50)
    path.write_bytes(bytes(content))
    with pytest.raises(FileFormatError, match="cannot be read as tensors: the checksum of "):
        load(path)


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(FileFormatError, match="is truncated, or is not a file saved by this"):
        load(path)
    write_tensors({"state": torch.zeros(3)}, path)
    with pytest.raises(FileFormatError, match="is not a posterior saved by this package"):
        load(path)
    save_file({"state": torch.zeros(3)}, path)
    with pytest.raises(FileFormatError, match="is not a file saved by this package"):
        load(path)


class Trap:
    """Unpickling it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    path, sprung = tmp_path / "trap.pt", tmp_path / "sprung"
    torch.save({"format": storage.FORMAT, "version": 2, "header": Trap(sprung)}, path)
    with pytest.raises(FileFormatError, match="as an earlier version of this package"):
        load(path)
    path.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(FileFormatError, match="is truncated, or is not a file saved by this"):
        load(path)
    assert not sprung.exists()


def test_a_newer_version(tmp_path: Path) -> None:
    path = changed(saved(tmp_path), lambda document: document.update(version=4))
    with pytest.raises(
        FileFormatError, match="has format version 4, this package reads 3; read it with the newer"
    ):
        load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("x"), "is damaged: KeyError"),
        (lambda d: d.update(header="{"), "is damaged: TypeError: header is a str"),
        (lambda d: d.update(losses=None), "is damaged: TypeError: losses is a NoneType"),
        (lambda d: d["guide"].update(options=[]), "is damaged: TypeError"),
        (lambda d: d["guide"]["state"].pop("loc"), r"is damaged: .*Missing key"),
        (lambda d: d["guide"].update({"class": "Guild"}), "holds a Guild, which is no guide known"),
        (lambda d: d["guide"].update({"class": "__name__"}), "holds a __name__, which is no guide"),
    ],
)
def test_a_damaged_document(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    path = changed(saved(tmp_path), change)
    with pytest.raises(FileFormatError, match=f"(?s){message}"):
        load(path)


def test_another_model(tmp_path: Path) -> None:
    path = saved(tmp_path)
    other = models.MLP(3, hidden=()).double()
    with pytest.raises(
        SiteError, match=r"of a model with sites w \(3, 1\), b \(1,\), but this mod"
    ):
        Posterior.load(path, other)


def test_other_point_parameters(tmp_path: Path) -> None:
    path = changed(saved(tmp_path), lambda d: d["params"].update(extra=torch.zeros(2)))
    with pytest.raises(
        SiteError, match=r"has the point-estimated parameters extra, but this model"
    ):
        load(path)


# Files that cannot be written


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    posterior = exact_posterior(linear_gaussian())
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "none" / "fit.pt", tmp_path / "file" / "fit.pt", tmp_path / "folder"):
        with pytest.raises(OutputError, match=f"cannot write {path}: "):
            posterior.save(path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    for owner, name in ((tensors, "pour"), (Path, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            with pytest.raises(OutputError, match="No space left on device"):
                exact_posterior(linear_gaussian()).save(path)
        assert path.read_bytes() == before
        assert [child.name for child in tmp_path.iterdir()] == ["fit.pt"]


def test_options_are_plain_json(tmp_path: Path) -> None:
    header = read_tensors(saved(tmp_path))["header"]
    assert header["method"] == "AutoMultivariateNormal"
    assert header["sites"] == [["w", [3, 1]], ["b", [1]]]


def test_a_file_without_a_name() -> None:
    with pytest.raises(OutputError, match=r"cannot write '\.': it names no file"):
        exact_posterior(linear_gaussian()).save("")


# A model that differs from the one that was saved


def small(prior: float = 1.0, activation: str = "relu", noise: float = 0.3) -> models.MLP:
    return models.MLP(
        3,
        hidden=(4,),
        activation=activation,
        prior=priors.Normal(scale=prior),
        likelihood=likelihoods.Normal(noise),
    )


@pytest.mark.parametrize("other", [{"prior": 1.1}, {"prior": 1.005}, {"activation": "tanh"}])
def test_another_prior_or_activation_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    oracle = linear_gaussian()
    data = (oracle.x.float(), oracle.y.float())
    posterior = SVI(guides.AutoNormal, num_steps=2).run(small(), data, progress=False)
    posterior.save(tmp_path / "fit.pt")
    with pytest.raises(SiteError, match=r"its sites are the same, but not its densities at the sa"):
        Posterior.load(tmp_path / "fit.pt", small(**other))
    Posterior.load(tmp_path / "fit.pt", small())
    Posterior.load(tmp_path / "fit.pt", small().double())


def test_a_later_change_of_the_users_model_is_not_in_the_file(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 12).unsqueeze(-1)
    model = models.MLP(1, hidden=(3,), likelihood=likelihoods.Normal(0.3))
    posterior = SVI(guides.AutoNormal, num_steps=3).run(model, (x, x[:, 0]), progress=False)
    expected = posterior.predict(x).sd
    model.likelihood.scale.fill_(5.0)
    posterior.save(tmp_path / "posterior.pt")
    fresh = models.MLP(1, hidden=(3,), likelihood=likelihoods.Normal(0.3))
    loaded = Posterior.load(tmp_path / "posterior.pt", fresh)
    torch.testing.assert_close(loaded.predict(x).sd, expected, rtol=0, atol=0)


def test_other_buffers_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with pytest.raises(SiteError, match=r"differs from the one saved in .* in its buffers noise: "):
        Posterior.load(path, linear_gaussian(noise=0.6).model)
