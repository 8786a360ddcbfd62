from __future__ import annotations

import pytest

from pyro_bnn.cli.catalogue import catalogue, first_sentence, listing
from pyro_bnn.registry import KINDS, entries


def test_the_catalogue_holds_every_entry_and_data_set_with_a_sentence() -> None:
    from pyro_bnn.data import names
    from pyro_bnn.data.sklearn_sets import diabetes

    found = catalogue()
    for kind in KINDS:  # of the classes themselves, which the catalogue does not import
        classes = entries(kind).items()
        assert list(found[f"{kind}s"].items()) == [
            (name, first_sentence(cls.__doc__)) for name, cls in classes
        ]
    assert found["data sets"]["diabetes"] == first_sentence(diabetes.__doc__ or "")
    assert found["data sets"]["uci/yacht"] == "residuary resistance from 6 inputs."
    assert sorted(found["data sets"]) == names()
    sentences = [sentence for group in found.values() for sentence in group.values()]
    assert all(sentence.endswith(".") for sentence in sentences)
    assert not any(mark in sentence for sentence in sentences for mark in (":math:", "`", "\\"))


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("One. Two.", "One."),
        ("One,\n    still one.\n\n    Two.", "One, still one."),
        ("See, e.g. Bayes. Two.", "See, e.g. Bayes."),
        ("A scale of 0.2; 2 classes.", "A scale of 0.2; 2 classes."),
        ("Normal, :math:`p(w)` for all. Two.", "Normal."),
        ("The ``y``.", "The y."),
        ("", ""),
    ],
)
def test_first_sentence(docstring: str, sentence: str) -> None:
    assert first_sentence(docstring) == sentence


def test_the_listing_indents_what_does_not_fit() -> None:
    lines = list(listing(60))
    assert lines[0] == "Guides"
    assert lines[-1] == ""
    (name,) = (line for line in lines if line.strip().startswith("auto-normal "))
    first, *more = name.splitlines()
    assert first.startswith("  auto-normal  ")
    column = len(first) - len(first.removeprefix("  auto-normal").lstrip())
    assert all(line[:column].strip() == "" and line[column] != " " for line in more)
