"""Natural-gradient engines by name in the shell: fit and predict, compare and report, calibrate."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn import IVON, SLANG, VOGN, VON, Vadam, data, models
from pyro_bnn.cli.saved_fit import SavedFit
from pyro_bnn.report.evaluation.saved import read
from tests.command_line import run

STEPS = 30
ENGINES: dict[str, Any] = {"von": VON, "vogn": VOGN, "vadam": Vadam, "ivon": IVON, "slang": SLANG}
TINY = ("--hidden", "3", "--steps", str(STEPS), "--batch-size", "16", "--seed", "2")
EACH = pytest.mark.parametrize("method", ENGINES)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(50, 2))
    y = x[:, 0] + 0.1 * generator.normal(size=50)
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y}).to_csv(path, index=False)
    return path


@functools.cache
def by_library(method: str, rows: Path) -> Any:
    """The fit of the command line's options, without the command line."""
    engine = ENGINES[method](num_steps=STEPS, batch_size=16)
    train = data.load(str(rows)).train
    return engine.run(models.MLP(2, hidden=(3,)), train, seed=2, progress=False)


@pytest.mark.slow("a second or more")
@EACH
def test_a_fit_is_saved_and_predicts_as_that_of_the_library(
    method: str, rows: Path, tmp_path: Path
) -> None:
    code, said, err = run("fit", "--data", rows, "--method", method, "--out", tmp_path, *TINY)
    assert (code, err) == (0, "")
    name = ENGINES[method].__name__
    (line,) = [line for line in said.splitlines() if line.startswith(name)]
    assert line.endswith(f" s  ({name}, {STEPS} steps, 16 rows a step)")
    saved, expected = SavedFit.load(tmp_path).posterior, by_library(method, rows)
    assert (saved.method, saved.engine) == (name, name)
    assert saved.options == dataclasses.asdict(ENGINES[method](num_steps=STEPS, batch_size=16))
    torch.testing.assert_close(saved.unconstrained(20), expected.unconstrained(20))

    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("b,a\n0.5,1.0\n-1.0,0.0\n")
    code, _, err = run("predict", new, "--posterior", tmp_path, "--samples", "50", "--out", out)
    assert (code, err) == (0, "")
    x = torch.tensor([[1.0, 0.5], [0.0, -1.0]])
    mean = expected.predict(x, 50, raw=True).mean[:, 0]
    np.testing.assert_allclose(pd.read_csv(out)["predicted_mean"], mean, rtol=1e-5)


@pytest.mark.slow("fits of every engine")
@pytest.mark.usefixtures("no_pictures", "files_in_memory")
def test_all_are_compared_and_the_report_made_again_from_their_files(
    rows: Path, tmp_path: Path
) -> None:
    names = [engine.__name__ for engine in ENGINES.values()]
    first, again = tmp_path / "first", tmp_path / "again"
    methods = ("--methods", ",".join(ENGINES), "--reference", "von")
    code, said, err = run("compare", "--data", rows, *methods, *TINY, "--out", first)
    assert (code, err) == (0, "")
    files = [first / f"{method}.nc" for method in ENGINES]
    assert all(f"Wrote {file}\n" in said for file in files)
    for method, file in zip(ENGINES, files, strict=True):
        found, expected = read(file), by_library(method, rows)
        np.testing.assert_allclose(found.entry.checks.losses, expected.losses, rtol=1e-5)
    code, said, err = run("report", *files, "--reference", "VON", "--out", again)
    assert (code, err) == (0, "")
    tables = [pd.read_csv(folder / "table.csv", index_col="method") for folder in (first, again)]
    assert sorted(tables[0].index) == sorted(names)
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert tables[0]["distance"].notna().sum() == len(names) - 1
    page = (again / "index.html").read_text("utf-8")
    assert all(name in page for name in names)


@pytest.mark.soak  # tests/test_cli_sbc.py has VOGN
def test_slang_is_calibrated_by_the_density_of_its_own_guide(rows: Path, tmp_path: Path) -> None:
    small = ("--rows", "8", "--hidden", "2", "--steps", "1", "--simulations", "20", "--draws", "19")
    code, said, err = run("sbc", "--data", rows, "--method", "slang", "--out", tmp_path, *small)
    assert (code, err) == (0, "")
    assert "SLANG: 20 simulated data sets, probabilities of true values under q" in said
    values = pd.read_csv(tmp_path / "probabilities.csv", index_col="simulation").to_numpy()
    assert values.shape == (20, 6)  # f at 4 rows, the last bias, the noise scale
    assert ((values >= 0) & (values <= 1)).all()
    assert values.std(0).min() > 0.05  # each data set has a fit of its own


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("fit", "--method", "vognn"), "unknown method 'vognn': did you mean 'vogn'?"),
        (("fit", "--method", "vogn", "--warmup", "5"), "--warmup does nothing for VOGN"),
        (("fit", "--method", "vogn", "--prior", "laplace"), "take SVI or NUTS, which serve every"),
        (
            ("fit", "--method", "vogn", "--estimator", "flipout"),
            "--estimator flipout does nothing for VOGN",
        ),
    ],
    ids=["name", "idle", "prior", "estimator"],
)
def test_refusals_take_one_line(
    args: tuple[str, ...], message: str, rows: Path, tmp_path: Path
) -> None:
    code, _, err = run(args[0], "--data", rows, "--out", tmp_path / "out", *args[1:])
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
