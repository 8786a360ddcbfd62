"""Nothing that a file says can hurt: it is refused before memory or time is spent on what it says.

Each case matches the reason of its refusal, so that a bomb is not refused because it went off.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import time
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from pyro_bnn import arviz_io, guides, memory, models, registry
from pyro_bnn.arviz_io import netcdf
from pyro_bnn.cli.saved_fit import FILES, FIT_FILE, SavedFit
from pyro_bnn.errors import FileFormatError, OutputError, SiteError
from pyro_bnn.files.tensors import DTYPES, read_json, read_tensors, write_tensors
from pyro_bnn.guides import Guide
from pyro_bnn.posterior import GuidePosterior, Posterior, Provenance
from pyro_bnn.program import Program
from pyro_bnn.report.saved.compare_files import read_all
from tests.hostile import Target, damaged, in_netcdf, make_targets, network
from tests.kills import assert_same
from tests.laws import rank1_network

Change = Callable[[dict[str, Any]], object]
GUIDES: dict[str, type[Guide]] = registry.entries("guide")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def targets(folder: Path) -> dict[str, Target]:
    return {target.name: target for target in make_targets(folder)}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Numbers of a damaged file may make NumPy and torch warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i4", "i8", "f4", "f8"])
def test_numbers_of_every_size_can_be_damaged(dtype: str) -> None:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        group = file.create_group("evaluation")
        group.attrs["document"] = json.dumps({"n": 1})
        group["values"] = np.ones(3, dtype)
    content = buffer.getvalue()
    with quiet():
        found = {in_netcdf(content, random.Random(seed)) for seed in range(200)}
    assert len(found) > 10


def load(path: Path) -> Posterior:
    return Posterior.load(path, network())


# --- any bytes -----------------------------------------------------------------------------------


@pytest.mark.slow("many files")
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    name=st.sampled_from(["guide.pt", "draws.pt", "training.safetensors", "fit.json", "nuts.nc"]),
    seed=st.integers(0),
)
def test_damaged_files_are_read_or_refused(
    name: str, seed: int, targets: dict[str, Target], folder: Path
) -> None:
    target = targets[name]
    with quiet():
        target.is_refused(damaged(target.content, random.Random(seed)), folder)


@pytest.mark.slow("a second or more")
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.binary(max_size=300), head=st.sampled_from([0, 4, 8, 600]))
def test_other_bytes_are_refused(
    content: bytes, head: int, targets: dict[str, Target], folder: Path
) -> None:
    for name in ("guide.pt", "fit.json", "nuts.nc"):
        target = targets[name]
        assert target.is_refused(target.content[:head] + content, folder)


def small_file(path: Path) -> dict[str, Any]:
    document = {
        "a": torch.arange(5.0),
        "b": {0: torch.ones((), dtype=torch.bool), "c": ("x", None, 1.5)},
    }
    write_tensors(document, path)
    return document


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut"
    small_file(path)
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(FileFormatError, match=r"is truncated, or is not|not fully covered"):
            read_tensors(path)


def test_no_bit_of_a_file_flips_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "flipped"
    assert_same(read_tensors(path) if small_file(path) else None, small_file(path))
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (1, 4, 32, 128):
            path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            with pytest.raises(FileFormatError):
                read_tensors(path)


def test_a_bit_at_the_end_of_a_large_tensor_does_not_flip_unnoticed(tmp_path: Path) -> None:
    path, numbers = tmp_path / "large.pt", torch.arange(1 << 19, dtype=torch.float64)  # 4 MiB
    write_tensors({"t": numbers}, path)
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="the checksum of t is not that of its numbers"):
        read_tensors(path)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refusal = r"is not a file|there is no file|is a folder"
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero"), tmp_path / "none"):
        for read in (load, read_json, arviz_io.load_netcdf):
            with pytest.raises(FileFormatError, match=refusal):
                read(path)
    os.mkfifo(tmp_path / FIT_FILE)
    with pytest.raises(FileFormatError, match=r"it has no fit\.json"):
        SavedFit.load(tmp_path)


# --- tensors -------------------------------------------------------------------------------------


def test_tensors_of_every_kind_come_back_in_every_bit(tmp_path: Path) -> None:
    path, base = tmp_path / "x", torch.randn(4, 6, requires_grad=True)
    tensors = {str(dtype): torch.tensor([[0, 1], [1, 1]]).to(dtype) for dtype in DTYPES.values()}
    document = {
        "dtypes": tensors,
        "odd": [torch.tensor([math.nan, -0.0, math.inf, 1e-45]), torch.randperm(9)[:0].view(0, 4)],
        "numbers": [torch.tensor(3, dtype=torch.int16), torch.tensor(0.1), torch.zeros(1, 0, 2)],
        "views": (base[1, ::2], base.T[:2], torch.ones(1).expand(5), torch.zeros(1).expand(1, 1)),
        "tied": [base, base, {"again": base}],
        "plain": [None, True, -(10**20), 0.1, math.inf, "größe \ud800", [], {}, (), ((1,), [2])],
        "keys": {1: "a", "1": torch.ones(1), "$tensor": 2, "a/b": base, "a": {"b": base}, "": 0},
        "$dict": [{"$tuple": [1]}],
    }
    write_tensors(document, path)
    read = read_tensors(path)
    assert_same(read, document)
    assert not read["tied"][0].requires_grad
    assert path.stat().st_size < 5_000


def test_others_read_the_tensors(tmp_path: Path) -> None:
    numbers = torch.randn(2, 3, dtype=torch.float64)
    write_tensors({"z": numbers, "guide": {"state": {"loc": numbers[0]}}}, tmp_path / "x")
    read = load_file(tmp_path / "x")
    assert read.keys() == {"z", "guide/state/loc"}
    assert torch.equal(read["z"], numbers)


def forged(header: dict[str, Any], data: bytes, length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def described(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def said(document: Any) -> dict[str, Any]:
    """Metadata whose checksum is right."""
    text = document if isinstance(document, str) else json.dumps(document)
    return {"__metadata__": {"document": text, "crc32": str(zlib.crc32(text.encode()))}}


T = {"t": {"$tensor": ["t", 0]}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (forged(said(T), b"", 1 << 62), "is truncated, or is not a file saved by this"),
        (forged(said(T), b"", 0), "is truncated, or is not a file saved by this"),
        (forged(said({"t": "x" * (1 << 24)}), b""), "is truncated, or is not a file saved by this"),
        (forged(said(T) | {"t": described(0, 1 << 50, [1 << 48])}, b""), "not fully covered"),
        (forged(said(T) | {"t": described(0, 4, [1 << 48])}, bytes(4)), "invalid shape"),
        (forged(said(T) | {"t": described(0, 4, [1 << 62, 1 << 62])}, bytes(4)), "verflow"),
        (forged(said(T) | {"t": described(4, 8, [1])}, bytes(8)), "invalid offset"),
        (
            forged(said(T) | {"t": described(0, 8, [2]), "u": described(4, 12, [2])}, bytes(12)),
            "invalid offset",
        ),
        (forged(said(T) | {"t": described(0, 4, [1])}, bytes(9)), "not fully covered"),
        (forged(said(T) | {"t": described(0, 8, [1], "C64")}, bytes(8)), "tensors: 'C64'"),
        (forged(said(T) | {"t": described(0, 4, [1], "cos")}, bytes(4)), "unknown variant"),
        (
            forged(
                said(T) | {"t": described(1, 5, [1]), "a": described(0, 1, [1], "U8")}, bytes(5)
            ),
            "must be divisible by",
        ),
        (forged({"t": described(0, 4, [1])}, bytes(4)), "is not a file saved by this package"),
        (forged(said(T) | {"t": described(0, 4, [1])}, bytes(4)), "checksum of t is not that"),
        (forged(said(T), b""), "tensors: 't'"),
        (forged(said({}) | {"t": described(0, 4, [1])}, bytes(4)), "nothing in it names t"),
        (
            forged(said([T, T]) | {"t": described(0, 4, [1])}, bytes(4)),
            "'list' object has no attribute",
        ),
        (forged(said({"t": {"$dict": [[[], 1]]}}), b""), "unhashable"),
        (forged(said({"t": {"$tensor": 3}}), b""), "not subscriptable"),
        (forged(said('{"t": ' + "[" * 100_000), b""), "recursion"),
        (forged(said('{"t": ' + "1" * 10_000), b""), "tensors: "),
        (
            forged({"__metadata__": said(T)["__metadata__"] | {"crc32": "1"}}, b""),
            "of its document",
        ),
        (b"\xff" * 400, "is truncated, or is not a file saved by this"),
    ],
)
def test_forged_headers(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "forged"
    path.write_bytes(content)
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(FileFormatError, match=reason):
        read_tensors(path)
    assert time.perf_counter() - start < 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24


def test_a_tensor_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    """Few bytes could name one large tensor many times, each of which would be a copy."""
    path = tmp_path / "x"
    header = said(
        {"a": [{"$tensor": ["t", zlib.crc32(bytes(4), zlib.crc32(b"torch.float32[1]"))]}]}
    )
    path.write_bytes(forged(header | {"t": described(0, 4, [1])}, bytes(4)))
    assert read_tensors(path)["a"] == [torch.zeros(1)]
    (one,) = json.loads(header["__metadata__"]["document"])["a"]
    path.write_bytes(forged(said({"a": [one, one]}) | {"t": described(0, 4, [1])}, bytes(4)))
    with pytest.raises(FileFormatError, match="cannot be read as tensors: 't'"):
        read_tensors(path)


def test_large_tensors_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a view, whose changes the file does not get; small files and other keys do not."""
    path, z = tmp_path / "x", torch.arange(1 << 16, dtype=torch.float64)
    write_tensors({"z": z, "x": z}, path)
    content = path.read_bytes()

    def copies() -> list[bool]:
        read = read_tensors(path, mapped=("z",))
        is_copy = [read[key].untyped_storage().nbytes() == z.nbytes for key in "zx"]
        assert_same(read, {"z": z, "x": z})
        read["z"].zero_()
        assert path.read_bytes() == content
        return is_copy

    assert copies() == [True, True]
    monkeypatch.setattr(memory, "STORED_DRAWS", 1 << 16)
    assert copies() == [False, True]
    path.chmod(0o400)
    assert copies() == [False, True]


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_text("before")
    cases: list[tuple[Any, str]] = [
        (Path("a"), "'x' is a PosixPath, neither plain"),
        ([{1.5: 0}], "'x/0' is a dict, neither plain"),
        (torch.ones(1, dtype=torch.complex64), "'x' is a Tensor, neither plain nor a plain tensor"),
        (torch.ones(2).to_sparse(), "'x' is a Tensor, neither plain nor a plain tensor"),
        ({"\ud800": torch.ones(1)}, "surrogates not allowed"),
        ("x" * (1 << 24), "the document has 16.00 MiB beside its tensors"),
    ]
    for value, reason in cases:
        with pytest.raises(OutputError, match=reason):
            write_tensors({"x": value}, path)
    assert path.read_text() == "before"
    assert [child.name for child in tmp_path.iterdir()] == ["x.pt"]


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, "{", '{"a": ' * 100_000])
def test_texts_that_no_reader_should_follow(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(FileFormatError, match="x cannot be read: "):
        read_json(tmp_path / "x")


def test_texts_without_end(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(FileFormatError, match=r"has 1024\.00 GiB, more than the 32\.00 MiB"):
        SavedFit.load(tmp_path)


# --- documents -----------------------------------------------------------------------------------


def of_header(**changes: Any) -> Change:
    return lambda document: document["header"].update(changes)


NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("guide.pt", of_header(num_data=-5), "num_data is -5"),
        ("guide.pt", of_header(num_data=True), "num_data is a bool, not a int"),
        ("guide.pt", of_header(seed="x"), "seed is a str"),
        ("guide.pt", of_header(options=[]), "options is a list"),
        ("guide.pt", of_header(phases={"a": []}), "a is a list"),
        ("guide.pt", of_header(more=1), "header has 'more', which is not known"),
        ("guide.pt", lambda d: d.update(more=1), "it has 'more', which is not known"),
        ("guide.pt", lambda d: d.update(x=torch.ones(10**6, 2)), "are not rows of 19"),
        ("guide.pt", lambda d: d.update(x=d["x"] * NAN), "x has values that are NaN"),
        ("guide.pt", lambda d: d.update(fingerprint=None), "fingerprint is a NoneType"),
        ("guide.pt", lambda d: d.update(losses=torch.ones(2)), r"losses is \[2\] of torch.float32"),
        ("guide.pt", lambda d: d.update(inputs={"loc": 1}), "is damaged: KeyError: 'scale'"),
        ("guide.pt", lambda d: d["guide"]["state"].pop("loc"), 'Missing key.*"loc"'),
        ("guide.pt", lambda d: d["guide"]["state"]["loc"].fill_(NAN), "loc has values that are N"),
        ("guide.pt", lambda d: d["guide"]["state"].pop("_extra_state"), "KeyError: '_extra_state'"),
        ("guide.pt", lambda d: d["guide"].update(options={"rank": 1}), "size mismatch"),
        ("guide.pt", lambda d: d["guide"].update(options={"rank": True}), "rank is an integer"),
        ("guide.pt", lambda d: d["guide"].update(options={"init_scale": "x"}), "init_scale"),
        ("guide.pt", lambda d: d["guide"].update(options={"model": 1}), "TypeError"),
        ("draws.pt", lambda d: d["z"].fill_(NAN), "z has values that are NaN or infinite"),
        (
            "draws.pt",
            lambda d: d.update(z=d["z"][0]),
            r"draws have shape \[6, 14\], not \[C, S, P\]",
        ),
        ("draws.pt", lambda d: d.update(z=d["z"][:, :0]), "not .C, S, P."),
        ("draws.pt", lambda d: d.update(z=d["z"][..., :3]), r"its draws have shape \[2, 6, 3\]"),
        ("draws.pt", lambda d: d.update(z=d["z"].long()), "z is of torch.int64"),
        ("draws.pt", lambda d: d.pop("z"), "KeyError: 'z'"),
        ("draws.pt", lambda d: d.update(log_q=torch.ones(3, 1)), r"log_q has shape \[3, 1\]"),
        ("draws.pt", lambda d: d.update(log_q=torch.ones(2, 5)), r"log_q has shape \[2, 5\], dr"),
        ("draws.pt", lambda d: d["sample_stats"].update(lp=torch.ones(5)), r"lp has shape \[5\]"),
        ("draws.pt", lambda d: d["sample_stats"].update(lp=[1.0]), "lp is a list, not a Tensor"),
    ],
)
def test_documents_of_wrong_values(
    name: str, change: Change, reason: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(targets[name].content)
    document = read_tensors(path)
    change(document)
    write_tensors(document, path)
    with pytest.raises(FileFormatError, match=f"(?s){reason}"):
        load(path)


def test_a_document_of_another_model_leaves_the_model_alone(
    targets: dict[str, Target], tmp_path: Path
) -> None:
    path, model = tmp_path / "draws.pt", network()
    path.write_bytes(targets["draws.pt"].content)
    write_tensors(read_tensors(path) | {"x": torch.ones(2, 7)}, path)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(SiteError, match="this model cannot be evaluated at the rows saved in"):
        Posterior.load(path, model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


# --- guides --------------------------------------------------------------------------------------


def guide_file(name: str, path: Path) -> Any:
    """The file of a guide that was set up and not trained, and its model."""
    cls = GUIDES[name]
    model = rank1_network() if cls.needs_model else network().double()
    width = 3 if cls.needs_model else 2
    x = torch.linspace(-1, 1, 4 * width, dtype=torch.float64).view(4, width)
    # of numbers that differ from those that None stands for
    options: Any = {"num_flows": 1, "hidden": 3} if name == "auto-flow" else {}
    program, guide = Program(model, x, x[:, 0]), cls(model, **options)
    guide.setup(x)
    GuidePosterior(program, guide, Provenance(cls.__name__, "SVI")).save(path)
    return rank1_network() if cls.needs_model else network().double()


@pytest.mark.parametrize("name", GUIDES)
def test_options_of_guides_take_no_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "fit.pt"
    model = guide_file(name, path)
    document = read_tensors(path)
    options = document["guide"]["options"]
    assert Posterior.load(path, model).method == GUIDES[name].__name__
    for option, value in options.items():
        others = () if isinstance(value, bool) else (-1, "x", None, [1])
        for other in (*others, *((10**9,) if type(value) is int else ())):
            document["guide"]["options"] = {**options, option: other}
            write_tensors(document, path)
            with pytest.raises(FileFormatError, match=r"is damaged: |ask for \d+ numbers"):
                Posterior.load(path, model)


def test_a_small_state_makes_no_large_matrix(tmp_path: Path) -> None:
    """AutoMultivariateNormal would take P^2 numbers, of a file that has 2 P of them."""
    path = tmp_path / "fit.pt"
    model = models.MLP(2, hidden=(10_000,))
    x = torch.ones(4, 2)
    program, guide = Program(model, x, x[:, 0]), guides.AutoNormal(model)
    guide.setup(x)
    GuidePosterior(program, guide, Provenance("AutoNormal", "SVI")).save(path)
    document = read_tensors(path)
    document["guide"] |= {"class": "AutoMultivariateNormal"}
    write_tensors(document, path)
    with pytest.raises(FileFormatError, match=r"its options ask for 16\d{8} numbers"):
        Posterior.load(path, models.MLP(2, hidden=(10_000,)))


# --- fits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda d: d["network"].update(hidden=[10**6, 10**6]),
            r"has \d+ weights, more than .*holds",
        ),
        (lambda d: d["network"].update(hidden=[1] * 10**5), r"has \d+ weights, more than .*holds"),
        (lambda d: d["network"].update(num_outputs=10**12), "another number of targets"),
        (lambda d: d["network"].update(num_classes=10**9), "another number of classes"),
        (lambda d: d["network"].update(seed=2**70), "seed is 1180591620717411303424"),
        (lambda d: d["network"].update(hidden=[-3]), "hidden is -3"),
        (lambda d: d["columns"][0].update(code="x"), "columns has 'code', which is not known"),
        (lambda d: d["network"].update(model="../x"), "unknown model"),
        (lambda d: d.update(task="x"), "task is 'x'"),
        (lambda d: d.update(class_names=[1]), "class_names is a int"),
        (lambda d: d.update(num_rows="9"), "num_rows is a str"),
        (lambda d: d["held_out"].pop("rmse"), r"KeyError\('rmse'\)"),
        (lambda d: d.update(version=99), "has format version 99, .* with the newer version"),
    ],
)
def test_fits_of_wrong_values(
    change: Change, reason: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    document = json.loads(targets["fit.json"].content)
    del document["crc32"]  # as in those of before
    change(document)
    (tmp_path / FIT_FILE).write_text(json.dumps(document))
    (tmp_path / "posterior.safetensors").write_bytes(targets["posterior.safetensors"].content)
    with pytest.raises(FileFormatError, match=reason):
        SavedFit.load(tmp_path)


def test_no_bit_of_a_fit_flips_unnoticed(targets: dict[str, Target], tmp_path: Path) -> None:
    """But one of the name of the checksum, or one that leaves all values as they are."""
    content = targets["fit.json"].content
    for name in FILES:
        (tmp_path / name).write_bytes(targets[name].content)
    document, path, num_same = json.loads(content), tmp_path / FIT_FILE, 0
    del document["crc32"]
    for place in range(0, len(content), 3):
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        path.write_bytes(flipped)
        with contextlib.suppress(FileFormatError):
            SavedFit.load(tmp_path)
            found = json.loads(flipped)
            assert {name: found[name] for name in document} == document
            num_same += 1
    assert num_same < 10


def test_a_fit_is_replaced_whole_or_not_at_all(
    targets: dict[str, Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(targets[name].content)
    fit = SavedFit.load(tmp_path)
    write = Path.write_text

    def full(self: Path, *args: Any, **kwargs: Any) -> int:
        if FIT_FILE in self.name:
            raise OSError(28, "No space left on device")
        return write(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OutputError, match="No space left on device"):
        fit.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == targets[name].content


# --- NetCDF --------------------------------------------------------------------------------------


def huge(file: Any) -> None:
    file["posterior"].create_dataset("huge", (10**6, 10**6), "f8", chunks=(1_000, 1_000))


def packed(file: Any) -> None:
    shape, chunks = (1 << 32,), (1 << 22,)  # none is written
    file["posterior"].create_dataset("packed", shape, "f8", chunks=chunks, compression="gzip")


def pieces(file: Any) -> None:
    file["posterior"].create_dataset("pieces", (10**7,), "i1", chunks=(1,))


def texts(file: Any) -> None:
    """All are as wide as the longest once they are read, of four bytes a character."""
    array = file["posterior"].create_dataset("texts", (1_000,), h5py.string_dtype())
    array[0] = "x" * (1 << 20)


def packed_texts(file: Any) -> None:
    """Each string would unpack 16 MiB, of a thousand as many GiB."""
    options: Any = {"maxshape": (None,), "chunks": (1 << 20,), "compression": "gzip"}
    file["posterior"].create_dataset("texts", (1_000,), h5py.string_dtype(), **options)[:] = "x"


def large_piece(file: Any) -> None:
    """HDF5 unpacks a piece as a whole, even for one number of it; the file is large enough."""
    file["posterior"]["filler"] = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    shape: Any = (300 << 20,)
    file["posterior"].create_dataset("piece", shape, "u1", chunks=shape, compression="gzip")[:1] = 1


def nested(file: Any) -> None:
    file.create_group("/".join("a" * 2_000))


def cyclic(file: Any) -> None:
    file["posterior/again"] = file["posterior"]


def outside(file: Any) -> None:
    external = [("/etc/passwd", 0, 8)]
    file["posterior"].create_dataset("outside", (1,), "f8", external=external)


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource("/etc/other.nc", "x", (4,))
    file["posterior"].create_virtual_dataset("virtual", layout)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (huge, "it declares more than [23][0-9]{2} MiB, in a file of"),
        (packed, "it declares more than [23][0-9]{2} MiB, in a file of"),
        (pieces, "it declares more than [23][0-9]{2} MiB, in a file of"),
        (texts, r"it declares more than \d+ MiB, in a file of"),
        (packed_texts, "'/posterior/texts' holds text in pieces"),
        (large_piece, "'/posterior/piece' is in pieces of more than 256 MiB"),
        (nested, "maximum recursion depth"),
        (cyclic, "is in it twice"),
        (outside, "is a link to another file"),
        (virtual, "is a link to another file"),
        (lambda f: f.update(x=h5py.ExternalLink("/etc/other.nc", "/")), "is a link to something"),
        (lambda f: f["posterior"].update(x=h5py.SoftLink("/posterior")), "is a link to something"),
        (lambda f: f["posterior"].create_dataset("x", (3,), "c8"), "holds complex64, neither"),
        (lambda f: f.update(x=np.dtype("f8")), "is neither a group nor an array"),
    ],
)
def test_netcdf_files_that_declare_more_than_they_hold(
    change: Callable[[Any], object],
    reason: str,
    targets: dict[str, Target],
    tmp_path: Path,
) -> None:
    path = tmp_path / "nuts.nc"
    path.write_bytes(targets["nuts.nc"].content)
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(FileFormatError, match=reason):
        arviz_io.load_netcdf(path)


def test_arrays_of_a_large_netcdf_file_fit_into_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1 MiB, it could hold 1032 MiB if they were packed."""
    path, mib = tmp_path / "large.nc", 1 << 20
    monkeypatch.setattr(netcdf, "machine_bytes", lambda: 512 * mib)
    with h5py.File(path, "w") as file:
        file.create_dataset("there", data=np.zeros(mib, dtype="u1"))
        file.create_dataset("declared", (510 * mib,), "u1", chunks=(mib,))
        netcdf._Look(mib).at(file)
    with h5py.File(path, "r+") as file:
        file.create_dataset("more", (2 * mib,), "u1", chunks=(mib,))
    with pytest.raises(FileFormatError, match="it declares more than 512 MiB, in a file of"):
        arviz_io.load_netcdf(path)


def test_a_report_file_of_another_version_on_disk(
    targets: dict[str, Target], tmp_path: Path
) -> None:
    path = tmp_path / "nuts.nc"
    path.write_bytes(targets["nuts.nc"].content)
    with h5py.File(path, "r+") as file:
        group = file["evaluation"]
        document = json.loads(group.attrs["document"])
        group.attrs["document"] = json.dumps({**document, "version": 99})
    with pytest.raises(FileFormatError, match="has format version 99"):
        read_all([path])
