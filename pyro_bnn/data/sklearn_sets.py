"""Data sets that come with scikit-learn: no file is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.labels import Task
from pyro_bnn.data.split import Split, Table, published_split


def load_sklearn(name: str, index: int = 0) -> Split:
    """Load one split of a set that comes with scikit-learn.

    Splits are made as those of the UCI benchmark (see :func:`published_rows`), without regard to
    classes: 90 % of the rows train.

    Args:
        name: A key of ``SKLEARN_SETS``.
        index: Number of the split, 0 .. 19.

    Returns:
        The split.

    Raises:
        OptionError: If ``index`` is out of range.

    Example:
        >>> load_sklearn("moons", 3)
        Split('moons', classification, index=3, train=Dataset(x [180, 2] float32, y [180] int64, \
target_name='moon'), test=Dataset(x [20, 2] float32, y [20] int64, target_name='moon'))
    """
    return published_split(SKLEARN_SETS[name](), index)


def diabetes() -> Table:
    """442 patients, 10 inputs in original units; progression of the disease after one year.

    References:
        Efron, Hastie, Johnstone & Tibshirani, "Least Angle Regression", Annals of Statistics 32,
        2004.
    """
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    return _table(bunch, "diabetes", "regression", "progression after one year")


def digits() -> Table:
    """1,797 images of digits, 8 x 8 pixels from 0 to 16 as 64 inputs; 10 classes.

    References:
        Alpaydin & Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
        Repository, 1998.
    """
    from sklearn.datasets import load_digits

    return _table(load_digits(), "digits", "classification", "digit")


def breast_cancer() -> Table:
    """569 tumours, 30 inputs; malignant or benign.

    References:
        Wolberg, Mangasarian, Street & Street, "Breast Cancer Wisconsin (Diagnostic)", UCI Machine
        Learning Repository, 1995.
    """
    from sklearn.datasets import load_breast_cancer

    return _table(load_breast_cancer(), "breast-cancer", "classification", "diagnosis")


def wine_cultivars() -> Table:
    """178 wines, 13 inputs; 3 cultivars.

    References:
        Aeberhard & Forina, "Wine", UCI Machine Learning Repository, 1992.
    """
    from sklearn.datasets import load_wine

    return _table(load_wine(), "wine-cultivars", "classification", "cultivar")


def moons() -> Table:
    """200 points on two half circles with Gaussian noise of standard deviation 0.2; 2 classes."""
    from sklearn.datasets import make_moons

    x, y = make_moons(200, noise=0.2, random_state=0)
    names: Any = {"input_names": ("x0", "x1"), "class_names": ("outer", "inner")}
    data = Dataset(torch.tensor(x), torch.tensor(y), target_name="moon", **names)
    note = "Synthetic: 200 points, noise of standard deviation 0.2."
    return Table(data, "classification", "moons", note)


SKLEARN_SETS: dict[str, Callable[[], Table]] = {
    "breast-cancer": breast_cancer,
    "diabetes": diabetes,
    "digits": digits,
    "moons": moons,
    "wine-cultivars": wine_cultivars,
}


def _table(bunch: Any, name: str, task: Task, target_name: str) -> Table:
    is_class = task == "classification"
    data = Dataset(
        torch.tensor(bunch.data, dtype=torch.float64),
        torch.tensor(bunch.target, dtype=torch.int64 if is_class else torch.float64),
        input_names=[str(name) for name in bunch.feature_names],
        target_name=target_name,
        class_names=[str(name) for name in bunch.target_names] if is_class else None,
    )
    return Table(data, task, name)
