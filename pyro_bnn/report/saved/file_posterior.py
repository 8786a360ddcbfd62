"""A posterior out of a saved ArviZ file: what was stored is served, nothing is computed anew."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pyro_bnn import arviz_io
from pyro_bnn.data import Dataset, Split, Standardiser
from pyro_bnn.diagnostics.probes import Probes
from pyro_bnn.errors import BNNError, DataError, FileFormatError, OptionError, SiteError
from pyro_bnn.files.schema import expect
from pyro_bnn.posterior.arviz_groups import FORMAT_VERSION
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.posterior.posterior import NUM_SAMPLES
from pyro_bnn.predictive.draws import chosen_draws
from pyro_bnn.predictive.moments import estimated_elbo
from pyro_bnn.predictive.prediction import Prediction
from pyro_bnn.report.saved.file_checks import (
    DRAWS,
    OF_TARGETS,
    OPTIONS,
    array,
    check_arrays,
    has,
)

if TYPE_CHECKING:
    from xarray import DataTree

OF_TEST_ROWS = (
    "predictions",
    "predictions_constant_data",
    "test_data",
    "log_likelihood_predictions",
)
NORM = "norm "  # before the name of a site, in the group of the posterior
OF_PROBES = ("probes", "probes_constant_data")
SAME_ROWS = 1e-5  # of standardised values: float32 and float64 differ by less, other rows by more
NOT_OF_THE_POSTERIOR = ("prior", "prior_predictive")  # draws of their own


class FileModel:
    """The model of a saved posterior: its description, without the model itself.

    Args:
        path: The file.
        record: What the file says of the model; None where it says nothing.
    """

    def __init__(self, path: Path, record: Mapping[str, Any] | None) -> None:
        self.path = path
        self.record = record

    def describe(self) -> str:
        """The model in words."""
        if self.record is None:
            return f"a model that {self.path.name} does not describe: cannot be verified"
        return str(self.record["description"])


def read(path: str | os.PathLike[str]) -> FilePosterior:
    """Read a posterior from a file of ``Comparison.save`` or ``Posterior.to_arviz(train, test)``.

    Args:
        path: A NetCDF file; also one that was written by the tree's own ``to_netcdf``.

    Raises:
        FileFormatError: If the file is missing, no NetCDF file, of another origin, damaged, or of a
            newer version of this package.
        DataError: If it has no held-out rows.
    """
    path = Path(path)
    tree = arviz_io.load_netcdf(path)
    options = arviz_io.options(tree)
    version = options.get("format_version")
    if type(version) is not int or "method" not in options:
        raise FileFormatError(
            f"{path} is an ArviZ file, but not one that this version of pyro-bnn can compare: its "
            "attributes do not say how the posterior came about; write it with 'pyro-bnn compare' "
            "or posterior.to_arviz(train, test)"
        )
    if version > FORMAT_VERSION:
        raise FileFormatError(
            f"{path} has format version {version}, this package reads {FORMAT_VERSION}; read it "
            "with the version of pyro-bnn that wrote it"
        )
    if not set(tree.children) & set(OF_TEST_ROWS):
        raise DataError(
            f"{path} has no held-out rows, and posteriors are compared on these: write it with "
            "posterior.to_arviz(train, test)"
        )
    try:
        expect(options, OPTIONS, "it")
        check_arrays(tree, options["task"])
        return FilePosterior(tree, options, path)
    except BNNError as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileFormatError(f"{path} is damaged: {error!r} while reading it") from error


class FilePosterior:
    """A posterior as a file holds it: S draws at its own training and held-out rows.

    It has the members that a comparison needs, with the same values as the posterior that was
    saved, for the same draws. Each stored draw is used at most once.

    Args:
        tree: The tree of the file.
        options: Its options.
        path: The file.

    Attributes:
        path: The file.
        split: The rows.
        model: What stands for the model; one object for files that share a model.
        params: Digests of the model's point-estimated parameters, by name.
        saved: All options of the file, of which others are attributes of their own.
        name: Name in the comparison that wrote the file, else the method.
    """

    def __init__(self, tree: DataTree, options: Mapping[str, Any], path: Path) -> None:
        self.path, self.saved, self._tree = path, dict(options), tree
        saved = self.saved.get
        self.method: str = self.saved["method"]
        self.name: str = saved("name") or self.method
        self.engine: str = self.saved["engine"]
        self.options: Mapping[str, Any] = self.saved["options"]
        self.seed: int = self.saved["seed"]
        self.wall_time: float = self.saved["wall_time"]
        self.threads: int | None = saved("threads")
        self.processes: int = saved("processes") or 1
        self.gpu: str | None = saved("gpu")
        told = saved("doubling")
        self.doubling = None if told is None else Doubling(**told)
        self.nature = Nature.from_json(saved("nature"))
        self.num_parameters: int = self.saved["num_parameters"]
        self.num_atoms: int | None = saved("num_atoms")
        self.elbo_kind: str = self.saved["elbo_kind"]
        self.objective: str = self.saved["objective"]
        self.model = FileModel(path, saved("model"))
        self.params = {k: np.array(v) for k, v in (saved("params") or {}).items()}
        self.num_chains, self._num_draws = self._draws("predictions/f").shape[:2]
        self.num_stored_draws = self.num_chains * self._num_draws
        self.has_log_prob = has(tree, "sample_stats/log_q")
        self.split = _split(tree, self.saved, path)

    def on(self, split: Split, model: FileModel) -> FilePosterior:
        """The same draws, said to be of rows and a model that are equal to its own."""
        other = copy.copy(self)
        other.split, other.model = split, model
        return other

    @property
    def losses(self) -> Float[np.ndarray, " T"]:
        """Negative objective of every step ``[T]``; empty for samplers."""
        if "optimization" not in self._tree.children:
            return np.zeros(0)
        (trace,) = self._tree["optimization"].data_vars.values()
        return -trace.to_numpy()

    @property
    def sample_stats(self) -> Mapping[str, np.ndarray]:
        """Sampler statistics ``[C, S]``; empty for approximations.

        Of a part of the draws without energies, whose differences tell of consecutive draws only.
        """
        if "sample_stats" not in self._tree.children or self.has_log_prob:
            return {}
        is_part = self.num_stored_draws != self.saved.get("num_stored_draws")
        return {
            str(name): array(self._tree, f"sample_stats/{name}", *DRAWS)
            for name in self._tree["sample_stats"].data_vars
            if not (is_part and name == "energy")
        }

    @property
    def probes(self) -> Probes | None:
        """The rows off the data that it predicts too; None in files without them."""
        if not has(self._tree, "probes/f"):
            return None
        x = self._tree["probes_constant_data/x"].to_numpy()
        return Probes(x=x, counts=self.saved.get("probes") or {})

    def has_probes(self, x: Tensor | np.ndarray) -> bool:
        """Whether rows x ``[P, I]`` are its probes; others compute them with other rounding."""
        own, given = self.probes, np.asarray(x)
        return (
            own is not None
            and own.x.shape == given.shape
            and bool(np.allclose(own.x, given, rtol=SAME_ROWS, atol=SAME_ROWS))
        )

    # Draws

    def chosen(self, num_samples: int | None, seed: int) -> Int[Tensor, " S"]:
        """Which draws of each chain make up ``num_samples``: as a posterior of stored draws."""
        if num_samples is None:
            num_samples = min(max(NUM_SAMPLES, self.num_chains), self.num_stored_draws)
        return chosen_draws(self.num_chains, self._num_draws, num_samples, seed)

    def function_draws(
        self,
        x: Tensor,
        num_samples: int | None = None,
        seed: int = 0,
        group_by_chain: bool = False,
    ) -> Float[Tensor, "*C S N F"]:
        """Network outputs ``[S, N, F]``, or ``[C, S/C, N, F]``, at rows of the file.

        Args:
            x: Held-out rows, or the probes.
            num_samples: Number of draws, the total over chains.
            seed: Seed of the choice of draws.
            group_by_chain: Whether to keep chains apart.

        Raises:
            OptionError: If a row of x is none of them.
        """
        if self.has_probes(x):
            return self._part("probes/f", num_samples, seed, group_by_chain)
        f = self._part("predictions/f", num_samples, seed, group_by_chain)
        return f[..., self._rows(x), :]

    def hyperparameters(
        self, num_samples: int | None = None, seed: int = 0, group_by_chain: bool = False
    ) -> dict[str, Tensor]:
        """Scales and other latents that are no weights, ``[S, ...]``, or ``[C, S/C, ...]``."""
        names = {str(name) for name in self._tree["posterior"].data_vars} - {"f"}
        # a weight stands there as its norm, and itself where weights were asked for
        is_norm = {name for name in names if name.startswith(NORM)}
        weights = {name.removeprefix(NORM) for name in is_norm}
        return {
            name: self._part(f"posterior/{name}", num_samples, seed, group_by_chain)
            for name in names - is_norm - weights
        }

    def predict(
        self, x: Tensor, num_samples: int | None = None, seed: int = 0, raw: bool = False
    ) -> Prediction:
        """Predictions at held-out rows of the file.

        Raises:
            OptionError: If a row of x is none of them, or with ``raw``.
        """
        if raw:
            raise OptionError(
                f"{self.path} holds predictions in standardised units: leave raw=False, and scale "
                "them by split.test.target"
            )
        rows = self._rows(x)

        def of_rows(name: str) -> Tensor:
            return self._part(name, num_samples, seed)[:, rows]

        def of_y(name: str) -> Tensor:
            return _columns(of_rows(name), 2)

        is_number = not has(self._tree, "predictions/probs")
        log_likelihood = of_rows("log_likelihood_predictions/y")
        observed = self.split.test.y[rows]

        of_observed = partial(_densities, self.path, observed)
        of_targets = None
        if has(self._tree, f"predictions/{OF_TARGETS}"):
            of_targets = partial(of_observed, of_rows(f"predictions/{OF_TARGETS}"))

        return Prediction(
            draws=of_y("predictions/y"),
            function_draws=of_rows("predictions/f"),
            means=of_y("predictions/y_mean") if is_number else None,
            variances=of_y("predictions/y_variance") if is_number else None,
            class_probs=None if is_number else of_rows("predictions/probs"),
            _log_likelihood=partial(of_observed, log_likelihood),
            _target_log_likelihood=of_targets,
        )

    # Densities

    def log_likelihood(
        self,
        data: Dataset,
        num_samples: int | None = None,
        seed: int = 0,
        group_by_chain: bool = False,
    ) -> Float[Tensor, "*C S N"]:
        """Log p(y_n | x_n, z_s) of the held-out or training rows, ``[S, N]`` or ``[C, S/C, N]``.

        Raises:
            OptionError: If ``data`` are neither.
        """
        if _are(data, self.split.test):
            name = "log_likelihood_predictions/y"
        elif _are(data, self.split.train):
            name = "log_likelihood/y"
        else:
            raise OptionError(
                f"{self.path} holds densities of its own {len(self.split.test)} held-out rows and "
                f"{len(self.split.train)} training rows: give split.test or split.train"
            )
        return self._part(name, num_samples, seed, group_by_chain)

    def densities(
        self, data: Dataset, num_samples: int | None = None, seed: int = 0
    ) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
        """Log joint of all training rows and log q, ``[S]`` each, of the draws that have one.

        Raises:
            SiteError: If the file has no log q.
            OptionError: If ``data`` are not the training rows.
        """
        if not self.has_log_prob:
            raise SiteError(f"{self.path} has no density q(z) of its draws ({self.method})")
        self._require_training_rows(data)
        log_p = self._part("sample_stats/log_p", num_samples, seed)
        log_q = self._part("sample_stats/log_q", num_samples, seed)
        is_known = ~log_p.isnan() | ~log_q.isnan()  # of many rows few draws have a density
        return log_p[is_known], log_q[is_known]

    def elbo(
        self, data: Dataset, num_samples: int | None = None, seed: int = 0
    ) -> tuple[float, float]:
        """ELBO of the training rows in nats and its Monte Carlo error, from the stored draws.

        Raises:
            SiteError: If the posterior has no ELBO.
            OptionError: If ``data`` are not the training rows.
        """
        if self.elbo_kind == "none":
            raise SiteError(f"{self.path} has no ELBO ({self.method})")
        return estimated_elbo(*self.densities(data, num_samples, seed))

    def to_arviz(
        self,
        train: Dataset,
        test: Dataset | None = None,
        num_samples: int | None = None,
        *,
        seed: int = 0,
    ) -> DataTree:
        """The tree of the file with so many of its draws.

        Args:
            train: The training rows of the file.
            test: Its held-out rows; None leaves their groups out.
            num_samples: Number of draws, the total over chains.
            seed: Of the choice of draws.

        Raises:
            OptionError: If the rows are others.
        """
        self._require_training_rows(train)
        if test is not None:
            self._rows(test.x)
        chosen = self.chosen(num_samples, seed).numpy()
        tree = self._tree.copy()
        for group in list(tree.children):
            if test is None and group in OF_TEST_ROWS + OF_PROBES:
                del tree[group]
            elif group in arviz_io.SAMPLE_GROUPS and group not in NOT_OF_THE_POSTERIOR:
                tree[group] = tree[group].isel(draw=chosen)
        return tree

    def _draws(self, name: str) -> Tensor:
        """A variable ``[C, S, ...]``."""
        return torch.as_tensor(np.ascontiguousarray(array(self._tree, name, *DRAWS)))

    def _part(
        self, name: str, num_samples: int | None, seed: int, group_by_chain: bool = False
    ) -> Tensor:
        """The chosen draws of a variable, ``[S, ...]`` or ``[C, S/C, ...]``."""
        draws = self._draws(name)[:, self.chosen(num_samples, seed)]
        return draws if group_by_chain else draws.flatten(0, 1)

    def _rows(self, x: Tensor) -> Int[Tensor, " N"]:
        """Where rows x stand among the held-out rows."""
        held_out = self.split.test.x
        x = torch.as_tensor(x).to(held_out)
        if torch.equal(x, held_out):
            return torch.arange(len(x))
        place = {row.numpy().tobytes(): number for number, row in enumerate(held_out)}
        found = [place.get(row.numpy().tobytes()) for row in x]
        if None in found:
            raise OptionError(
                f"{self.path} holds predictions at its {len(held_out)} held-out rows only, and row "
                f"{found.index(None)} of x is none of them: predict with the posterior itself, "
                "fitted again or loaded from a file of posterior.save"
            )
        return torch.tensor([number for number in found if number is not None])

    def _require_training_rows(self, data: Dataset) -> None:
        if not _are(data, self.split.train):
            raise OptionError(
                f"{self.path} holds densities of its own {len(self.split.train)} training rows "
                "only: give split.train"
            )

    def __repr__(self) -> str:
        return f"FilePosterior({str(self.path)!r}, {self.method}, {self.num_stored_draws} draws)"


def _densities(path: Path, observed: Tensor, densities: Tensor, values: Tensor) -> Tensor:
    """The densities of a file, of the observations that it has them of."""
    if not torch.equal(values.reshape(len(values), -1).to(observed), _columns(observed)):
        raise OptionError(f"{path} holds densities of its own held-out y only: give split.test.y")
    return densities


def _are(data: Dataset, rows: Dataset) -> bool:
    return torch.equal(data.x.to(rows.x), rows.x) and torch.equal(data.y, rows.y)


def _split(tree: DataTree, saved: Mapping[str, Any], path: Path) -> Split:
    """The rows of a file in the units of the fit, with the way back to the user's."""
    rows = saved["rows"]
    data = saved.get("data") or {"name": f"rows of {path.name}", "index": 0, "note": ""}
    inputs, target = _units(rows["inputs"]), _units(rows["target"])

    def part(x: str, y: str) -> Dataset:
        inputs_, y_ = (torch.as_tensor(np.array(tree[name])) for name in (x, y))
        if saved["task"] == "regression" and not y_.is_floating_point():
            y_ = y_.to(torch.float64)  # counts
        return Dataset(
            inputs_,
            _columns(y_)[:, 0] if rows["y_ndim"] == 1 else _columns(y_),
            inputs,
            target,
            rows["input_names"],
            rows["target_name"],
            rows["class_names"],
            rows.get("target_names"),
        )

    train = part("constant_data/x", "observed_data/y")
    test = part("predictions_constant_data/x", "test_data/y")
    return Split(train, test, saved["task"], data["name"], data["index"], note=data["note"])


def _units(values: Mapping[str, Any] | None) -> Standardiser | None:
    if values is None:
        return None
    loc, scale = (torch.tensor(values[name], dtype=torch.float64) for name in ("loc", "scale"))
    return Standardiser(loc, scale)


def _columns(y: Tensor, ndim: int = 1) -> Tensor:
    """Targets ``[..., O]`` after so many axes; files of one target have no axis of it."""
    return y.reshape(*y.shape[:ndim], -1)
