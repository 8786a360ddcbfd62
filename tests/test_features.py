"""What a frozen body makes of rows: in chunks, on disk where it is large."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from pyro_bnn.errors import OutputError
from pyro_bnn.files.mapped import MappedFile
from pyro_bnn.program import features as module
from pyro_bnn.program.features import FIRST_ROWS, features


class Doubled:
    """Twice each row, and the sizes of the chunks."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return x.mul_(2)


@pytest.mark.parametrize("num_rows", [1, FIRST_ROWS, 100])
@pytest.mark.parametrize("most_bytes", [0, None])
def test_rows_go_through_the_body_once_in_chunks(
    num_rows: int, most_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, body = torch.arange(3.0 * num_rows).reshape(num_rows, 3), Doubled()
    before = x.clone()
    monkeypatch.setattr(module, "CHUNK_BYTES", 30 * 12)  # a sum makes a row of 12 bytes
    out = features(lambda rows: body(rows + 0), x, most_bytes=most_bytes)
    torch.testing.assert_close(out, 2 * before, rtol=0, atol=0)
    torch.testing.assert_close(x, before, rtol=0, atol=0)
    rest = num_rows - min(num_rows, FIRST_ROWS)
    assert sum(body.sizes) == num_rows
    assert len(body.sizes) == 1 + -(-rest // 30)


def test_large_features_are_in_a_file_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def file(num_bytes: int, what: str) -> MappedFile:
        made.append(num_bytes)
        return MappedFile(num_bytes, what=what)

    monkeypatch.setattr(module, "MappedFile", file)
    out = features(lambda x: x, torch.ones(10, 5), most_bytes=199)
    assert made == [200]
    assert float(out.sum()) == 50
    features(lambda x: x, torch.ones(10, 5), most_bytes=200)
    assert made == [200]


def test_a_full_disk_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(OutputError, match=r"of features to .*or take fewer rows"):
        features(lambda x: x, torch.ones(10, 5), most_bytes=0)
