"""Which sites are one block, and where it stands in z."""

from __future__ import annotations

import pytest
import torch

from pyro_bnn import priors
from pyro_bnn.guides.parts.blocks import LAST_LAYER, Blocks, layers_of, matching_sites
from pyro_bnn.models import MLP
from pyro_bnn.program import Program
from tests.laws import MixedModel


def test_blocks_are_taken_apart_and_put_together() -> None:
    blocks = Blocks.of([2, 1, 1, 3, 1], ["a", "b", "b", "a", "c"])
    assert blocks.stretches == ((2, 0), (2, 1), (3, 0), (1, 2))
    assert blocks.sizes == [5, 2, 1]
    z = torch.arange(16.0).reshape(2, 8)
    parts = blocks.split(z)
    assert parts[0].tolist() == [[0, 1, 4, 5, 6], [8, 9, 12, 13, 14]]
    assert parts[1].tolist() == [[2, 3], [10, 11]]
    assert parts[2].tolist() == [[7], [15]]
    assert torch.equal(blocks.join(parts), z)


def test_the_order_of_numbered_blocks_is_that_of_the_numbers() -> None:
    blocks = Blocks.numbered([1, 2], [1, 0])
    first, second = blocks.split(torch.arange(3))
    assert (first.tolist(), second.tolist()) == ([1, 2], [0])
    assert blocks.join([first, second]).tolist() == [0, 1, 2]


def test_a_layer_has_all_sites_of_a_hierarchical_weight() -> None:
    model = MLP(2, hidden=(3,), prior=priors.HalfCauchyScale())
    names = [site.name for site in Program(model, torch.zeros(2, 2), torch.zeros(2)).sites]
    assert {"layers.0.weight.raw", "layers.1.bias.raw", "likelihood.scale"} < set(names)
    layers = dict(zip(names, layers_of(names, model), strict=True))
    assert {layer for name, layer in layers.items() if ".0." in name} == {"layers.0"}
    assert {layer for name, layer in layers.items() if ".1." in name} == {"layers.1"}
    assert layers["likelihood.scale"] == "likelihood"


FIRST = ["layers.0.weight", "layers.0.bias"]
MIDDLE = ["layers.1.weight", "layers.1.bias"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("layers.0", FIRST),
        ("layers", [*FIRST, *MIDDLE, "layers.2.weight", "layers.2.bias"]),
        ("layers.0.bias", FIRST[1:]),
        ("layers.-1", ["layers.2.weight", "layers.2.bias"]),
        ("layers.-3.bias", FIRST[1:]),
        ("layers.-4", []),
        ("layers.*.bias", ["layers.0.bias", "layers.1.bias", "layers.2.bias"]),
        ("layers.[01].*", [*FIRST, *MIDDLE]),
        ("layers.-2.*", MIDDLE),
        ("layer", []),
        (LAST_LAYER, ["layers.2.weight", "layers.2.bias"]),
    ],
)
def test_a_key_takes_the_sites_of_a_module_or_pattern(key: str, expected: list[str]) -> None:
    model = MLP(1, hidden=(2, 2))
    sites = Program(model, torch.zeros(2, 1), torch.zeros(2)).sites
    assert matching_sites(key, sites, model) == expected


def test_layers_are_counted_by_their_numbers_not_by_their_names() -> None:
    """As words, 10 and 11 come before 2, and 9 is the last."""
    model = MLP(1, hidden=(1,) * 11)
    sites = Program(model, torch.zeros(2, 1), torch.zeros(2)).sites
    assert matching_sites("layers.-1.bias", sites, model) == ["layers.11.bias"]
    assert matching_sites("layers.-10.bias", sites, model) == ["layers.2.bias"]


def test_the_last_layer_of_a_model_without_modules_is_all_of_it() -> None:
    sites = Program(MixedModel(), torch.zeros(2, 3).double(), torch.zeros(2).double()).sites
    assert matching_sites(LAST_LAYER, sites, MixedModel()) == [site.name for site in sites]
