"""The smooth calibration error of its authors' library, kept in a file by `by_relplot`."""

import json

from numpy.testing import assert_allclose

from pyro_bnn.diagnostics import smooth_ece
from pyro_bnn.diagnostics.trust.calibration_error import _error_of_width
from tests.diagnostics.trust.by_relplot import PATH, WIDTHS
from tests.diagnostics.trust.by_torch_uncertainty import made_rows


def test_smooth_errors_are_those_of_relplot() -> None:
    draws, y, _ = made_rows()
    probs, found = draws.mean(0), json.loads(PATH.read_text())
    confidence = probs.max(1)
    error = _error_of_width(confidence, (probs.argmax(1) == y) - confidence)
    # their grid is of 20,001 points, whose ends count as much as others
    assert_allclose([error(width) for width in WIDTHS], found["of_width"], rtol=1e-4)
    # theirs halves the range of widths ten times
    assert_allclose(smooth_ece(probs, y), found["smooth_ece"], rtol=0, atol=1 / 1024)
