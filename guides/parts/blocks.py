"""Blocks of z that are independent under q: the sites of one layer, or of one part of a guide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_bnn.priors.hierarchy import hierarchies
from pyro_bnn.program.handlers import Model
from pyro_bnn.sites import Site


class Blocks(NamedTuple):
    """Where the blocks stand in z, each made of one or more stretches of it.

    Attributes:
        stretches: Length of each stretch of z, and number of its block.
    """

    stretches: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, lengths: Sequence[int], labels: Sequence[Hashable]) -> Blocks:
        """The blocks of sites of given lengths: those of one label are one block.

        Blocks are numbered in the order in which they appear.
        """
        numbers = {label: i for i, label in enumerate(dict.fromkeys(labels))}
        return cls.numbered(lengths, [numbers[label] for label in labels])

    @classmethod
    def numbered(cls, lengths: Sequence[int], blocks: Sequence[int]) -> Blocks:
        """The blocks of sites of given lengths, each in the block of a number from 0."""
        stretches: list[tuple[int, int]] = []
        for length, block in zip(lengths, blocks, strict=True):
            if stretches and stretches[-1][1] == block:
                stretches[-1] = (stretches[-1][0] + length, block)
            else:
                stretches.append((length, block))
        return cls(tuple(stretches))

    @property
    def sizes(self) -> list[int]:
        """Entries of each block."""
        counts: Counter[int] = Counter()
        for length, block in self.stretches:
            counts[block] += length
        return [counts[block] for block in range(len(counts))]

    def split(self, z: Tensor) -> list[Tensor]:
        """Entries ``[..., P_b]`` of each block out of z ``[..., P]``."""
        found: dict[int, list[Tensor]] = {}
        parts = z.split([length for length, _ in self.stretches], -1)
        for part, (_, block) in zip(parts, self.stretches, strict=True):
            found.setdefault(block, []).append(part)
        own = (found[block] for block in range(len(found)))
        return [torch.cat(some, -1) if len(some) > 1 else some[0] for some in own]

    def join(self, blocks: Sequence[Tensor]) -> Tensor:
        """Z ``[..., P]`` of what ``split`` returns."""
        if len(self.stretches) == 1:
            return blocks[0]
        lengths: dict[int, list[int]] = {}
        for length, block in self.stretches:
            lengths.setdefault(block, []).append(length)
        parts: dict[int, Iterator[Tensor]] = {
            block: iter(blocks[block].split(own, -1)) for block, own in lengths.items()
        }
        return torch.cat([next(parts[block]) for _, block in self.stretches], -1)


def layers_of(sites: Sequence[str], model: Model) -> list[str]:
    """The layer of each site: the name of the module that owns it, ``""`` for the model itself.

    The sites of a weight that a hierarchical prior makes, ``layers.0.weight.raw`` and those of its
    scale, are of the layer ``layers.0`` too.

    Args:
        sites: Names of the sites.
        model: The model.
    """
    made = hierarchies(model)
    weights = (next((w for w in made if site.startswith(f"{w}.")), site) for site in sites)
    return [weight.rpartition(".")[0] for weight in weights]


LAST_LAYER = "last layer"  # key of the layer of the last real site


def matching_sites(key: str, sites: Sequence[Site], model: Model) -> list[str]:
    """Names of the sites that a key takes.

    Args:
        key: Name of a module or a site, in which a negative number counts modules from the last; a
            pattern of names; or ``LAST_LAYER``.
        sites: The model's sites.
        model: The model.
    """
    names = [site.name for site in sites]
    if key == LAST_LAYER:
        layers = layers_of(names, model)
        real = [layer for layer, s in zip(layers, sites, strict=True) if s.is_real]
        last = (real or layers)[-1]
        return [name for name, layer in zip(names, layers, strict=True) if layer == last]
    key = _counted(key, names)
    if any(letter in key for letter in "*?["):
        return [name for name in names if fnmatchcase(name, key)]
    return [name for name in names if name == key or name.startswith(f"{key}.")]


def _counted(key: str, names: Sequence[str]) -> str:
    """A key with the number of a module in place of one that counts from the last."""
    words = key.split(".")
    for i, word in enumerate(words):
        if word.startswith("-") and word[1:].isdigit():
            before = words[:i]
            split = (name.split(".") for name in names)
            found = {w[i] for w in split if len(w) > i and w[:i] == before and w[i].isdigit()}
            numbers = sorted(found, key=int)
            if int(word[1:]) <= len(numbers):
                words[i] = numbers[int(word)]
    return ".".join(words)
