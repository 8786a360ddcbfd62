"""``posterior.export``: programs against NumPy on the same draws, and against ``predict``."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from numpy.typing import NDArray
from pyro.nn import PyroModule, PyroSample
from scipy.special import softmax
from torch import Tensor, nn

import pyro_bnn as bnn
from pyro_bnn import guides, likelihoods, models
from pyro_bnn.capture.any_rows import record_any_rows
from pyro_bnn.data import Split, from_arrays
from pyro_bnn.errors import (
    BNNWarning,
    CaptureError,
    ModelError,
    OptionError,
    OutputError,
    ShapeError,
)
from pyro_bnn.predictive.moments import normal_mixture_quantiles
from tests.oracle import mixture_quantile

LEVELS = {"low": 0.025, "median": 0.5, "high": 0.975}
Rows = NDArray[np.float64]


def table(num_targets: int = 1) -> Split:
    """Rows far from 0, so that a program that forgets the units is far off."""
    generator = np.random.default_rng(0)
    x = 30 + 5 * generator.standard_normal((60, 3))
    y = 100 + 7 * x[:, :num_targets] + generator.standard_normal((60, num_targets))
    return from_arrays(x, y[:, 0] if num_targets == 1 else y)


def rows_of_user(count: int) -> Rows:
    return 30 + 5 * np.random.default_rng(1).standard_normal((count, 3))


def fitted(model: Any, data: Any, guide: Any = guides.AutoNormal, num_steps: int = 20) -> Any:
    engine = bnn.SVI(guide, num_steps=num_steps, compile=False)
    return engine.run(model, data, progress=False)


def mlp(**options: Any) -> models.MLP:
    return models.MLP(3, hidden=(4,), activation="tanh", **options)


def loaded(path: Path) -> Callable[[Any], dict[str, NDArray[Any]]]:
    """The program of a file, as a function of arrays."""
    if path.suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        names = [value.name for value in session.get_outputs()]
        return lambda x: dict(zip(names, session.run(None, {"x": x}), strict=True))
    program = torch.export.load(path).module()
    return lambda x: {name: value.numpy() for name, value in program(torch.as_tensor(x)).items()}


def predicted(of: Any, name: str) -> NDArray[Any]:
    value: Tensor = of.quantile(LEVELS[name]) if name in LEVELS else getattr(of, name)
    return np.asarray(value)


def functions_by_hand(posterior: Any, x: Rows, count: int) -> Rows:
    """F ``[S, N, O]`` of a multilayer perceptron with one tanh layer, in the user's units."""
    draws = {name: np.asarray(v, float) for name, v in posterior.sample(count).items()}
    units = posterior.provenance
    x = (x - np.asarray(units.inputs.loc)) / np.asarray(units.inputs.scale)
    h = np.tanh(
        np.einsum("shi,ni->snh", draws["layers.0.weight"], x) + draws["layers.0.bias"][:, None]
    )
    f = np.einsum("soh,snh->sno", draws["layers.1.weight"], h) + draws["layers.1.bias"][:, None]
    return np.asarray(units.target.loc + units.target.scale * torch.as_tensor(f))


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_numbers_are_those_of_numpy_on_the_same_draws(suffix: str, tmp_path: Path) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    posterior, path = fitted(mlp().double(), table().train), tmp_path / f"net{suffix}"
    x = rows_of_user(7)
    posterior.export(path, x[:2], 40)
    found = loaded(path)(x)

    f = functions_by_hand(posterior, x, 40)  # [S, N, 1]
    noise = float(posterior.provenance.target.scale) * np.asarray(
        posterior.sample(40)["likelihood.scale"]
    )
    epistemic, aleatoric = f.std(0), np.full((7, 1), math.sqrt(np.mean(noise**2)))
    scales = torch.as_tensor(noise)[:, None].expand(40, 7)
    expected = {
        "mean": f.mean(0),
        "sd": np.hypot(epistemic, aleatoric),
        "sd_epistemic": epistemic,
        "sd_aleatoric": aleatoric,
    } | {
        name: mixture_quantile(torch.as_tensor(f[..., 0]), scales, level)[:, None]
        for name, level in LEVELS.items()
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error = np.abs(found[name] - value) / expected["sd"]
        assert found[name].shape == (7, 1), name
        assert error.max() < 1e-5, name


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_classes_of_an_image_are_those_of_a_loop_over_draws(suffix: str, tmp_path: Path) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3)
    )
    x, y = torch.rand(12, 1, 8, 8), torch.arange(12) % 3
    posterior = fitted(bnn.bayesian(net, likelihood=likelihoods.Categorical(3)), (x, y))
    posterior.export(tmp_path / f"net{suffix}", x[:2], 6)
    found = loaded(tmp_path / f"net{suffix}")(x.numpy())
    draws = posterior.sample(6)
    with torch.no_grad():
        logits = [
            torch.func.functional_call(net, {name: v[s] for name, v in draws.items()}, (x,))
            for s in range(6)
        ]
    each = softmax(np.stack([value.double().numpy() for value in logits]), -1)
    probs = each.mean(0)
    entropy = -(probs * np.log(probs)).sum(-1)
    expected = {
        "probs": probs,
        "entropy": entropy,
        "mutual_information": entropy + (each * np.log(each)).sum(-1).mean(0),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5, err_msg=name)


