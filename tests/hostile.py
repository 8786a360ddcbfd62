"""Real files of each kind, what may be done to them, and what reading them must not do."""

from __future__ import annotations

import io
import json
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from pyro.infer import autoguide

from pyro_bnn import NUTS, SVI, guides, models
from pyro_bnn.cli.methods import find_methods
from pyro_bnn.cli.networks import make_networks
from pyro_bnn.cli.options import NetworkOptions
from pyro_bnn.cli.saved_fit import FILES, SavedFit
from pyro_bnn.data import Split, from_arrays
from pyro_bnn.data.split import Column
from pyro_bnn.errors import BNNError
from pyro_bnn.files.tensors import pour, read_tensors
from pyro_bnn.infer.svi import stock
from pyro_bnn.posterior import Posterior
from pyro_bnn.report import compare, compare_files
from tests.rows import regression

SAMPLER = NUTS(num_chains=2, warmup_steps=5, num_samples=6, max_tree_depth=2, compile=False)


@dataclass(frozen=True)
class Target:
    """A file that is read.

    Args:
        name: What it is.
        content: The file as it was written.
        read: Reads it again from a path.
    """

    name: str
    content: bytes
    read: Callable[[Path], object]

    def is_refused(self, content: bytes, folder: Path) -> bool:
        """Whether contents are refused; anything but a ``BNNError`` is raised."""
        path = folder / f"input{Path(self.name).suffix}"
        path.write_bytes(content)
        try:
            self.read(path)
        except BNNError:
            return True
        return False


def network() -> models.MLP:
    return models.MLP(2, hidden=(3,))


def make_targets(folder: Path) -> list[Target]:
    """One file of each kind that the package reads, of fits of two steps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 2))
    split = from_arrays(x, x[:, 0], test_fraction=0.2)
    engines: dict[str, Any] = {
        "guide": SVI(guides.AutoLowRankMultivariateNormal, num_steps=2, compile=False),
        "stock": SVI(autoguide.AutoNormal, num_steps=2),
        "draws": SAMPLER,
    }
    posteriors = {}
    targets = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stock, "NUM_DRAWS", 20)
        for name, engine in engines.items():
            posteriors[name] = engine.run(network(), split.train, progress=False)
            posteriors[name].save(folder / name)
            content = (folder / name).read_bytes()
            targets.append(Target(f"{name}.pt", content, read_posterior))
    report = _report(posteriors["draws"], split, folder)
    return [*targets, *_fit(folder), *_checkpoint(split, folder), report]


def read_posterior(path: Path) -> None:
    """Load, and use as a user would."""
    posterior = Posterior.load(path, network())
    posterior.predict(torch.zeros(1, 2), 10).log_prob(torch.zeros(1))


def _fit(folder: Path) -> list[Target]:
    split, methods = regression(12), find_methods("auto-normal")
    (made,) = make_networks(methods, split, NetworkOptions(hidden="3")).values()
    posterior = SVI(guides.AutoNormal, num_steps=2, compile=False).run(
        made.build(), split.train, progress=False
    )
    SavedFit.of(posterior, made, (Column("a"), Column("b")), split).save(folder / "fit")

    def reader(own: str) -> Callable[[Path], None]:
        def read(path: Path) -> None:
            (folder / "fit" / own).write_bytes(path.read_bytes())
            try:
                saved = SavedFit.load(folder / "fit")
                saved.summary()
                saved.novelty.p_value(saved.novelty.distance(np.zeros((1, 2))))
            finally:
                (folder / "fit" / own).write_bytes(contents[own])

        return read

    contents = {name: (folder / "fit" / name).read_bytes() for name in FILES}
    return [Target(name, content, reader(name)) for name, content in contents.items()]


def _checkpoint(split: Split, folder: Path) -> list[Target]:
    """The file of a run that is complete."""
    engine, place = SVI(guides.AutoNormal, num_steps=2, compile=False), folder / "checkpoint"

    def run(*, resume: bool) -> None:
        engine.run(network(), split.train, progress=False, checkpoint=place, resume=resume)

    run(resume=False)
    contents = {path.name: path.read_bytes() for path in place.iterdir()}

    def read(path: Path) -> None:
        shutil.rmtree(place)
        place.mkdir()
        own = next(name for name in contents if name.endswith(path.suffix))
        for name, content in {**contents, own: path.read_bytes()}.items():
            (place / name).write_bytes(content)
        run(resume=True)

    return [Target(name, content, read) for name, content in contents.items()]


def _report(posterior: Posterior, split: Split, folder: Path) -> Target:
    comparison = compare({"NUTS": posterior}, split, num_samples=12)
    comparison.write_draws("NUTS", folder / "nuts.nc")

    def read(path: Path) -> None:
        _ = compare_files([path]).verdicts

    return Target("nuts.nc", (folder / "nuts.nc").read_bytes(), read)


# What may be done to contents


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Contents with bits flipped, bytes set, a part cut off, left out or written twice."""
    kind = rng.choice(("flip", "flip", "set", "cut", "leave out", "copy", "number", "record"))
    size = len(content)
    if kind == "cut":
        return content[: rng.randrange(size)]
    start, length = rng.randrange(size), rng.randrange(1, 200)
    if kind == "leave out":
        return content[:start] + content[start + length :]
    if kind == "copy":
        other = rng.randrange(size)
        return content[:start] + content[other : other + length] + content[start + length :]
    if kind == "record":
        return in_record(content, rng)
    changed = bytearray(content)
    if kind == "number":  # a huge or negative one where a size may stand
        pack = struct.pack(
            *rng.choice((("<I", 2**32 - 1), ("<q", 2**62), ("<q", -1), ("<I", 1 << 28)))
        )
        changed[start : start + len(pack)] = pack
        return bytes(changed)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        place = rng.randrange(size)
        new = changed[place] ^ 1 << rng.randrange(8)
        changed[place] = new if kind == "flip" else rng.choice((0, 127, 128, 255))
    return bytes(changed)


