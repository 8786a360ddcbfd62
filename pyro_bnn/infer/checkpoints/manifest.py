"""The manifest of a checkpoint, read without trust."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyro_bnn.errors import FileFormatError
from pyro_bnn.infer.checkpoints.state_files import Written, check_json, read_json

NAME = "manifest.json"
FORMAT, VERSION = "pyro_bnn checkpoint", 2
_STATE = re.compile(r"pyro-bnn-state-([0-9]{1,12})\.safetensors", re.ASCII)
_OURS = re.compile(  # names that no user's file has
    rf"{_STATE.pattern}|\.({_STATE.pattern}|{re.escape(NAME)})\.[0-9a-f]{{8}}\.tmp", re.ASCII
)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "engine": str,
    "options": dict,
    "seed": int,
    "sites": list,
    "dtype": str,
    "fingerprint": list,
    "num_data": int,
    "data": str,
    "num_chains": int,
    "compile_path": str,
    "own_order": bool,
    "surroundings": dict,
    "place": str,
    "is_complete": bool,
    "wall_time": (int, float),
    "state": dict,
}


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest, checked up to the state that it names; None if there is none.

    Raises:
        FileFormatError: If it is damaged, foreign or newer.
    """
    path = folder / NAME
    manifest = read_json(path)
    if manifest is None:
        return None
    if manifest.get("format") != FORMAT:
        raise FileFormatError(f"{path} is no manifest of a checkpoint of this package")
    if manifest.get("version") != VERSION:
        raise FileFormatError(
            f"{path} has format version {manifest.get('version')!r}, this package reads {VERSION}: "
            "resume the run with the version that wrote it"
        )
    check_json(manifest, path)
    wrong = [name for name, kind in _TYPES.items() if not isinstance(manifest.get(name), kind)]
    saved = {} if "state" in wrong else manifest["state"]
    kinds = {"name": str, "size": int, "sha256": str}
    wrong += [name for name, kind in kinds.items() if not isinstance(saved.get(name), kind)]
    if wrong:
        raise FileFormatError(f"{path} is damaged: it lacks {', '.join(wrong)}")
    if not _STATE.fullmatch(saved["name"]):
        raise FileFormatError(
            f"{path} names the state {saved['name']!r}, which is no file of a checkpoint"
        )
    return manifest


def state_of(manifest: dict[str, Any]) -> tuple[str, Written]:
    """Name, size and checksum of the state that a manifest names."""
    saved = manifest["state"]
    return saved["name"], Written(saved["size"], saved["sha256"])


def state_name(number: int) -> str:
    """Name of a state."""
    return f"pyro-bnn-state-{number}.safetensors"


def number_of(manifest: dict[str, Any] | None) -> int:
    """Number of the state that a manifest names, 0 without a manifest."""
    found = None if manifest is None else _STATE.fullmatch(manifest["state"]["name"])
    return 0 if found is None else int(found.group(1))


def remove_all_but(name: str, folder: Path) -> None:
    """Remove older states, and what a run that was killed left half-written."""
    for path in list(folder.iterdir()):
        if _OURS.fullmatch(path.name) and path.name != name:
            path.unlink(missing_ok=True)
