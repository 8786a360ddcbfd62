"""Smooth calibration errors by its authors' library, written beside this file.

In an environment that has it (it is no dependency of the tests):

    pip install relplot
    python -m tests.diagnostics.trust.by_relplot
"""

from __future__ import annotations

import importlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.diagnostics.trust.by_torch_uncertainty import made_rows

PATH = Path(__file__).with_suffix(".json")
WIDTHS = (0.02, 0.05, 0.1)  # theirs is cut half of [0, 1] from its middle
POINTS = 20_001  # of their grid


def main() -> None:
    """Compute and write."""
    metrics = importlib.import_module("relplot.metrics")
    config: Any = importlib.import_module("relplot.config")
    config.smECE_mesh_pts = POINTS
    draws, y, _ = made_rows()
    probs = draws.mean(0)
    rows = probs.max(1), (probs.argmax(1) == y).astype(float)
    found = {
        "versions": {"relplot": metadata.version("relplot")},
        "of_width": [float(metrics.smECE_sigma(*rows, width)) for width in WIDTHS],
        "smooth_ece": float(metrics.smECE(*rows)),
    }
    PATH.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
