"""Exit codes and messages of the command line, all in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn import __version__, data
from pyro_bnn.cli import fits
from pyro_bnn.cli.saved_fit import SavedFit
from pyro_bnn.cli.side_by_side import ENDED
from pyro_bnn.errors import BNNError, DivergenceError, OutputError
from pyro_bnn.infer.checkpoints.checkpoint import NAME
from pyro_bnn.report import compare
from tests.command_line import run
from tests.rows import houses

pytestmark = pytest.mark.usefixtures("uncaptured")

DIABETES = ("compare", "--data", "diabetes", "--methods")
GUIDE = (*DIABETES, "auto-normal")
OF_A_LINE = ("compare", "--data", "linear.csv", "--model", "linear-regression", "--methods", "cavi")
MOONS = ("compare", "--data", "moons", "--methods", "auto-normal,auto-delta")
FIT = ("fit", "--data", "houses.csv", "--method", "auto-normal")
IMAGES = ("fit", "--data", "images.csv", "--model", "le-net", "--method", "auto-delta")
PREDICT = ("predict", "new.csv", "--posterior", "fit")
SBC = ("sbc", "--data", "linear.csv", "--method")
SAVED = ("--data", "moons", "--hidden", "2", "--steps", "30")
GOES_ON = "interrupted; with --checkpoint FOLDER a run can go on"
ON_SAVED = "holds a checkpoint already: add --resume to go on from it, or name another folder"


def no_fit(*args: Any, **options: Any) -> Any:
    pytest.fail("a fit ran")


def ends_with(error: BaseException) -> Callable[..., Any]:
    """What is done in place of fits."""

    def fit(*args: Any, **options: Any) -> Any:
        raise error

    return fit


class Case(NamedTuple):
    """A command, its exit code, the start or a part of what it says, and what fits by it.

    It is said on standard output for code 0, else in the one line on standard error.
    """

    args: tuple[str, ...]
    code: int
    message: str
    fit: Callable[..., Any] = no_fit


def refused(
    command: tuple[str, ...], *cases: tuple[tuple[str, ...], str], code: int = 2
) -> Iterator[Case]:
    """A command with options that are refused before anything is fitted or written.

    Args:
        command: It.
        cases: Options, and what is said of them.
        code: 2 of what was asked for, 1 of files that cannot be read or written.
    """
    for options, message in cases:
        yield Case((*command, *options), code, message)


CASES = [
    Case(("--version",), 0, f"pyro-bnn {__version__}\n"),
    Case((), 0, "Usage: pyro-bnn [OPTIONS] "),
    Case(("--help",), 0, "Usage: pyro-bnn [OPTIONS] "),
    Case(("fit", "--help"), 0, "Usage: pyro-bnn fit [OPTIONS]"),
    Case(("list",), 0, "Guides\n"),
    # what goes wrong on the way
    Case(GUIDE, 130, GOES_ON, ends_with(KeyboardInterrupt())),
    Case(GUIDE, 1, "a process ended by itself", ends_with(BNNError(ENDED))),
    Case((*DIABETES, "auto-normal,auto-low-rank:rank=-3"), 2, "rank is an integer of at least 0"),
    Case(  # one after the other: no process has a guide of its own to refuse
        (*DIABETES, "auto-normal,auto-low-rank:rank=-3", "--jobs", "1", "--hidden", "60,60"),
        2,
        "rank is an integer of at least 0",
    ),
    Case((*DIABETES, "auto-normal,auto-dropout:rate=2"), 2, "rate is "),
    Case((*DIABETES, "hmc", "--steps", "9"), 2, "--steps does nothing for HMC: leave it out"),
    Case(  # before what takes longer, whether the method can fit this model
        ("fit", "--data", "diabetes", "--method", "nuts", "--model", "rank1-mlp", "--width", "8"),
        2,
        "--width does nothing for Rank1MLP",
    ),
    Case(
        (*DIABETES, "auto-normal:num_steps=7", "--steps", "9"), 2, "--steps does nothing for Auto"
    ),
    Case((*SBC, "nuts:num_chains=4"), 2, "a sampler runs one chain on each data set: leave it out"),
    Case(FIT, 130, GOES_ON, ends_with(KeyboardInterrupt())),
    Case(
        GUIDE,
        1,
        "the loss is not finite; lower the step size",
        ends_with(DivergenceError("the loss is not finite;\n    lower the step size\n")),
    ),
    Case(FIT, 1, "cannot write x: No spa", ends_with(OutputError("cannot write x: No space left"))),
    Case(
        (*OF_A_LINE, "--likelihood", "student-t"),
        2,
        "no closed form with the StudentT likelihood, of another",
        fits.fit_all,
    ),
    Case(
        (*OF_A_LINE, "--prior", "laplace"),
        2,
        "no closed form under the Laplace prior of 'weight'",
        fits.fit_all,
    ),
    # words
    *refused(
        (),
        (("compare",), "Missing option '--data'; see 'pyro-bnn compare --help'"),
        (("compare", "--data", "diabetes"), "Missing option '--methods'; see 'pyro-bnn compare -"),
        (("compere",), "No such command 'compere'"),
        ((*GUIDE, "--out", ""), "--out is empty, as of a shell variable that is not set"),
        ((*GUIDE, "--checkpoint", ""), "--checkpoint is empty"),
        ((*SBC, "auto-normal", "--out="), "--out is empty"),
        (("trust", "--data", "", "--methods", "auto-delta"), "--data is empty"),
        (("predict", "", "--posterior", "fit"), "NEW.csv is empty, as of a shell variable"),
        (("report", ""), "FILE... is empty"),
        (("list", "guides"), "unexpected extra argument"),
        (("fit", "--data", "houses.csv"), "Missing option '--method'"),
        (("predict", "new.csv"), "Missing option '--posterior'"),
        (("predict", "--posterior", "fit"), "Missing argument 'NEW.csv'"),
        (("report",), "Missing argument 'FILE...'"),
    ),
    *refused(
        DIABETES,
        (("nuts", "--stpes", "3"), "No such option: --stpes"),
        (("auto-normal", "--steps", "0"), "Invalid value for '--steps': "),
        (("auto-normal", "--steps", "many"), "Invalid value for '--steps': "),
        (("auto-normal", "--seed", "-1"), "Invalid value for '--seed': "),
        (("auto-normal", "--batch-size", "0"), "Invalid value for '--batch-size': "),
        (("auto-normal", "--threads", "0"), "Invalid value for '--threads': "),
        (("nuts", "--chains", "0"), "Invalid value for '--chains': "),
        (("nuts", "--warmup", "-1"), "Invalid value for '--warmup': "),
        (("nuts", "--samples", "0"), "Invalid value for '--samples': "),
        (("nuts", "--task", "ranking"), "Invalid value for '--task': "),
        (("nuts", "--split", "20"), "split of diabetes must be a whole number 0 .. 19"),
        (("nuts", "--hidden", "5,a"), "hidden layers are positive integers such as 50"),
        (("auto-nromal",), "unknown method 'auto-nromal': did you mean 'auto-normal'?"),
        (("nuts,NUTS",), "NUTS is named twice"),
        (("nuts,",), "methods are names separated by commas"),
        (("nuts", "--reference", "nust"), "'nust': did you mean 'nuts'?"),
        (("nuts", "--reference", "auto-delta"), "AutoDelta is not among the methods"),
        (("nuts", "--steps", "9"), "--steps does nothing for NUTS: leave it out"),
        (("nuts", "--batch-size", "9"), "--batch-size does nothing for NUTS"),
        (("auto-delta", "--warmup", "9"), "--warmup does nothing for AutoDelta"),
        (("nuts@", "--seed", "1"), "a prior follows the @, as in nuts@half-cauchy-"),
        (("nuts@normul",), "unknown prior 'normul': did you mean 'normal'?"),
        (("nuts,nuts@normal",), "NUTS and NUTS @ Normal are the same fit"),
        (("nuts@cauchy", "--reference", "nuts"), "NUTS is not among the methods NUTS @"),
        (("nuts", "--model", "mpl"), "unknown model 'mpl': did you mean 'mlp'?"),
        (("nuts", "--model", "rank1-mlp"), "NUTS holds the weights of Rank1MLP fixed"),
        (("nuts", "--prior", "normul"), "unknown prior 'normul'"),
        (("nuts", "--activation", "rely"), "unknown activation 'rely'"),
        (("nuts", "--likelihood", "bernoulli"), "Bernoulli describes 2 classes, but the"),
        (("nuts", "--target", "age"), "diabetes has its own target"),
    ),
    *refused(
        DIABETES,
        (
            ("nuts", "--out", "houses.csv/report"),
            "cannot write to the folder 'houses.csv/report': Not a directory; "
            "choose another output folder\n",
        ),
        code=1,
    ),
    # data
    *refused(
        ("compare", "--methods", "auto-delta", "--data"),
        (("diabets",), "did you mean 'diabetes'?"),
        (("linear.csv", "--target", "d"), "unknown"),
    ),
    *refused(
        ("compare", "--methods", "auto-delta", "--data"),
        (("no.csv",), "no file or folder 'no.csv'"),
        (("one.csv",), "one.csv: 1 row is too few for 90 % training"),
        (("nan.csv",), "'b'"),
        (("short.csv",), "line 4"),
        (("well.csv",), "one class only, 'well'"),
        (("empty.csv",), "is empty"),
        code=1,
    ),
    # several runs
    *refused(
        MOONS,
        (("--split", "1", "--splits", "0-1"), "--split and --splits are both given: leave one of"),
        (("--seed", "0", "--seeds", "0,1"), "--seed and --seeds are both given: leave one of them"),
        (("--splits", "1-0"), "--splits takes whole numbers from 0 such as 0-4 or 0,3,7; '1-0'"),
        (("--seeds", "0,x"), "--seeds takes whole numbers from 0 such as 0-4 or 0,3,7, not '0,x'"),
        (("--splits", "0,20"), "split of moons must be a whole number 0 .. 19"),
        (("--jobs", "3"), "--jobs 3 does nothing beyond one for each method, and there are 2 me"),
        (("--seeds", "0-1", "--jobs", "3"), "one for each run, and there are 2 runs: leave it out"),
        (("--seeds", "0-99", "--jobs", "50", "--threads", "9"), "50 processes of 9 threads need"),
    ),
    # models
    *refused(
        OF_A_LINE,
        (("--hidden", "5"), "--hidden does nothing for LinearRegression: leave it out"),
        (("--activation", "relu"), "--activation does nothing for LinearRegression: leave it out"),
        (("--steps", "5"), "--steps does nothing for CAVI: leave it out"),
        (
            ("--depth", "8"),
            "--depth does nothing for LinearRegression: leave it out, or take the model "
            "rank1-res-net or res-net",
        ),
        (("--width", "8"), "--width does nothing for LinearRegression: leave it out, or take"),
        (("--estimator", "flipout"), "--estimator flipout does nothing for CAVI: it takes weigh"),
    ),
    *refused(
        IMAGES,
        (("--hidden", "5"), "--hidden does nothing for LeNet: leave it out, or take the model dee"),
        (("--width", "5"), "--width does nothing for LeNet: leave it out, or take the model ran"),
        (("--model", "res-net", "--activation", "tanh"), "--activation does nothing for ResNet: l"),
    ),
    # fit and predict
    *refused(
        FIT,
        (("--method", "nuts,auto-normal"), "one method is fitted, not"),
        (("--chains", "3"), "--chains does nothing for AutoNormal: leave it out"),
        (("--all-rows", "--split", "1"), "--split does nothing for --all-rows: leave it out"),
        (("--target", "prize"), "did you mean 'price'?"),
        (("--likelihood", "categorical"), "Categorical describes 2 classes, but the target h"),
    ),
    *refused(
        FIT,
        (("--out", "houses.csv/fit"), "cannot write to the folder 'houses.csv/fit'"),
        code=1,
    ),
    *refused(
        ("predict",),
        (("new.csv", "--posterior", "none"), "'none' is not a folder of 'pyro-bnn fit'"),
        (("no.csv", "--posterior", "fit"), "no file 'no.csv'; check the path"),
        (("odd.csv", "--posterior", "fit"), "first 'Paris' in line 3; known are 'Oslo'"),
        (("gap.csv", "--posterior", "fit"), "missing values: 'area' in 1 row of 1, fir"),
        code=1,
    ),
    *refused(
        ("predict",),
        (("houses.csv", "--posterior", "fit", "--out", "houses.csv"), "is the file that"),
    ),
    *refused(
        PREDICT,
        ((), "lacks column 'lift' of the fit; it has"),
        (("--out", "new.csv/out"), "cannot write to the folder 'new.csv': Not a directory;"),
        code=1,
    ),
    *refused(
        PREDICT,
        (("--level", "1"), "between 0 and 1, such as"),
        (("--samples", "1"), "Invalid value for '--sam"),
        (("--out", "fit"), "'fit' is a folder: choose a file as --out"),
        (("--out", "odd.csv"), "'odd.csv' exists and holds no predictions, so it is not replaced"),
    ),
    # other commands
    *refused(
        ("prior",),
        (("--prior", "cauchi"), "unknown prior 'cauchi': did you mean 'cauchy'?"),
        (("--prior", "pretrained"), "the prior Pretrained needs net, which its name does not set"),
        (("--prior", "flat"), "nothing can be drawn from the flat prior"),
        (("--prior", "normal,,cauchy"), "priors are names separated by commas, such as normal,cau"),
        (("--model", "rank1-mlp"), "which are point estimates: give them priors"),
        (("--target", "y"), "--target does nothing for a line without data: leave it out"),
        (("--draws", "399"), "Invalid value for '--draws'"),
        (("--out", "prior.txt"), "a picture ends in .png, .svg, .pdf, not 'prior.txt'"),
        (("--out", "-"), "a picture ends in .png, .svg, .pdf, not '-'"),
    ),
    *refused(
        SBC,
        (("auto-delta", "--ranks"), "--ranks does nothing for AutoDelta, which has no"),
        (("auto-delta", "--simulations", "5"), "--simulations 5 is too few"),
        (("auto-delta", "--draws", "100"), "take --draws 99"),
        (("auto-delta", "--warmup", "5"), "--warmup does nothing for AutoDelta"),
        (("auto-delta,nuts",), "one method is fitted, not AutoDelta, NUTS"),
        (("auto-delta", "--prior", "flat"), "nothing can be drawn from the flat prior"),
        (("auto-rank1-mixture",), "which are point estimates: give them priors"),
    ),
    *refused(
        ("report",),
        (("none.nc",), "there is no file"),
        (("houses.csv",), "is truncated or not NetCDF"),
        code=1,
    ),
    *refused(
        ("report",),
        (("=guide.nc",), "expected FILE or NAME=FILE"),
        (("guide.nc", "guide.nc"), "are both called 'AutoNormal': give them names"),
        (("guide.nc", "--reference", "nut"), "unknown reference 'nut'"),
    ),
    # checkpoints
    *refused(
        ("compare", *SAVED, "--methods", "auto-normal,auto-delta"),
        (("--resume",), "--resume needs --checkpoint FOLDER: where the run was saved\n"),
        # of the second method, at which the first fit would be done
        (("--checkpoint", "saved"), f"saved/auto-delta {ON_SAVED}"),
    ),
    *refused(
        ("compare", *SAVED, "--methods", "auto-normal,auto-delta"),
        (("--checkpoint", "houses.csv"), "cannot write to the folder"),
        code=1,
    ),
    *refused(
        ("fit", *SAVED, "--method", "auto-delta"),
        (("--resume",), "--resume needs --checkpoint FOLDER: where the run was saved\n"),
        (("--checkpoint", "saved/auto-delta"), f"saved/auto-delta {ON_SAVED}"),
    ),
    *refused(
        ("fit", *SAVED, "--method", "auto-delta"),
        (("--checkpoint", "broken", "--resume"), "its document is wrong"),
        code=1,
    ),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each kind, a fit and checkpoints."""
    folder = tmp_path_factory.mktemp("desk")
    generator = np.random.default_rng(0)
    texts = {
        "new": "area,town\n80,Rome\n",
        "odd": "area,town,lift\n80,Rome,1\n80,Paris,1\n",
        "gap": "area,town,lift\n,Rome,1\n",
        "one": "a,b\n1,2\n",
        "nan": "a,b\n1,2\n3,nan\n" * 9,
        "short": "a,b\n1,2\n3,x\n4\n",
        "well": "a,b\n1,well\n2,well\n3,well\n",
        "empty": "",
    }
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text, "utf-8")
    rows = houses(30)
    rows.to_csv(folder / "houses.csv", index=False)
    x = generator.normal(size=(40, 3))
    linear = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=x.sum(1))
    linear.to_csv(folder / "linear.csv", index=False)
    pixels = pd.DataFrame(generator.normal(size=(40, 16)))
    pixels.assign(kind=["top", "bottom"] * 20).to_csv(folder / "images.csv", index=False)
    tiny = ("--hidden", "2", "--steps", "2", "--quiet")
    threads = torch.get_num_threads()
    for options in (
        ("--data", folder / "houses.csv", "--method", "auto-normal", "--out", folder / "fit"),
        *(
            ("--data", "moons", "--method", "auto-delta", "--out", folder / "other", *saved)
            for saved in (
                ("--checkpoint", folder / "saved" / "auto-delta"),
                ("--checkpoint", folder / "broken"),
            )
        ),
    ):
        assert run("fit", *options, *tiny).code == 0
    torch.set_num_threads(threads)  # the commands own their process and set them for good
    split = data.load(folder / "houses.csv")
    posterior = SavedFit.load(folder / "fit").posterior
    compared = compare({"AutoNormal": posterior}, split, num_samples=9)
    compared.write_draws("AutoNormal", folder / "guide.nc")
    state = folder / "broken" / NAME
    state.write_bytes(state.read_bytes().replace(rb"\"seed\": 0", rb"\"seed\": 9"))
    return folder


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.args) or "none")
def test_exit_code_and_message(case: Case, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "fit_all", case.fit)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.chdir(desk)
    before = set(desk.rglob("*"))
    code, out, err = run(*case.args)
    assert code == case.code
    if code == 0:
        assert out.startswith(case.message)
        assert err == ""
        return
    assert err.startswith("pyro-bnn: ")
    assert err.count("\n") == 1
    assert case.message in err
    assert "Wrote" not in out
    assert set(desk.rglob("*")) == before  # no empty folder either
