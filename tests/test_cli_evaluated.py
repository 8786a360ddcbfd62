"""How many draws the posteriors of a command have in common is known before its fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyro_bnn.cli.evaluated import evaluate_now, expected_draws
from pyro_bnn.cli.main import _run
from pyro_bnn.cli.terminal import OPTIONS, too_large
from pyro_bnn.guides import AutoDelta, AutoNormal
from pyro_bnn.infer import MILE, NUTS, SGLD, SVI, Cyclical, Ensemble, Subspace
from pyro_bnn.models import MLP
from pyro_bnn.report.compare import common_draws
from tests.rows import regression

pytestmark = [
    pytest.mark.usefixtures("short_trajectories"),
    pytest.mark.filterwarnings("ignore::pyro_bnn.errors.BNNWarning"),
]

SHORT: Any = {"num_chains": 3, "warmup_steps": 4, "num_samples": 5}
ENGINES = [
    SVI(AutoNormal, num_steps=2),
    SVI(AutoDelta, num_steps=2),
    Ensemble(num_members=3, num_steps=2),
    NUTS(**SHORT),
    SGLD(**SHORT, thin=1),
    Cyclical(SGLD(**SHORT, thin=1)),
    Subspace(NUTS(**SHORT)),
    MILE(num_members=3, warmup_steps=4, num_samples=5),
]


@pytest.mark.slow("runs engines")
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
def test_the_draws_of_a_fit_are_known_before_it(engine: Any) -> None:
    x = torch.linspace(-1, 1, 40).reshape(20, 2)
    fit = engine.run(MLP(2, hidden=(2,)), (x, x[:, 0]), seed=0, progress=False)
    assert expected_draws([engine]) == common_draws([fit], 1_000)


class Unpredictable:
    """A posterior whose predictions take more memory than there is."""

    num_stored_draws = None

    def predict(self, *args: Any, **options: Any) -> Any:
        raise MemoryError


def test_a_line_says_at_once_that_a_fit_cannot_be_evaluated() -> None:
    said: list[str] = []
    engines, fit = {"NUTS": NUTS(**SHORT), "AutoDelta": SVI(AutoDelta)}, Unpredictable()
    own = evaluate_now(engines, "NUTS", fit, regression(), 0, said.append)  # type: ignore[arg-type]
    assert (own.num_draws, own.entry) == (15, None)
    assert said == [f"NUTS       {own.why}"]
    assert own.why.startswith("its fit cannot be evaluated: there is not enough memory: fewer rows")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--samples"], "fewer draws (--samples) take less"),
        (["--rows", "--seed", "--draws"], "fewer draws (--draws) or rows (--rows) take less"),
        ([], "end other programs, or take a machine with more"),
    ],
)
def test_advice_on_memory_names_the_options_of_the_command(options: list[str], words: str) -> None:
    before = OPTIONS.set(options)
    try:
        assert too_large() == f"there is not enough memory: {words}"
    finally:
        OPTIONS.reset(before)


def test_a_command_leaves_the_options_of_the_next_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = OPTIONS.get()
    assert _run(["list", "--json"]) == 0
    assert capsys.readouterr().out
    assert OPTIONS.get() is before


def test_draws_in_common_are_as_many_of_each_chain_and_member() -> None:
    """Of 4 chains and 3 members: the largest multiple of 12 up to 4 * 20."""
    nuts = NUTS(num_chains=4, num_samples=20)
    assert expected_draws([SVI(AutoNormal), nuts, Ensemble(num_members=3)]) == 72
