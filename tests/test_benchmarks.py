"""The benchmarks still fit the library: each side makes its step."""

from __future__ import annotations

import pyro
import pytest

from benchmarks import svi


@pytest.mark.parametrize("side", [svi.ours, svi.stock_pyro, svi.deterministic])
def test_each_side_makes_a_block_of_steps(side: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svi, "STEPS", 2)
    assert callable(side)
    with pyro.get_param_store().scope():
        made = side(*svi.data(16, 3), (4,))
        block = made[0] if isinstance(made, tuple) else made
        assert block() is None
