"""``docs/howto/serving.md``: its service and its ONNX answer as ``predict`` does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import serving
from pyro_bnn import SVI, guides, models
from pyro_bnn.data import load

PAGE = (Path(__file__).parent.parent / "docs" / "howto" / "serving.md").read_text("utf-8")
SERVICE, ONNX = re.findall(r"```py\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def fit() -> tuple[Any, torch.Tensor]:
    split = load("diabetes", split=0)
    engine = SVI(guides.AutoNormal, num_steps=20, compile=False)
    posterior = engine.run(models.MLP(10), split.train, progress=False)
    assert split.train.inputs is not None
    return posterior, split.train.inputs.inverse(split.test.x)


def test_the_service_answers_as_predict_does(
    fit: tuple[Any, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    assert len([line for line in SERVICE.splitlines() if line.strip()]) <= 10
    posterior, rows = fit
    monkeypatch.chdir(tmp_path)
    posterior.export("diabetes.pt2", rows)
    service: dict[str, Any] = {"__name__": "service"}
    exec(compile(SERVICE, "service.py", "exec"), service)
    (route,) = [route for route in service["app"].routes if route.path == "/predict"]
    assert route.methods == {"POST"}
    answer = json.loads(json.dumps(route.endpoint(rows[:3].tolist())))
    of = posterior.predict(rows[:3], 100, raw=True)
    torch.testing.assert_close(torch.tensor(answer["mean"]), of.mean.float())
    torch.testing.assert_close(torch.tensor(answer["high"]), of.quantile(0.975).float())


def test_the_onnx_of_the_page_prints_the_same(
    fit: tuple[Any, torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    posterior, rows = fit
    monkeypatch.chdir(tmp_path)
    exec(compile(ONNX, "page", "exec"), {"posterior": posterior, "rows": rows})
    mean = re.search(r"'mean': array\(\[\[([-\d.e]+)\]\]", capsys.readouterr().out)
    assert mean is not None
    assert float(mean[1]) == pytest.approx(posterior.predict(rows[:1], 100, raw=True).mean.item())


def test_the_benchmark_prints_a_ratio_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    rows = serving.main(["--quick"])
    printed = capsys.readouterr().out
    assert {name for _, name, _, _ in rows} >= {
        "posterior.predict", "torch.export", "BNNRegressor.predict",
    }  # fmt: skip
    assert all(ms > 0 and name in printed for _, name, ms, _ in rows)
