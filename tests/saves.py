"""What the checkpoint of a run says, and one that says something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyro_bnn.files.tensors import write_tensors
from pyro_bnn.infer.checkpoints.checkpoint import NAME, read_checkpoint


def document_of(folder: Path) -> dict[str, Any]:
    """The document of a checkpoint that is there."""
    document = read_checkpoint(folder)
    assert document is not None
    return document


def end_state(folder: Path) -> Any:
    """The state of a run that is complete."""
    document = document_of(folder)
    assert document["is_complete"]
    return document["state"]


def write_document(document: dict[str, Any], folder: Path) -> None:
    """Write a document as the checkpoint of a folder."""
    write_tensors(document, folder / NAME)