class Attention(nn.Module):
    """A block of a transformer over four entries."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``[N, 4]`` to logits ``[N, 3]``."""
        f: Tensor = self.head(self.block(self.first(x[..., None])).mean(1))
        return f


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_attention_is_made_of_plain_operations(suffix: str, tmp_path: Path) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    net = Attention().eval()
    posterior = fitted(bnn.bayesian(net, likelihood=likelihoods.Categorical(3)), (x, y))
    posterior.export(tmp_path / f"net{suffix}", x, 5)
    found = loaded(tmp_path / f"net{suffix}")(x.numpy())
    with torch.no_grad():
        logits = [
            torch.func.functional_call(net, posterior.state_dict(s, 5), (x,)) for s in range(5)
        ]
    probs = softmax(np.stack([value.double().numpy() for value in logits]), -1).mean(0)
    np.testing.assert_allclose(found["probs"], probs, rtol=0, atol=1e-5)


def test_a_head_on_a_frozen_body_is_exported_with_its_body(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x, y = torch.randn(30, 3), torch.arange(30) % 3
    model = bnn.bayesian(net, {"3.*": bnn.priors.Normal()}, likelihoods.Categorical(3))
    posterior = fitted(model, (x, y))
    posterior.export(tmp_path / "net.pt2", x[:1], 6)
    found = loaded(tmp_path / "net.pt2")(x)
    with torch.no_grad():
        logits = [
            torch.func.functional_call(net, posterior.state_dict(s, 6), (x,)) for s in range(6)
        ]
    probs = torch.stack(logits).softmax(-1).mean(0)
    np.testing.assert_allclose(found["probs"], probs, rtol=0, atol=1e-6)


def test_by_default_draws_of_large_networks_are_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior, x = fitted(mlp(), table().train), rows_of_user(4)
    num_latents = posterior.program.num_latents
    monkeypatch.setattr("pyro_bnn.posterior.export.GIB", 9 * 4 * num_latents + 1)
    posterior.export(tmp_path / "net.pt2", x)
    mean = posterior.predict(x, 9, raw=True).mean
    np.testing.assert_allclose(loaded(tmp_path / "net.pt2")(x)["mean"], mean, rtol=1e-6)


OF_KINDS: dict[str, Callable[[Any], Any]] = {
    "full guide": lambda data: fitted(mlp(), data, guides.AutoMultivariateNormal),
    "one point": lambda data: fitted(mlp(), data, guides.AutoDelta),
    "heavy tails, no moments": lambda data: fitted(mlp(), data, guides.AutoRadial),
    "ensemble": lambda data: bnn.Ensemble(num_members=3, num_steps=20).run(
        mlp(), data, progress=False
    ),
    "ensemble, t": lambda data: bnn.Ensemble(num_members=3, num_steps=20).run(
        mlp(likelihood=likelihoods.StudentT()), data, progress=False
    ),
    "laplace, tangent": lambda data: bnn.Laplace(num_steps=2_000).run(mlp(), data, progress=False),
    "swag": lambda data: bnn.SWAG(num_steps=100, learning_rate=1e-3).run(
        mlp(), data, progress=False
    ),
    "chains": lambda data: bnn.NUTS(num_chains=2, warmup_steps=5, num_samples=20).run(
        mlp(), data, progress=False
    ),
    "noise by x": lambda data: fitted(mlp(likelihood=likelihoods.HeteroscedasticNormal()), data),
}


@pytest.mark.usefixtures("short_trajectories")
@pytest.mark.parametrize("name", OF_KINDS)
def test_every_kind_of_posterior_says_what_predict_says(name: str, tmp_path: Path) -> None:
    posterior, x = OF_KINDS[name](table().train), rows_of_user(9)
    posterior.export(tmp_path / "net.pt2", x[:3], 30)
    program, of = loaded(tmp_path / "net.pt2"), posterior.predict(x, 30, raw=True)
    sd = (of.quantile(0.975) - of.quantile(0.025)).numpy() / 4  # it exists
    for num_rows in (1, 9):
        found = program(x[:num_rows])
        assert {"low", "median", "high"} <= found.keys()
        assert ("mean" in found) == posterior.has_moments
        for output, value in found.items():
            error = np.abs(value - predicted(of, output)[:num_rows]) / sd[:num_rows]
            assert error.max() < 1e-4, output  # of float32 at 300 for an sd of 5


def test_several_targets_by_an_example_of_one_row(tmp_path: Path) -> None:
    posterior = fitted(models.MLP(3, 2, hidden=(4,)), table(2).train)
    x = rows_of_user(5)
    posterior.export(tmp_path / "net.pt2", x[:1])  # 100 draws, and any number of rows
    found, of = loaded(tmp_path / "net.pt2")(x), posterior.predict(x, 100, raw=True)
    for output, value in found.items():
        assert value.shape == (5, 2)
        np.testing.assert_allclose(value, predicted(of, output), rtol=1e-5, err_msg=output)


def test_rows_in_the_models_units_and_another_seed_and_level(tmp_path: Path) -> None:
    posterior, x = fitted(mlp(), table().train), torch.randn(4, 3)
    posterior.export(tmp_path / "net.pt2", x, 20, seed=3, raw=False, level=0.5)
    found, of = loaded(tmp_path / "net.pt2")(x), posterior.predict(x, 20, seed=3)
    np.testing.assert_allclose(found["mean"], of.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["low"], of.quantile(0.25), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8, torch.float32, torch.uint8])
