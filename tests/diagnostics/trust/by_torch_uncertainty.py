"""TorchUncertainty's values on rows made by a formula, written beside this file.

In an environment that has it (it is no dependency of the tests):

    pip install torch-uncertainty
    python -m tests.diagnostics.trust.by_torch_uncertainty
"""

from __future__ import annotations

import importlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).with_suffix(".json")
NUM_DRAWS, NUM_ROWS, NUM_CLASSES = 7, 300, 4


def made_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of each draw ``[S, N, C]``, classes ``[N]``, and which rows are unknown."""
    s, n, c = np.ogrid[:NUM_DRAWS, :NUM_ROWS, :NUM_CLASSES]
    logits = 2.5 * np.sin(1.7 * n * (c + 1) + c) + 0.8 * np.cos(0.9 * n + 2.3 * s * (c + 1))
    weights = np.exp(logits)
    probs = weights / weights.sum(-1, keepdims=True)
    row = np.arange(NUM_ROWS)
    likely = probs.mean(0).argmax(-1)
    y = np.where(row % 3 == 0, (row * row + row // 3) % NUM_CLASSES, likely)
    return probs, y, row % 5 < 2


def main() -> None:
    """Compute and write."""
    import torch

    classification = importlib.import_module("torch_uncertainty.metrics.classification")
    functional = importlib.import_module("torchmetrics.functional.classification")
    draws, y, is_unknown = (torch.as_tensor(values) for values in made_rows())
    probs = draws.mean(0)
    by_row = draws.movedim(0, 1)  # [N, S, C]
    confidence = probs.max(-1).values

    def value(metric: Any, *rows: torch.Tensor) -> float:
        metric.set_dtype(torch.float64)
        metric.update(*rows)
        return float(metric.compute())

    found = {
        "nll": value(classification.CategoricalNLL(), probs, y),
        "brier": value(classification.BrierScore(NUM_CLASSES), probs, y),
        "aece": value(
            classification.AdaptiveCalibrationError(
                task="multiclass", num_classes=NUM_CLASSES, num_bins=15, norm="l1"
            ),
            probs,
            y,
        ),
        "aurc": value(classification.AURC(), probs, y),
        "augrc": value(classification.AUGRC(), probs, y),
        "entropy": value(classification.Entropy(), probs),
        "mutual_information": value(classification.MutualInformation(), by_row),
        "fpr95": value(classification.FPR95(pos_label=1), 1 - confidence, is_unknown.long()),
        "auroc": float(functional.binary_auroc(1 - confidence, is_unknown.long())),
    }
    versions = {name: metadata.version(name) for name in ("torch-uncertainty", "torchmetrics")}
    versions["torch"] = torch.__version__
    PATH.write_text(json.dumps({"versions": versions, "values": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
