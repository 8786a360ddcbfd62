"""Options after the name of a method: their types, what an engine makes of them, a whole report."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import typer

from pyro_bnn import infer
from pyro_bnn.cli import main
from pyro_bnn.cli.fits import expected_seconds, in_batches
from pyro_bnn.cli.method_options import read_options, written_options
from pyro_bnn.cli.methods import find_methods, find_reference, make_engines
from pyro_bnn.cli.options import FitOptions
from pyro_bnn.data import Dataset
from pyro_bnn.errors import OptionError, UnknownNameError
from pyro_bnn.guides import AutoLowRankMultivariateNormal, AutoNormal
from pyro_bnn.models import Rank1MLP
from pyro_bnn.registry import known_methods
from tests.command_line import run

NUMBERS = {"num_steps": 30, "batch_size": None, "num_chains": 2}


@pytest.mark.parametrize("name", known_methods())
def test_what_is_written_of_a_default_is_the_default(name: str) -> None:
    """Of every option of every method: so its type is known, and none takes an object."""
    cls = known_methods()[name]
    owners = [cls, infer.SVI] if not hasattr(cls, "run") else [cls]
    defaults = {
        n: p.default for owner in owners for n, p in inspect.signature(owner).parameters.items()
    }
    written = written_options(cls)
    assert not written.keys() & {
        "guide",
        "engine",
        "around",
        "optimizer",
        "init_loc_fn",
        "create_plates",
    }
    values = {n: v for n, v in defaults.items() if isinstance(v, int | float | str)}
    assert values.keys() - written.keys() <= {"default"}  # a class of AutoComposite
    for option in written:
        written_default = str(defaults[option]).lower()
        assert read_options(cls, f"{option}={written_default}") == {option: defaults[option]}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("target_accept=1", {"target_accept": 1.0}),
        ("max-tree-depth = 8 : compile=false", {"max_tree_depth": 8, "compile": False}),
        ("compile=auto", {"compile": "auto"}),
        ("mass_matrix=low-rank", {"mass_matrix": "low_rank"}),
    ],
)
def test_values_have_the_types_of_their_options(text: str, options: dict[str, Any]) -> None:
    found = read_options(infer.NUTS, text)
    assert found == options
    assert [type(v) for v in found.values()] == [type(v) for v in options.values()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nuts:", "options of a method are NAME=VALUE, such as rank=5, not ''"),
        ("nuts:compile", "NAME=VALUE, such as rank=5, not 'compile'"),
        ("nuts:target_acc=1", "unknown option of NUTS 'target_acc': did you mean 'target_accept'"),
        ("nuts:rate=1", "unknown option of NUTS 'rate': .*known are .*num_chains, num_samples"),
        ("nuts:num_samples=9,num_chains=2", "one another after a colon, as in .* 'num_chains=2'"),
        ("nuts:target_accept={[]}", "target_accept is a number, not '{\\[\\]}'"),
        (f"auto-low-rank:rank={'9' * 400}.0", "rank is a whole number or none, not"),
        ("nuts:target_accept=high", "target_accept is a number, not 'high'"),
        ("nuts:compile=1", "compile is auto or true or false, not '1'"),
        ("auto-low-rank:rank=2.5", "rank is a whole number or none, not '2.5'"),
        ("auto-normal:optimizer=adam", "unknown option of AutoNormal 'optimizer'"),
        ("nuts:compile=true:compile=false", "the option compile of NUTS is written twice"),
        ("laplace:structure=krn", "structure is full or kron or diagonal or low_rank, not 'krn'"),
        ("nuts:num_samples=9,nuts:num-samples=9", "NUTS:num_samples=9 is named twice"),
    ],
)
def test_what_an_option_is_not_is_said(text: str, message: str) -> None:
    with pytest.raises((OptionError, UnknownNameError), match=message):
        find_methods(text)


def test_options_go_to_the_guide_and_to_its_engine_before_those_of_the_command() -> None:
    methods = find_methods(
        "auto-low-rank:rank=5:learning_rate=0.02@cauchy, auto-normal:num_steps=7,nuts:num_samples=9"
    )
    low_rank, normal, nuts = methods
    assert low_rank == "AutoLowRankMultivariateNormal:rank=5:learning_rate=0.02 @ Cauchy"
    assert list(find_methods(",".join(methods))) == list(methods)  # a name is what may be typed
    for asked in ("nuts:num-samples=9", None):
        assert find_reference(asked, methods) == nuts == "NUTS:num_samples=9"
    asked = "auto-low-rank:learning_rate=0.02:rank=5@cauchy"
    assert find_reference(asked, methods) == low_rank
    two = find_methods("nuts:num_samples=9,nuts:num_samples=8")
    assert find_reference(None, two) is None
    engines = make_engines(methods, NUMBERS)
    guide = engines[low_rank].guide
    assert isinstance(guide, functools.partial)
    assert (guide.func, guide.keywords) == (AutoLowRankMultivariateNormal, {"rank": 5})
    assert dataclasses.replace(engines[low_rank], guide=AutoNormal) == infer.SVI(
        AutoNormal, num_steps=30, learning_rate=0.02
    )
    assert engines[normal] == infer.SVI(AutoNormal, num_steps=7)
    assert engines[nuts] == infer.NUTS(num_chains=2, num_samples=9)


@pytest.mark.parametrize("name", known_methods())
def test_who_sets_no_option_gets_the_methods_own_numbers(name: str) -> None:
    """Such as the 5,000 warm-up steps of samplers by minibatches, where NUTS has 300."""
    context = typer.Context(typer.main.get_command(main.app))
    (engine,) = FitOptions().engines(context, find_methods(name)).values()
    cls = known_methods()[name]
    own = infer.SVI(cls) if not hasattr(cls, "run") else None
    own = own or (cls(engine=infer.BAOAB()) if name == "cyclical" else cls())
    assert engine == own


@pytest.mark.parametrize(
    ("method", "size"),
    [
        ("auto-normal", 256),
        ("sgld", 256),
        ("cyclical", 256),
        ("vogn", 256),
        ("auto-normal:batch_size=9", 9),
        ("ensemble:kind=rto", None),  # which needs all rows
        ("auto-rank1-mixture:objective=log_mixture", None),
        ("swag", None),  # which takes 32 of any data
    ],
)
def test_a_step_takes_a_batch_of_many_rows_unless_it_is_told_otherwise(
    method: str, size: int | None
) -> None:
    engines = make_engines(find_methods(method), {})
    (own,) = engines.values()
    models = dict.fromkeys(engines, Rank1MLP(3, hidden=(2,)))
    for num_rows, expected in ((500, own.batch_size), (501, size)):
        rows = Dataset(torch.zeros(num_rows, 1, 20, 50), torch.zeros(num_rows))
        (engine,) = in_batches(engines, models, rows).values()
        assert engine.batch_size == expected


@pytest.mark.parametrize("method", ["hmc", "mams", "mclmc", "mile"])
def test_steps_of_fits_are_not_those_of_trajectories(method: str) -> None:
    (engine,) = make_engines(find_methods(method), NUMBERS).values()
    assert engine.num_steps is None  # the engine finds it
    (engine,) = make_engines(find_methods(f"{method}:num_steps=20"), NUMBERS).values()
    assert engine.num_steps == 20
    (engine,) = make_engines(find_methods(f"{method}:num_steps=none"), NUMBERS).values()
    assert expected_seconds(engine) > 0


@pytest.mark.slow("a comparison and a fit")
@pytest.mark.usefixtures("no_pictures", "uncaptured", "files_in_memory")
def test_one_guide_with_two_options_is_compared_with_itself(tmp_path: Path) -> None:
    small = ("--data", "diabetes", "--max-rows", "40", "--hidden", "3", "--steps", "20")
    methods = "auto-low-rank:rank=1,auto-low-rank:rank=3,laplace:structure=diagonal"
    found = run("compare", *small, "--methods", methods, "--out", tmp_path / "report")
    assert (found.code, found.err) == (0, "")
    names = [f"AutoLowRankMultivariateNormal:rank={rank}" for rank in (1, 3)]
    table = pd.read_csv(tmp_path / "report" / "table.csv", index_col=0)
    assert {*table.index} == {*names, "Laplace:structure=diagonal"}
    weights = 3 * 11 + 3 + 1 + 1  # and the noise
    assert [table.loc[name, "parameters"] for name in names] == [3 * weights, 5 * weights]
    files = sorted((tmp_path / "report").glob("auto-low-rank*.nc"))
    given = [f"{name}={file}" for name, file in zip(names, files, strict=True)]
    again = run("report", *given, "--out", tmp_path / "again")
    assert (again.code, again.err) == (0, "")
    assert set(pd.read_csv(tmp_path / "again" / "table.csv", index_col=0).index) == {*names}


@pytest.mark.slow("a fit")
def test_a_fit_with_options_is_saved_and_predicts(tmp_path: Path) -> None:
    rows = pd.DataFrame({"a": range(30), "b": [n % 7 for n in range(30)]})
    rows.assign(y=rows.a + rows.b).to_csv(tmp_path / "rows.csv", index=False)
    rows.to_csv(tmp_path / "new.csv", index=False)
    small = ("--hidden", "3", "--steps", "20", "--method", "auto-low-rank:rank=1")
    found = run("fit", "--data", tmp_path / "rows.csv", *small, "--out", tmp_path / "fit")
    assert (found.code, found.err) == (0, "")
    assert "AutoLowRankMultivariateNormal:rank=1" in found.out
    saved = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert "auto-low-rank:rank=1" in saved["command"]
    out = tmp_path / "predictions.csv"
    made = run("predict", tmp_path / "new.csv", "--posterior", tmp_path / "fit", "--out", out)
    assert (made.code, made.err) == (0, "")
    assert len(pd.read_csv(out)) == 30