def test_rows_come_in_the_dtype_of_the_example(kind: Any, tmp_path: Path) -> None:
    posterior = fitted(mlp(), table().train)
    rows: Any = rows_of_user(3).round().astype(kind if isinstance(kind, type) else np.float64)
    if isinstance(kind, torch.dtype):
        rows = torch.as_tensor(rows).to(kind)
    posterior.export(tmp_path / "it.pt2", rows, 5)
    program = torch.export.load(tmp_path / "it.pt2").module()
    mean = program(torch.as_tensor(rows))["mean"]
    expected = posterior.predict(rows, 5, raw=True).mean
    torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-5, check_dtype=False)


def test_columns_of_a_frame_are_in_the_order_of_the_fit(tmp_path: Path) -> None:
    import pandas as pd

    x = pd.DataFrame(rows_of_user(30), columns=["a", "b", "c"])
    frame = x.assign(y=x["a"] - 2 * x["c"])
    posterior = fitted(mlp(), bnn.data.from_frame(frame, target="y").train)
    posterior.export(tmp_path / "net.pt2", x[["c", "a", "b"]].head(5), 10)
    found = loaded(tmp_path / "net.pt2")(x.to_numpy().copy())
    mean = posterior.predict(x, 10, raw=True).mean
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-5, atol=1e-4)


