"""Nothing that a file says can hurt: it is refused before memory or time is spent on what it says.

Each case matches the reason of its refusal, so that a bomb is not refused because it went off.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyro_bnn import arviz_io, guides, models, registry
from pyro_bnn.arviz_io import netcdf_checks
from pyro_bnn.cli.saved_fit import FIT_FILE, SavedFit
from pyro_bnn.errors import FileFormatError, OutputError, SiteError
from pyro_bnn.files import tensors as untrusted
from pyro_bnn.files.pickles import check_pickle
from pyro_bnn.files.tensors import parse_json, read_json, read_tensors, write_tensors
from pyro_bnn.guides import Guide
from pyro_bnn.posterior import GuidePosterior, Posterior, Provenance
from pyro_bnn.program import Program
from pyro_bnn.report.saved.compare_files import read_all
from tests.hostile import Target, archive, archive_records, damaged, make_targets, network
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


def load(path: Path) -> Posterior:
    return Posterior.load(path, network())


# --- any bytes -----------------------------------------------------------------------------------


@pytest.mark.slow("many files")
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    name=st.sampled_from(["guide.pt", "draws.pt", "training.pt", "fit.json", "nuts.nc"]),
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


def test_a_file_cut_anywhere_is_refused(targets: dict[str, Target], tmp_path: Path) -> None:
    content, path = targets["guide.pt"].content, tmp_path / "cut.pt"
    for size in (*range(0, len(content), 61), *range(len(content) - 200, len(content))):
        path.write_bytes(content[:size])
        with pytest.raises(FileFormatError, match="is truncated, or is not a file saved by this"):
            read_tensors(path)


def test_no_bit_of_a_tensor_flips_unnoticed(targets: dict[str, Target], tmp_path: Path) -> None:
    content, path = targets["draws.pt"].content, tmp_path / "flipped.pt"
    with zipfile.ZipFile(io.BytesIO(content)) as found:
        records = [r for r in found.infolist() if "/data/" in r.filename and r.file_size]
    for record in records:
        names = struct.unpack_from("<2H", content, record.header_offset + 26)
        changed = bytearray(content)
        changed[record.header_offset + 30 + sum(names)] ^= 4
        path.write_bytes(changed)
        with pytest.raises(FileFormatError, match="Bad CRC-32"):
            read_tensors(path)


def test_a_bit_at_the_end_of_a_large_tensor_does_not_flip_unnoticed(tmp_path: Path) -> None:
    path, numbers = tmp_path / "large.pt", torch.arange(1 << 19, dtype=torch.float64)  # 4 MiB
    write_tensors({"t": numbers}, path)
    content, last = bytearray(path.read_bytes()), numbers[-1:].numpy().tobytes()
    assert content.count(last) == 1
    content[content.index(last)] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="Bad CRC-32"):
        read_tensors(path)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero"), tmp_path / "none"):
        for read in (load, read_json, arviz_io.load_netcdf):
            with pytest.raises(FileFormatError, match=r"is not a file|there is no file"):
                read(path)
    os.mkfifo(tmp_path / FIT_FILE)
    with pytest.raises(FileFormatError, match=r"it has no fit\.json"):
        SavedFit.load(tmp_path)


# --- archives ------------------------------------------------------------------------------------


def test_archives_that_are_not_those_of_torch(targets: dict[str, Target], tmp_path: Path) -> None:
    records = archive_records(targets["guide.pt"].content)
    path, data = tmp_path / "made.pt", "archive/data/0"
    path.write_bytes(archive(records))
    assert isinstance(load(path), GuidePosterior)
    for name in ("../evil", "/etc/evil", "archive/../../evil", "archive/constants.pkl"):
        path.write_bytes(archive({**records, name: b"x"}))
        with pytest.raises(FileFormatError, match="its records are not those of torch"):
            load(path)
    path.write_bytes(archive({**records, data: bytes(100_000_000)}, zipfile.ZIP_DEFLATED))
    with pytest.raises(FileFormatError, match="its records are not those of torch"):
        load(path)
    path.write_bytes(archive({**records, "archive/DATA.PKL": b"x"}))  # torch looks up either
    with pytest.raises(FileFormatError, match="its records are not those of torch"):
        load(path)
    path.write_bytes(archive({**records, "archive/byteorder": b"big"}))
    with pytest.raises(FileFormatError, match="of other byte order"):
        load(path)
    content = archive(records)
    place = content.index(b"PK\x01\x02")  # the directory's first record
    for offset in (20, 24):  # its packed size and its size
        path.write_bytes(
            content[: place + offset] + b"\xff\xff\xff\x7f" + content[place + offset + 4 :]
        )
        with pytest.raises(FileFormatError, match="its records are not those of torch"):
            load(path)
    end = len(content) - 98
    path.write_bytes(content[: end + 24] + struct.pack("<2Q", 2**40, 2**40) + content[end + 40 :])
    with pytest.raises(FileFormatError, match="declares 1099511627776 records"):
        load(path)


def pickled(*operations: bytes) -> bytes:
    return b"\x80\x02" + b"".join(operations) + b"."


def doubled(times: int) -> bytes:
    """A tuple of two of itself, over and over: 2^times values in few bytes."""
    return b")q\x00" + b"".join(b"h%c\x68%c\x86q%c" % (i, i, i + 1) for i in range(times))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps(bytearray(9), 2), "names '(_codecs|__builtin__|builtins)"),
        (pickled(b"ctorch\nFloatTensor\nJ\xff\xff\xff\x7f\x85R"), "names 'torch FloatTensor'"),
        (pickled(b"ctorch\nFloatStorage\nJ\xff\xff\xff\x7f\x85R"), "calls what is no tensor"),
        (pickled(b")", b"\x85" * 1_000), "65 levels deep"),
        (pickled(doubled(40)), "and holds 524287 values"),
        (pickled(b"]q\x00h\x00a"), "holds a list or a dict twice"),
        (pickled(b"}q\x00(h\x00h\x00u"), "holds a list or a dict twice"),
        (pickled(b"})K\x01s"), "with keys that are not plain"),
        (pickled(b"K\x01" * 2_000_002), "more than 2000000 operations"),
        (pickled(b"cos\nsystem\n"), "names 'os system'"),
        (pickled(b"\x8a\xff"), "is damaged"),
        (pickled(b"t"), "ends too early"),
        (pickled(b"\x8c\x01a"), "has the operation SHORT_BINUNICODE"),
        (b"\x80\x05N.", "has the operation PROTO"),
        (b"", "is damaged"),
    ],
)
def test_pickles_that_would_take_more_than_they_are(content: bytes, reason: str) -> None:
    with pytest.raises(FileFormatError, match=reason):
        check_pickle(Path("x"), content)


def test_a_long_pickle_is_not_read(
    targets: dict[str, Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fit.pt"
    path.write_bytes(targets["guide.pt"].content)
    monkeypatch.setattr(untrusted, "PICKLE_BYTES", 100)
    monkeypatch.delattr(zipfile.ZipFile, "read")
    with pytest.raises(FileFormatError, match="beside its tensors"):
        read_tensors(path)


def test_tensors_beyond_their_storage(targets: dict[str, Target], tmp_path: Path) -> None:
    path = tmp_path / "tensor.pt"
    write_tensors({"t": torch.ones(2, 3)}, path)
    records = archive_records(path.read_bytes())
    assert torch.equal(read_tensors(path)["t"], torch.ones(2, 3))
    pickled_tensor, large = records["archive/data.pkl"], b"J\x00\x00\x00\x40"

    def with_other(old: bytes, new: bytes) -> dict[str, Any]:
        assert pickled_tensor.count(old) == 1
        path.write_bytes(archive({**records, "archive/data.pkl": pickled_tensor.replace(old, new)}))
        return read_tensors(path)

    for old in (b"K\x02K\x03\x86", b"K\x00K\x02K\x03"):  # its size, its start
        with pytest.raises(FileFormatError, match="storage that is not resizable"):
            with_other(old, large + old[2:])
    # a storage that is longer than the file ends where the file ends
    assert torch.equal(with_other(b"K\x06tq", large + b"tq")["t"], torch.ones(2, 3))
    torch.save({"t": torch.zeros(1).expand(1 << 40)}, path)
    with pytest.raises(FileFormatError, match="a tensor in it is longer than its storage"):
        read_tensors(path)
    whole = torch.zeros(100_000)
    torch.save({str(place): whole.view(-1) for place in range(20)}, path)
    with pytest.raises(FileFormatError, match="its tensors are larger than the file"):
        read_tensors(path)


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_text("before")
    with pytest.raises(OutputError, match=r"its pickle names 'pathlib"):
        write_tensors({"x": Path("a")}, path)
    assert path.read_text() == "before"
    shared = [1.0, (2, None)]
    part = torch.arange(6.0).view(2, 3).T[:2]
    write_tensors({"a": shared, "b": shared, "t": part, "n": {1: -(10**20)}}, path)
    found = read_tensors(path)
    assert found["a"] == found["b"] == shared
    assert torch.equal(found["t"], part)
    assert found["n"] == {1: -(10**20)}
    assert [child.name for child in tmp_path.iterdir()] == ["x.pt"]


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, "{", '{"a": ' * 100_000])
def test_texts_that_no_reader_should_follow(text: str) -> None:
    with pytest.raises(FileFormatError, match="x cannot be read: "):
        parse_json(text, "x")


def test_texts_without_end(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(FileFormatError, match=r"has 1024\.00 GiB, more than the 32\.00 MiB"):
        SavedFit.load(tmp_path)


# --- documents -----------------------------------------------------------------------------------


def of_header(**changes: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        document["header"] = json.dumps({**json.loads(document["header"]), **changes})

    return change


NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("guide.pt", of_header(num_data=-5), "num_data is out of range"),
        ("guide.pt", of_header(num_data=True), "num_data is a bool, not a int"),
        ("guide.pt", of_header(seed="x"), "seed is a str"),
        ("guide.pt", of_header(options=[]), "options is a list"),
        ("guide.pt", of_header(phases={"a": []}), "phase 'a' is a list"),
        ("guide.pt", of_header(more=1), "it has 'more', which is not known"),
        ("guide.pt", lambda d: d.update(more=1), "it has 'more', which is not known"),
        ("guide.pt", lambda d: d.update(x=torch.ones(10**6, 2)), "are not rows of 19"),
        ("guide.pt", lambda d: d.update(x=d["x"] * NAN), "x has values that are NaN"),
        ("guide.pt", lambda d: d.update(fingerprint=None), "fingerprint is a NoneType"),
        ("guide.pt", lambda d: d.update(losses=torch.ones(2)), r"losses is \[2\] of torch.float32"),
        ("guide.pt", lambda d: d.update(inputs={"loc": 1}), "is damaged: KeyError: 'scale'"),
        ("guide.pt", lambda d: d["guide"]["state"].pop("loc"), 'Missing key.*"loc"'),
        ("guide.pt", lambda d: d["guide"]["state"]["loc"].fill_(NAN), "loc has values that are N"),
        ("guide.pt", lambda d: d["guide"]["state"].pop("_extra_state"), "KeyError: '_extra_state'"),
        ("guide.pt", lambda d: d["guide"].update(options='{"rank": true}'), "size mismatch"),
        ("guide.pt", lambda d: d["guide"].update(options='{"init_scale": "x"}'), "init_scale"),
        ("guide.pt", lambda d: d["guide"].update(options='{"model": 1}'), "TypeError"),
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
        ("draws.pt", lambda d: d["sample_stats"].update(lp=[1.0]), "lp is a list, not a tensor"),
    ],
)
def test_documents_of_wrong_values(
    name: str, change: Change, reason: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    path = tmp_path / name
    document = torch.load(io.BytesIO(targets[name].content), weights_only=True)
    change(document)
    torch.save(document, path)
    with pytest.raises(FileFormatError, match=f"(?s){reason}"):
        load(path)


def test_a_document_of_another_model_leaves_the_model_alone(
    targets: dict[str, Target], tmp_path: Path
) -> None:
    path, model = tmp_path / "draws.pt", network()
    document = torch.load(io.BytesIO(targets["draws.pt"].content), weights_only=True)
    document["x"] = torch.ones(2, 7)
    torch.save(document, path)
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
    document = torch.load(path, weights_only=True)
    options = json.loads(document["guide"]["options"])
    assert Posterior.load(path, model).method == GUIDES[name].__name__
    for option, value in options.items():
        others = () if isinstance(value, bool) else (-1, "x", None, [1])
        for other in (*others, *((10**9,) if type(value) is int else ())):
            document["guide"]["options"] = json.dumps({**options, option: other})
            torch.save(document, path)
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
    document = torch.load(path, weights_only=True)
    document["guide"] |= {"class": "AutoMultivariateNormal"}
    torch.save(document, path)
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
        (lambda d: d["network"].update(seed=2**70), "its seed is"),
        (lambda d: d["network"].update(model="../x"), "unknown model"),
        (lambda d: d.update(task="x"), "its task is 'x'"),
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
    change(document)
    (tmp_path / FIT_FILE).write_text(json.dumps(document))
    (tmp_path / "posterior.pt").write_bytes(targets["posterior.pt"].content)
    with pytest.raises(FileFormatError, match=reason):
        SavedFit.load(tmp_path)


def test_a_fit_is_replaced_whole_or_not_at_all(
    targets: dict[str, Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (FIT_FILE, "posterior.pt"):
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
    assert sorted(path.name for path in tmp_path.iterdir()) == [FIT_FILE, "posterior.pt"]
    for name in (FIT_FILE, "posterior.pt"):
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
    array = file["posterior"].create_dataset("texts", (60,), h5py.string_dtype())
    array[0] = "x" * (1 << 20)
    for place in range(1, 60):
        array[place] = "x" * (1 << 20)


def packed_texts(file: Any) -> None:
    """Each string would unpack 16 MiB, of a thousand as many GiB."""
    options: Any = {"maxshape": (None,), "chunks": (1 << 20,), "compression": "gzip"}
    file["posterior"].create_dataset("texts", (1_000,), h5py.string_dtype(), **options)[:] = "x"


def notes(file: Any) -> None:
    for place in range(1_000):
        file["posterior"].attrs.create(f"note {place}", 1)


def remarks(file: Any) -> None:
    for place in range(3):
        text = np.array(["x" * (12 << 20)], dtype=object)
        file["posterior"].attrs.create(f"remark {place}", text, (1,), h5py.string_dtype())


def nested(file: Any) -> None:
    file.create_group("/".join("abcdefghijkl"))


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
        (huge, "is in 1000000 pieces"),
        (packed, "its arrays have more than .* MiB, in a file of"),
        (pieces, "is in 10000000 pieces"),
        (texts, "its strings have more than 32 MiB"),
        (packed_texts, "'/posterior/texts' holds packed text"),
        (notes, "it has more than 1000 attributes"),
        (remarks, "its strings have more than 32 MiB"),
        (nested, "nested more than 8 deep"),
        (cyclic, "is in it twice"),
        (outside, "is a link to another file"),
        (virtual, "is a link to another file"),
        (lambda f: f.update(x=h5py.ExternalLink("/etc/other.nc", "/")), "is a link to something"),
        (lambda f: f["posterior"].update(x=h5py.SoftLink("/posterior")), "is a link to something"),
        (lambda f: f["posterior"].create_dataset("x", (3,), "c8"), "holds complex64, neither"),
        (
            lambda f: f["posterior"].create_dataset("x", data=np.ones(9), compression="lzf"),
            "packed",
        ),
        (lambda f: f.update(x=np.dtype("f8")), "is neither a group nor an array"),
    ],
)
def test_netcdf_files_that_declare_more_than_they_hold(
    change: Callable[[Any], object],
    reason: str,
    targets: dict[str, Target],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(netcdf_checks, "NUM_ATTRIBUTES", 1_000)  # its own are fewer
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
    monkeypatch.setattr(netcdf_checks, "_memory", lambda: 512 * mib)
    with h5py.File(path, "w") as file:
        file.create_dataset("there", data=np.zeros(mib, dtype="u1"))
        file.create_dataset("declared", (510 * mib,), "u1", chunks=(mib,))
    netcdf_checks.check_netcdf(path)
    with h5py.File(path, "r+") as file:
        file.create_dataset("more", (2 * mib,), "u1", chunks=(mib,))
    with pytest.raises(FileFormatError, match="its arrays have more than 512 MiB, in a file of"):
        netcdf_checks.check_netcdf(path)


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("predictions/f", np.ones((2, 6, 5)), r"predictions/f has shape|is damaged"),
        ("predictions/y", np.ones((2, 6, 5, 9)), "is damaged"),
        ("log_likelihood/y", np.full((2, 6, 19), b"x"), "is damaged|truncated"),
        ("test_data/y", np.ones((5, 1), dtype=bool), "its y are not numbers"),
    ],
)
def test_report_files_of_wrong_arrays(
    name: str, value: Any, reason: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    path = tmp_path / "nuts.nc"
    path.write_bytes(targets["nuts.nc"].content)
    tree = arviz_io.load_netcdf(path)
    group, variable = name.split("/")
    data = tree[group].to_dataset().drop_vars(variable)
    names = [f"own_{axis}" for axis in range(value.ndim)]
    if value.shape[:2] == (2, 6):
        names[:2] = ["chain", "draw"]
    tree[group] = data.assign({variable: (names, value)})
    arviz_io.save_netcdf(tree, path)
    with pytest.raises(FileFormatError, match=reason):
        read_all([path])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seed": "x"}, "seed is a str"),
        ({"draws_seed": 2**70}, "draws_seed is 1180591620717411303424"),
        ({"elbo_kind": "x"}, "elbo_kind is 'x'"),
        ({"compared": [1]}, "compared is a int"),
        ({"options": {"schedule": "cosine", "num_steps": 10**13}}, "num_steps is out of range"),
        ({"model": {}, "data": {"name": 3}}, "name is a int"),
        ({"wall_time": None}, "wall_time is a NoneType"),
        ({"threads": 0}, "threads is 0"),
        ({"processes": True}, "processes is a bool"),
        ({"format_version": 99}, "has format version 99"),
    ],
)
def test_report_files_of_wrong_options(
    change: dict[str, Any], reason: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    path = tmp_path / "nuts.nc"
    path.write_bytes(targets["nuts.nc"].content)
    with h5py.File(path, "r+") as file:
        options = json.loads(file.attrs["options"])
        file.attrs["options"] = json.dumps({**options, **change})
    with pytest.raises(FileFormatError, match=reason):
        read_all([path])


@pytest.mark.slow("a second or more")
def test_whole_numbers_are_targets_too(targets: dict[str, Target], tmp_path: Path) -> None:
    path = tmp_path / "nuts.nc"
    path.write_bytes(targets["nuts.nc"].content)
    tree = arviz_io.load_netcdf(path)
    for group in ("observed_data", "test_data"):
        data = tree[group].to_dataset()
        tree[group] = data.assign(y=(data["y"].dims, np.ones(data["y"].shape, dtype=np.int32)))
    arviz_io.save_netcdf(tree, path)
    (found,) = read_all([path]).values()
    assert found.split.test.y.dtype == torch.float64
