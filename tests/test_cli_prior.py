"""``pyro-bnn prior``: the picture of what priors believe, from the shell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.test_cli_sbc import run

PNG = b"\x89PNG"


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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--prior", "cauchi"), "unknown prior 'cauchi': did you mean 'cauchy'?"),
        (("--prior", "pretrained"), "the prior Pretrained needs net, which the command line does"),
        (("--prior", "flat"), "nothing can be drawn from the flat prior"),
        (("--prior", "normal,,cauchy"), "priors are names separated by commas, such as normal,cau"),
        (("--model", "rank1-mlp"), "which are point estimates: give them priors"),
        (("--target", "y"), "--target does nothing for a line without data: leave it out"),
        (("--draws", "399"), "Invalid value for '--draws'"),
        (("--out", "prior.txt"), "a picture ends in .png, .svg, .pdf, not 'prior.txt'"),
    ],
)
def test_refusals_take_one_line(args: tuple[str, ...], message: str, tmp_path: Path) -> None:
    code, _, err = run("prior", "--out", tmp_path / "prior.png", *args)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
