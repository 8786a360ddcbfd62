"""Draws of a posterior, made or read a few at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pyro_bnn.errors import BNNWarning, OptionError
from pyro_bnn.memory import WORKING_SET
from pyro_bnn.program.random_state import seeded

STORED_AT_ONCE = 256  # most draws that are copied out of a store at once


@dataclass(frozen=True)
class Draws:
    """S draws ``[Q]`` as the functions of a program take them.

    Attributes:
        blocks: Gives the draws in their order, in blocks ``[B, Q]`` of any size; each call starts
            over and gives the same ones.
        num_draws: Number of draws S.
        num_chains: Number of chains C that they come from, one after the other.
        atoms: The K points that all draws repeat, where a posterior has K points only.
    """

    blocks: Callable[[], Iterator[Float[Tensor, "B Q"]]]
    num_draws: int
    num_chains: int = 1
    atoms: Atoms | None = None

    @classmethod
    def of(cls, z: Float[Tensor, "S Q"]) -> Draws:
        """The draws of a tensor."""
        return cls(lambda: iter((z,)), len(z))

    def __len__(self) -> int:
        return self.num_draws

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the draws themselves, not the function that makes them."""
        return _copied, (self.together().flatten(0, 1), self.num_chains, self.atoms)

    def chunks(self, size: int) -> Iterator[Float[Tensor, "s Q"]]:
        """The draws in chunks of ``size``, the last one with what is left."""
        collected: list[Tensor] = []
        for block in self.blocks():
            rest = block
            while len(rest):
                missing = size - sum(map(len, collected))
                collected.append(rest[:missing])
                rest = rest[missing:]
                if len(collected[-1]) == missing:
                    yield torch.cat(collected) if len(collected) > 1 else collected[0]
                    collected.clear()
        if collected:
            yield torch.cat(collected) if len(collected) > 1 else collected[0]

    def together(self) -> Float[Tensor, "C S Q"]:
        """All draws ``[C, S/C, Q]`` at once, each held once while they are collected."""
        z = together(self.blocks(), self.num_draws)
        return z.reshape(self.num_chains, -1, z.shape[-1])


def _copied(z: Float[Tensor, "S Q"], num_chains: int, atoms: Atoms | None) -> Draws:
    return replace(Draws.of(z), num_chains=num_chains, atoms=atoms)


def together(parts: Iterable[Float[Tensor, "s ..."]], num_draws: int) -> Float[Tensor, "S ..."]:
    """Parts of draws as one tensor ``[S, ...]``, each held once; rows beyond S are dropped."""
    whole, start = torch.empty(0), 0
    for part in parts:
        if not start:
            whole = part.new_empty(num_draws, *part.shape[1:])
        place = whole[start : start + len(part)]
        place.copy_(part[: len(place)])
        start += len(place)
    return whole[:start]


@dataclass(frozen=True)
class Atoms:
    """K points of equal weight, and which of them each of S draws is.

    Attributes:
        points: The points ``[K, Q]``.
        order: Number of the point of each draw ``[S]``.
    """

    points: Float[Tensor, "K Q"]
    order: Int[Tensor, " S"]


def draws_of_atoms(points: Float[Tensor, "K Q"], num_draws: int, seed: int) -> Draws:
    """S draws of K points, each point as often as the others where S is a multiple of K.

    Args:
        points: The points ``[K, Q]``.
        num_draws: Number of draws S. They go round the points, each round in an order of its own,
            so that no point is ever more than one draw ahead.
        seed: Of the orders; the first draws are the same for a larger S.
    """
    num_points = len(points)
    rounds = torch.rand(-(-num_draws // num_points), num_points, generator=seeded(seed))
    order = rounds.argsort(-1).flatten()[:num_draws].to(points.device)
    size = max(1, min(STORED_AT_ONCE, WORKING_SET // max(1, points[0].nbytes)))

    def blocks() -> Iterator[Tensor]:
        for numbers in order.split(size):
            yield points[numbers]

    return Draws(blocks, num_draws, atoms=Atoms(points, order))


def stored_draws(
    z: Float[Tensor, "C S Q"],
    chosen: Int[Tensor, " s"],
    *,
    like: Tensor | None = None,
) -> Draws:
    """The draws at chosen positions ``[s]`` of every chain's store.

    The store may be a file larger than the memory, so a few draws are copied at once.

    Args:
        z: Draws ``[C, S, Q]`` of C chains.
        chosen: Positions ``[s]`` within every chain.
        like: Has the dtype and the device of the copies; by default those of z.
    """
    like = z if like is None else like
    draw_bytes = max(1, z.shape[-1] * z.element_size())
    size = max(1, min(STORED_AT_ONCE, WORKING_SET // draw_bytes))

    def blocks() -> Iterator[Tensor]:
        for of_chain in z:
            for positions in chosen.split(size):
                yield of_chain[positions].to(like)

    return Draws(blocks, z.shape[0] * len(chosen), z.shape[0])


def chosen_draws(num_chains: int, stored: int, num_samples: int, seed: int) -> Int[Tensor, " S"]:
    """Which stored draws of each chain make up ``num_samples``, in their order.

    Args:
        num_chains: Number of chains C.
        stored: Stored draws of each chain.
        num_samples: Number of draws, the total over chains.
        seed: Of the choice; the same for every chain.

    Returns:
        Positions ``[num_samples / C]``, all of them where more draws are asked for.

    Raises:
        OptionError: If ``num_samples`` is less than one draw a chain.

    Warns:
        BNNWarning: If more draws are asked for than are stored.

    Example:
        >>> len(chosen_draws(4, 300, 1_000, seed=0))
        250
    """
    if num_samples < num_chains:
        raise OptionError(
            f"num_samples is the total over {num_chains} chains: at least {num_chains}, not "
            f"{num_samples}"
        )
    if num_samples > num_chains * stored:
        warnings.warn(
            f"{num_samples} draws were asked for and {num_chains * stored} are stored: all of "
            "them are used, each once",
            BNNWarning,
            stacklevel=3,
        )
    count = min(stored, num_samples // num_chains)
    return torch.randperm(stored, generator=seeded(seed))[:count].sort().values