def test_counts_have_no_quantiles_and_that_is_told(tmp_path: Path) -> None:
    x = torch.randn(20, 3)
    counts = torch.arange(20) % 4
    posterior = fitted(mlp(likelihood=likelihoods.Poisson()), (x, counts))
    with pytest.warns(BNNWarning, match="no low, median, high.*level=None") as told:
        posterior.export(tmp_path / "net.pt2", x, 10)
    assert told[0].filename == __file__
    posterior.export(tmp_path / "quiet.pt2", x, 10, level=None)
    found, of = loaded(tmp_path / "quiet.pt2")(x), posterior.predict(x, 10)
    assert [*found] == ["mean", "sd", "sd_epistemic", "sd_aleatoric"]
    np.testing.assert_allclose(found["sd"], of.sd, rtol=1e-5)


def test_what_cannot_be_exported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, x = fitted(mlp(), table().train), rows_of_user(3)
    with pytest.raises(OptionError, match=r"ends in '.txt': name a file that ends in .pt2"):
        posterior.export(tmp_path / "net.txt", x)
    with pytest.raises(OptionError, match="level of an interval is between 0 and 1"):
        posterior.export(tmp_path / "net.pt2", x, level=1.0)
    with pytest.raises(ShapeError, match="holds N rows, N at least 1"):
        posterior.export(tmp_path / "net.pt2", x[:0])
    with pytest.raises(OutputError, match="cannot write"):
        posterior.export(tmp_path / "no folder" / "net.pt2", x, 2)
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(OptionError, match=r"pip install 'pyro-bnn\[onnx\]'"):
        posterior.export(tmp_path / "net.onnx", x)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("dtype", "shift", "name"),
    [
        (torch.float64, 3e-5, "median"),
        (torch.float32, 3e-3, "high"),
        (torch.float32, math.nan, "low"),
    ],
)
def test_a_program_of_other_quantiles_is_not_written(
    dtype: torch.dtype, shift: float, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(levels: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        sd = (loc.var(0, correction=0) + scale.square().mean(0)).sqrt()
        wrong = torch.tensor([shift * (name == of) for of in LEVELS]).nan_to_num(math.nan)
        return normal_mixture_quantiles(levels, loc, scale) + wrong.to(loc)[:, None, None] * sd

    posterior, x = fitted(mlp().to(dtype), table().train), rows_of_user(3)
    monkeypatch.setattr("pyro_bnn.predictive.exported.normal_mixture_quantiles", shifted)
    with pytest.raises(ModelError, match=f"another {name}, off by.*posterior.save"):
        posterior.export(tmp_path / "net.pt2", x, 20)
    assert not [*tmp_path.iterdir()]


def test_other_quantiles_of_draws_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = OF_KINDS["ensemble, t"](table().train)
    monkeypatch.setattr(
        "pyro_bnn.predictive.exported.places_of_parts", lambda p, count: p * (count - 1)
    )
    with pytest.raises(ModelError, match="another low, off by"):
        posterior.export(tmp_path / "net.pt2", rows_of_user(3), 20)


def test_quantiles_that_are_not_unique_or_far_out_are_no_fault(tmp_path: Path) -> None:
    """The median of two far modes is any number between them."""
    model, x = mlp(likelihood=likelihoods.Normal(0.01)), rows_of_user(3)
    apart = bnn.Ensemble(num_members=2, num_steps=1).run(model, table().train, progress=False)
    of: Any = apart.predict(x, 2, raw=True)
    assert (of.means.diff(dim=0).abs() > 20 * of.variances.sqrt()).all()
    apart.export(tmp_path / "apart.pt2", x, 2)
    fitted(mlp(), table().train).export(tmp_path / "far.pt2", x, 30, level=0.99999)


def test_differences_as_of_rounding_are_no_fault_in_single_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(levels: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        return normal_mixture_quantiles(levels, loc, scale) + 3e-4 * scale.mean(0)

    posterior, x = fitted(mlp(), table().train), rows_of_user(3)
    monkeypatch.setattr("pyro_bnn.predictive.exported.normal_mixture_quantiles", shifted)
    posterior.export(tmp_path / "net.pt2", x, 20)
    assert (tmp_path / "net.pt2").exists()


class Branching(PyroModule):
    """A model that reads a number of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.slope: Any = PyroSample(dist.Normal(0.0, 1.0))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = x * 2 if float(x.abs().sum()) > 1e9 else x
        f = pyro.deterministic("f", x[:, :1] * self.slope)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)


def test_a_model_that_branches_on_numbers_is_refused(tmp_path: Path) -> None:
    x = torch.randn(10, 3)
    posterior = fitted(Branching(), (x, x[:, 0]))
    with pytest.raises(ModelError, match=r"cannot be exported: .*Save it by posterior.save"):
        posterior.export(tmp_path / "net.pt2", x, 2)


# The parts


@pytest.mark.parametrize("separation", [0.0, 1.0, 30.0])
def test_quantiles_by_a_fixed_number_of_steps_are_roots(separation: float) -> None:
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(7, 5, 2, generator=generator, dtype=torch.float64)
    loc[:3] += separation  # two modes of unequal size: no level falls between them
    scale = torch.rand(7, 5, 2, generator=generator, dtype=torch.float64) + 0.05
    levels = (0.005, 0.3, 0.5, 0.975)
    found = normal_mixture_quantiles(torch.tensor(levels), loc, scale)
    for quantile, level in zip(found, levels, strict=True):
        exact = mixture_quantile(loc.flatten(1), scale.flatten(1), level)
        np.testing.assert_allclose(quantile.flatten().numpy(), exact, rtol=0, atol=2e-6)


def test_the_quantile_of_equal_gaussians_is_theirs() -> None:
    loc, scale = torch.full((3, 1, 1), 3.0), torch.full((3, 1, 1), 0.2)
    found = normal_mixture_quantiles(torch.tensor([0.5, 0.975]), loc, scale)
    torch.testing.assert_close(found.flatten(), torch.tensor([3.0, 3.3919928]))


def test_recordings_hold_for_any_number_of_rows() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        flat = torch.cat([x, 2 * x]).reshape(-1)  # 2 N C numbers
        return flat.reshape(2, len(x), -1).sum(0), torch.ones(len(x) + 4) * x.sum()

    graph = record_any_rows(fn, torch.randn(1, 6))
    for num_rows in (1, 2, 11):
        x = torch.randn(num_rows, 6)
        for found, expected in zip(graph(x), fn(x), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: (x[: len(x) // 2],), "number of rows"),
        (lambda x: (x[:1].expand(len(x) ** 2, 3),), "number of rows"),
        (lambda x: (x / len(x) ** 0.5,), "number of rows"),
        (lambda x: (x * 2 if len(x) > 4 else x,), "number of rows"),
        (lambda x: (x + torch.tensor(float(len(x))),), "a constant is another one"),
        (lambda x: (x + torch.randn(1),), "random"),
        (lambda x: (x * float(x.sum()),), "values of tensors"),
    ],
)
def test_other_functions_are_refused(fn: Any, reason: str) -> None:
    with pytest.raises(CaptureError, match=reason):
        record_any_rows(fn, torch.randn(2, 3))