def in_record(content: bytes, rng: random.Random) -> bytes:
    """Contents of a file as its own format writes them, with one value in them changed."""
    if content[:4] == b"\x89HDF":
        return in_netcdf(content, rng)
    if content[8:9] != b"{":
        return in_text(content, rng)
    if rng.random() < 0.5:
        return with_document(content, lambda document: with_other(document, rng))
    length = int.from_bytes(content[:8], "little")
    header = with_other(json.loads(content[8 : 8 + length]), rng)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def with_document(content: bytes, change: Callable[[Any], Any]) -> bytes:
    """A file of tensors with another document, and the checksums of that."""
    with tempfile.NamedTemporaryFile() as file:
        path = Path(file.name)
        path.write_bytes(content)
        document = change(read_tensors(path))
    buffer = io.BytesIO()
    try:
        pour(document, buffer)
    except (TypeError, AttributeError):  # of no document
        return content[:8]
    return buffer.getvalue()


def in_netcdf(content: bytes, rng: random.Random) -> bytes:
    """A NetCDF file with an array left out, of other values or another shape, or another text."""
    buffer = io.BytesIO(content)
    with h5py.File(buffer, "r+") as file:
        kind = rng.choice(("options", "options", "leave out", "values", "shape", "group"))
        group = file[rng.choice((*file, *["evaluation"] * 8))]
        name = rng.choice(list(group))
        if kind == "options":
            attrs = file["evaluation"].attrs
            attrs["document"] = json.dumps(with_other(json.loads(attrs["document"]), rng))
        elif kind == "group":
            del file[group.name]
        elif kind == "leave out":
            del group[name]
        elif kind == "values" and group[name].dtype.kind in "iuf":
            values = group[name][...].reshape(-1)
            new = (np.nan, np.inf, -1, 1e30) if values.dtype.kind == "f" else (-1, 2**31, 2**62, 0)
            with np.errstate(over="ignore"):
                odd = np.array(new).astype(values.dtype)  # the low bits, where it holds fewer
            values[rng.randrange(len(values))] = rng.choice(odd)
            group[name][...] = values.reshape(group[name].shape)
        elif kind == "shape":
            shape = [size + rng.choice((-1, 0, 1)) for size in group[name].shape]
            del group[name]
            dtype = rng.choice(("f4", "f8", "i8", "S3", "c8"))
            group.create_dataset(name, [max(size, 0) for size in shape], dtype)
    return buffer.getvalue()


def in_text(content: bytes, rng: random.Random) -> bytes:
    """A JSON text with one of its values changed; other contents reversed in part."""
    try:
        document = json.loads(content)
    except ValueError:
        start = rng.randrange(len(content))
        return content[:start] + content[start : start + 64][::-1] + content[start + 64 :]
    if isinstance(document, dict):
        document.pop("crc32", None)  # which is the first to be read
    return json.dumps(with_other(document, rng)).encode()


OTHERS: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**9,
    2**63,
    1e308,
    float("nan"),
    "",
    "x" * 1_000,
    [],
    {},
    [[]],
)
TENSORS = (
    torch.zeros(0),
    torch.full((2, 3), float("nan")),
    torch.zeros((), dtype=torch.int64),
    torch.ones(2, 2, dtype=torch.bool),
    torch.zeros(1, 1, 1, 1),
)


def with_other(document: Any, rng: random.Random) -> Any:
    """A document with one of its values replaced by another, or left out."""
    if isinstance(document, dict) and document and rng.random() < 0.9:
        name = rng.choice(list(document))
        if rng.random() < 0.1:
            return {key: value for key, value in document.items() if key != name}
        return {**document, name: with_other(document[name], rng)}
    if isinstance(document, list) and document and rng.random() < 0.7:
        place = rng.randrange(len(document))
        return [*document[:place], with_other(document[place], rng), *document[place + 1 :]]
    if isinstance(document, torch.Tensor):
        return rng.choice((*TENSORS, document[:1] if document.ndim else document, document.half()))
    return rng.choice(OTHERS)
