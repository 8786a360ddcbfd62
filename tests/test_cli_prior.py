"""``pyro-bnn prior``: the picture of what priors believe, from the shell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.test_cli_sbc import run

PNG = b"\x89PNG"


@pytest.mark.slow("a second or more")
def test_priors_without_data(tmp_path: Path) -> None:
    out = tmp_path / "prior.png"
    small = ("--hidden", "3", "--draws", "400")
    code, said, err = run("prior", "--prior", "laplace,half-cauchy-scale", "--out", out, *small)
    assert (code, err) == (0, "")
    lines = said.splitlines()
    assert lines[0] == "Noise: likelihood Normal, chosen from the task; --likelihood takes another"
    assert lines[1].startswith("Model: MLP 1-3-1 relu, Laplace(0, 0.707) and Laplace(0, 0.408) pr")
    assert lines[2].endswith("HalfCauchyScale prior, Normal likelihood (HalfCauchyScale)")
    assert lines[4].startswith("Laplace: f in the middle is within [")
    assert lines[5].startswith("HalfCauchyScale: f in the middle is within [")
    assert lines[-1] == f"Wrote {out}"
    assert out.read_bytes().startswith(PNG)


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("along", ["principal", "features"])
def test_a_prior_at_inputs_of_data(along: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": np.where(x[:, 0] > 0, "p", "q")})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "new" / "prior.png"
    code, said, err = run(
        *("prior", "--data", tmp_path / "rows.csv", "--out", out, "--hidden", "3"),
        *("--draws", "400", "--along", along),
    )
    assert (code, err) == (0, "")
    assert said.startswith("Data:  rows, split 0: 27 training and 3 held-out rows, 2 inputs\n")
    assert "Model: MLP 2-3-1 relu, Normal(fan_in) prior, Bernoulli likelihood\n" in said
    assert out.read_bytes().startswith(PNG)
