"""Draws of a sampler while it runs: in memory, or in a file where they exceed a bound."""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn import memory as bounds
from pyro_bnn.errors import FileFormatError, OutputError, ShapeError
from pyro_bnn.files.mapped import MappedFile
from pyro_bnn.memory import readable, require_bytes

logger = logging.getLogger("pyro_bnn")


class DrawStore:
    """Draws ``[C, S, P]`` that come chain by chain, each chain at its own pace.

    Beyond the bound they are written to a file without a name in the folder for temporary files
    (``TMPDIR``), whose room is taken at once, so that a run does not end in a full disk. Writing
    takes no memory, and reading takes pages that the system can drop. The room is free again when
    the store and the last tensor that views it are gone, however the process ends.

    With a path the draws are in that file, whatever the bound, and another process can go on: a
    draw is written once and keeps its place, so that a state of the store is a few numbers.

    Args:
        num_chains: Number of chains C.
        num_samples: Draws S of each chain.
        num_latents: Length P of a draw.
        dtype: Of the draws.
        device: Where the draws are kept if they fit the bound; a file is read on the CPU.
        memory: Bound in bytes, by default ``pyro_bnn.memory.STORED_DRAWS``, 1 GiB.
        path: File that keeps the draws; made anew unless there is a state.
        saved: A :meth:`state` of a store of that file, to go on from.

    Attributes:
        counts: Draws so far of each chain ``[C]``, on the CPU.
        is_on_disk: Whether the draws are in a file alone.

    Raises:
        FileFormatError: If the file is missing or does not hold the draws of the state.
        OptionError: If the bound is no positive integer.
        OutputError: If the file cannot be made, or the disk has no room for it.

    Example:
        >>> store = DrawStore(2, 3, 4, torch.float32)
        >>> store.append(torch.tensor([1]), torch.ones(1, 4))
        >>> store.counts.tolist(), store.draws[1, 0].tolist()
        ([0, 1], [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(
        self,
        num_chains: int,
        num_samples: int,
        num_latents: int,
        dtype: torch.dtype,
        *,
        device: torch.device | str = "cpu",
        memory: int | None = None,
        path: Path | None = None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        memory = bounds.STORED_DRAWS if memory is None else memory
        require_bytes(memory)
        self._shape = (num_chains, num_samples, num_latents)
        self._dtype = dtype
        self._draw_bytes = num_latents * dtype.itemsize
        self.counts = torch.zeros(num_chains, dtype=torch.int64)
        self._written, self._checks = [0] * num_chains, [0] * num_chains  # of each chain
        num_bytes = num_chains * num_samples * self._draw_bytes
        self.is_on_disk = num_bytes > memory
        if path is not None:
            _check_size(path, num_bytes) if saved else _make_room(path)
        has_file = self.is_on_disk or path is not None
        is_whole = saved is not None and int(saved["counts"].min()) == num_samples
        self._file = _opened(num_bytes, path, is_whole=is_whole) if has_file else None
        if self._file is None or not self.is_on_disk:
            self._z = torch.zeros(self._shape, dtype=dtype, device=device)
        else:
            self._z = self._file.map(dtype).view(self._shape)
            logger.warning(
                "%d draws of %d numbers need %s, more than the bound of %s in memory: they are "
                "written to a file in %s",
                num_chains * num_samples,
                num_latents,
                readable(num_bytes),
                readable(memory),
                self._file.folder,
            )
        if saved is not None:
            self._restore(saved, path)

    @property
    def draws(self) -> Float[Tensor, "C S P"]:
        """All draws, zero where there is none yet; of a file a map, which outlives the store."""
        return self._z

    def append(self, chains: Int[Tensor, " K"], z: Float[Tensor, "K P"]) -> None:
        """Store the next draws of some chains.

        Args:
            chains: Numbers ``[K]`` of the chains; those of one chain stand together.
            z: Their draws ``[K, P]``, a chain's in their order.

        Raises:
            OutputError: If the file cannot be written.
            ShapeError: If the shapes do not fit, or a chain has all its draws.
        """
        num_chains, num_samples, num_latents = self._shape
        if z.shape != (len(chains), num_latents):
            raise ShapeError(
                f"the next draws of {len(chains)} of {num_chains} chains have shape "
                f"[{len(chains)}, {num_latents}], not {list(z.shape)}"
            )
        chains = chains.cpu()
        at = self.counts[chains] + torch.from_numpy(turns_of(chains.numpy()))
        if bool((at >= num_samples).any()):
            full = ", ".join(map(str, chains[at >= num_samples].unique().tolist()))
            raise ShapeError(f"chain {full} has all its {num_samples} draws already")
        z = z.detach()
        if not self.is_on_disk:
            self._z[chains, at] = z.to(self._z)
        else:
            rows = z.to("cpu", self._dtype)
            for chain, place, row in zip(chains.tolist(), at.tolist(), rows, strict=True):
                self._write(chain, place, row)
        self.counts += torch.bincount(chains, minlength=num_chains)

    def state(self) -> dict[str, Any]:
        """Draws of each chain and their checksums, once the disk has all draws.

        Raises:
            OutputError: If the file cannot be written.
        """
        if self._file is not None:
            for chain, count in enumerate(self.counts.tolist()):
                if self._written[chain] < count:
                    start = self._written[chain]
                    self._write(chain, start, self._z[chain, start:count])
            self._file.sync()
        return {"counts": self.counts.clone(), "checks": list(self._checks)}

    def _write(self, chain: int, start: int, rows: Tensor) -> None:
        """Write the next draws ``[..., P]`` of a chain to the file."""
        assert self._file is not None
        _, num_samples, num_latents = self._shape
        rows = rows.reshape(-1, num_latents).cpu().contiguous()
        self._file.write(rows, (chain * num_samples + start) * self._draw_bytes)
        self._checks[chain] = _checksum(rows, self._checks[chain])
        self._written[chain] = start + len(rows)

    def _restore(self, saved: Mapping[str, Any], path: Path | None) -> None:
        assert self._file is not None
        counts, checks = saved["counts"], saved["checks"]
        num_chains, num_samples, _ = self._shape
        fits = counts.shape == self.counts.shape and len(checks) == num_chains
        if not fits or int(counts.min()) < 0 or int(counts.max()) > num_samples:
            raise FileFormatError(f"a state of other draws than {path} holds: counts {counts}")
        held = self._file.map(self._dtype).view(self._shape)
        for chain, count in enumerate(counts.tolist()):
            if _checksum(held[chain, :count], 0) != checks[chain]:
                raise FileFormatError(
                    f"{path} does not hold the {count} draws of chain {chain} that were written "
                    "to it: it is damaged or of another run"
                )
            if not self.is_on_disk:
                self._z[chain, :count] = held[chain, :count].to(self._z)
        self.counts = counts.clone()
        self._written, self._checks = counts.tolist(), list(checks)


def turns_of(chains: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each entry of an array ``[K]`` in which equal ones stand together, how many are before it.

    Example:
        >>> turns_of(np.array([4, 4, 4, 0, 7, 7]))
        array([0, 1, 2, 0, 0, 1])
    """
    if not len(chains):
        return np.zeros(0, np.int64)
    starts = np.flatnonzero(np.diff(chains, prepend=chains[0] - 1))
    lengths = np.diff(starts, append=len(chains))
    return np.arange(len(chains)) - np.repeat(starts, lengths)


def _opened(num_bytes: int, path: Path | None, *, is_whole: bool) -> MappedFile:
    is_new = path is not None and not path.exists()
    try:
        return MappedFile(num_bytes, path, is_whole=is_whole)
    except OutputError:
        if path is not None and is_new:
            path.unlink(missing_ok=True)
        raise


def _make_room(path: Path) -> None:
    with contextlib.suppress(OSError):  # of a run that was killed before its first save
        path.unlink()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {path.parent}: {error.strerror}") from error


def _check_size(path: Path, num_bytes: int) -> None:
    held = path.stat().st_size if path.is_file() and not path.is_symlink() else None
    if held != num_bytes:
        what = "is missing" if held is None else f"holds {held} bytes, not {num_bytes}"
        raise FileFormatError(
            f"{path} {what}: the draws so far are lost, or it is of another run; put the file "
            "back, or start again in another folder"
        )


def _checksum(rows: Tensor, start: int) -> int:
    """CRC-32 of rows ``[n, P]`` after those of a checksum."""
    return zlib.crc32(rows.detach().view(torch.uint8).numpy().data, start)
