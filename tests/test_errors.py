"""The tree of errors, and the message that suggests a name."""

from __future__ import annotations

import pickle

import pytest

from pyro_bnn import errors
from pyro_bnn.errors import BNNError, UnknownNameError

BUILT_IN = {
    "DataError": ValueError,
    "ShapeError": ValueError,
    "ModelError": ValueError,
    "SiteError": ValueError,
    "OptionError": ValueError,
    "UnknownNameError": KeyError,
    "DivergenceError": ArithmeticError,
    "CaptureError": RuntimeError,
    "FileFormatError": ValueError,
    "OutputError": OSError,
}


def test_every_error_is_caught_by_the_packages_class_and_by_pythons() -> None:
    defined = {
        name: cls
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, BNNError) and cls is not BNNError
    }
    assert set(defined) == set(BUILT_IN)
    for name, cls in defined.items():
        assert issubclass(cls, BUILT_IN[name])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sprin", "unknown season 'sprin': did you mean 'spring'? known are autumn, spring"),
        ("AUTUMN", "unknown season 'AUTUMN': did you mean 'autumn'? known are autumn, spring"),
        ("xyz", "unknown season 'xyz': known are autumn, spring"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: str, message: str) -> None:
    assert str(UnknownNameError("season", name, ["spring", "autumn"])) == message


def test_an_unknown_name_is_told_by_a_process_too() -> None:
    error = UnknownNameError("season", "sprng", ["spring", "autumn"])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (UnknownNameError, str(error))
