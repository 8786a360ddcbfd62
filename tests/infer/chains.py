"""What the tests of runs of NUTS and HMC share, beside the fixtures of ``conftest``."""

from __future__ import annotations

import pytest
from torch import Tensor

from pyro_bnn.posterior import DrawsPosterior

quick = pytest.mark.usefixtures("uncaptured")  # where a capture takes longer than the run


def of_package(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines that the package logged."""
    return [record.message for record in caplog.records if record.name == "pyro_bnn"]


def all_draws(run: DrawsPosterior) -> Tensor:
    """Draws ``[C, S, P]``."""
    z: Tensor = run.unconstrained(run.num_stored_draws or 0, group_by_chain=True)
    return z
