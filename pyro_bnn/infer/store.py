"""Draws of a sampler while it runs: in memory, or in a file where they exceed a bound."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import shutil
import tempfile
import weakref
from typing import IO

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pyro_bnn import memory as bounds
from pyro_bnn.errors import OutputError, ShapeError
from pyro_bnn.memory import readable, require_bytes

logger = logging.getLogger("pyro_bnn")


class DrawStore:
    """Draws ``[C, S, P]`` that come chain by chain, each chain at its own pace.

    Beyond the bound they are written to a file without a name in the folder for temporary files
    (``TMPDIR``), whose room is taken at once, so that a run does not end in a full disk. Writing
    takes no memory, and reading takes pages that the system can drop. The room is free again when
    the store and the last tensor that views it are gone, however the process ends.

    Args:
        num_chains: Number of chains C.
        num_samples: Draws S of each chain.
        num_latents: Length P of a draw.
        dtype: Of the draws.
        device: Where the draws are kept if they fit the bound; a file is read on the CPU.
        memory: Bound in bytes, by default ``pyro_bnn.memory.STORED_DRAWS``, 1 GiB.

    Attributes:
        counts: Draws so far of each chain ``[C]``, on the CPU.

    Raises:
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
    ) -> None:
        memory = bounds.STORED_DRAWS if memory is None else memory
        require_bytes(memory)
        self._shape = (num_chains, num_samples, num_latents)
        self._dtype = dtype
        self._draw_bytes = num_latents * dtype.itemsize
        self.counts = torch.zeros(num_chains, dtype=torch.int64)
        self._file: _File | None = None
        num_bytes = num_chains * num_samples * self._draw_bytes
        if num_bytes <= memory:
            self._z = torch.zeros(self._shape, dtype=dtype, device=device)
        else:
            self._file = _File(num_bytes)
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

    @property
    def is_on_disk(self) -> bool:
        """Whether the draws are in a file."""
        return self._file is not None

    @property
    def draws(self) -> Float[Tensor, "C S P"]:
        """All draws, zero where there is none yet; of a file a map, which outlives the store."""
        return self._z

    def append(self, chains: Int[Tensor, " K"], z: Float[Tensor, "K P"]) -> None:
        """Store the next draw of each of some chains.

        Args:
            chains: Numbers ``[K]`` of the chains, no two the same.
            z: Their draws ``[K, P]``.

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
        at = self.counts[chains]
        if bool((at >= num_samples).any()):
            full = ", ".join(map(str, chains[at >= num_samples].tolist()))
            raise ShapeError(f"chain {full} has all its {num_samples} draws already")
        z = z.detach()
        if self._file is None:
            self._z[chains, at] = z.to(self._z)
        else:
            rows = z.to("cpu", self._dtype).contiguous().view(torch.uint8)  # [K, bytes]
            for place, row in zip((chains * num_samples + at).tolist(), rows, strict=True):
                self._file.write(row, place * self._draw_bytes)
        self.counts[chains] = at + 1


class _File:
    """A file without a name: nothing is left of it when the process ends, even if it is killed.

    It is written by plain writes, as the pages of a map that are written count as the process's
    own memory until they reach the disk.
    """

    def __init__(self, num_bytes: int) -> None:
        self.folder = tempfile.gettempdir()
        self.num_bytes = num_bytes
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
            self._reserve()
        except OSError as error:
            raise self._refusal(error.strerror or str(error)) from error

    def _reserve(self) -> None:
        if shutil.disk_usage(self.folder).free < self.num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._file.truncate(self.num_bytes)
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._file.fileno(), 0, self.num_bytes)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # not of this disk
                    raise

    def write(self, values: Tensor, start: int) -> None:
        """Write bytes ``[n]`` from a place on."""
        left = values.numpy().data
        try:
            self._file.seek(start)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._refusal(error.strerror or str(error)) from error

    def map(self, dtype: torch.dtype) -> Tensor:
        """All numbers ``[n]`` of the file, which lives as long as a view of this tensor."""
        return torch.frombuffer(mmap.mmap(self._file.fileno(), self.num_bytes), dtype=dtype)

    def _refusal(self, why: str) -> OutputError:
        try:
            free = readable(shutil.disk_usage(self.folder).free)
        except OSError:
            free = "an unknown number"
        return OutputError(
            f"cannot write {readable(self.num_bytes)} of draws to {self.folder}, which has {free} "
            f"free: {why}; set TMPDIR to a folder with more room before Python starts, keep fewer "
            "draws, or raise the bound on memory"
        )
