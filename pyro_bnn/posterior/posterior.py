"""The posterior of a model: draws, predictions, densities; the same object whatever made it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.data import Dataset
from pyro_bnn.data.arrays import ArrayLike, cast, check_finite
from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.memory import GIB
from pyro_bnn.posterior import storage
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.posterior.rows import (
    DatasetOrPair,
    check_names,
    in_order_of_fit,
    pair,
    require_dataset,
    tell_of_left_out,
)
from pyro_bnn.posterior.site_posterior import SitePosterior
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.map_draws import Chunks, RowTensors
from pyro_bnn.predictive.moments import estimated_elbo
from pyro_bnn.predictive.predict import log_likelihoods, predict
from pyro_bnn.predictive.prediction import Names, Prediction
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import Batch, Params

if TYPE_CHECKING:
    from xarray import DataTree

KEPT = 1 << 25  # most bytes of draws that a posterior keeps between predictions


class Posterior(SitePosterior):
    """Draws, predictions and log densities of one fit or one sampling run of a network.

    Args:
        program: The model as tensor functions.
        provenance: How the posterior came about.

    Attributes:
        predictor: What predictions are of: the program itself, unless a subclass has another.
        chunks: What was learned of the predictor's functions, for the next call.
    """

    program: Program

    def __init__(self, program: Program, provenance: Provenance) -> None:
        super().__init__(program, provenance)
        program.forget_rows()
        self.predictor = program
        self.chunks = Chunks(program)
        self._kept: tuple[tuple[int, int], Draws] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    @property
    def has_moments(self) -> bool:
        """Whether predictions have a mean and sd; quantiles they always have."""
        return True

    @isolated()
    def function_draws(
        self,
        x: ArrayLike,
        num_samples: int | None = None,
        seed: int = 0,
        group_by_chain: bool = False,
        *,
        memory: int = GIB,
    ) -> Float[Tensor, "*C S N F"]:
        """Draws of the network output f at x ``[N, I]``: ``[S, N, F]``, or ``[C, S/C, N, F]``.

        Args:
            x: Inputs in the model's units; columns as in :meth:`predict`.
            num_samples: Number of draws, the total over chains.
            seed: Seed of the draws.
            group_by_chain: Whether to keep chains apart.
            memory: Bound in bytes on the result, the draws of weights and intermediate results.

        Raises:
            OptionError: If the result exceeds the bound; names the num_samples that fits.
        """
        draws = self.in_blocks(self.count(num_samples), seed)

        def function(z: Tensor, rows: RowTensors, params: Params) -> tuple[Tensor, ...]:
            return (self.predictor.function(z, rows[0], params),)

        (f,) = self.chunks.over(
            "function", function, draws, (self._inputs(x),), self.params
        ).together(memory)
        return f.unflatten(0, (draws.num_chains, -1)) if group_by_chain else f

    @isolated()
    def predict(
        self,
        x: ArrayLike,
        num_samples: int | None = None,
        seed: int = 0,
        raw: bool = False,
        *,
        memory: int = GIB,
    ) -> Prediction:
        """Predictive distribution of y at new rows.

        Draws of weights are made a few at a time and not kept, so that networks of any size are
        predicted within the bound.

        All rows have the same draws of weights. So of a row alone, among others, and in blocks of
        rows, f, means, sds, probabilities and densities are the same but for rounding. Draws of y
        and quantiles are not: their noise is that of the row's place, independent between rows.

        Args:
            x: Inputs ``[N, I]`` in the model's (standardised) units, or the user's if ``raw``. The
                columns of a data frame are found by their names, those of the fit, in any order;
                an array has them in the order of the fit. If ``raw``, columns of text are encoded
                as in the fit, where that was to ``data.from_frame`` or a CSV.
            num_samples: Number of draws S, the total over chains.
            seed: Seed of the draws, of weights and of y.
            raw: Whether x and the prediction are in the user's units, densities included.
            memory: Bound in bytes on what the prediction keeps and on the draws of weights and
                intermediate results while it is made. Where what the draws predict exceeds it,
                the prediction is by blocks of rows: it has moments, quantiles and densities, and
                no draws.

        Raises:
            DataError: If a data frame has other columns than the fit; names both lists.
            OptionError: If a single draw exceeds the bound, or all draws at a single row, or at all
                rows where these depend on each other.
        """
        rows = in_order_of_fit(x, self.provenance, raw=raw)
        if raw and self.provenance.inputs is not None:
            rows = self.provenance.inputs.transform(rows)
        return predict(
            self.chunks,
            self.params,
            self._draws_to_keep(self.count(num_samples), seed, memory),
            self._inputs(rows),
            seed=seed,
            memory=memory,
            has_moments=self.has_moments,
            target=self.provenance.target if raw else None,
            names=Names(
                targets=self.provenance.target_names,
                classes=self.provenance.class_names,
                rows=getattr(x, "index", None) if hasattr(x, "columns") else None,
                are_raw=raw,
            ),
        )

    def _draws_to_keep(self, count: int, seed: int, memory: int) -> Draws:
        """Draws of which small ones stay for the next prediction: rows may come one by one."""
        key = (count, seed)
        if self._kept is not None and self._kept[0] == key:
            return self._kept[1]
        draws = self.in_blocks(count, seed)
        size = count * self.program.initial.nbytes
        is_made = draws.atoms is None and self.num_stored_draws is None
        if not is_made or not isinstance(memory, int) or size > min(KEPT, memory // 4):
            return draws

        def blocks() -> Iterator[Tensor]:
            made = []
            for block in draws.blocks():
                made.append(block)
                yield block
            held = torch.cat(made)
            self._kept = key, replace(draws, blocks=lambda: iter((held,)))

        return replace(draws, blocks=blocks)

    # Densities

    @isolated()
    def log_likelihood(
        self,
        data: DatasetOrPair,
        num_samples: int | None = None,
        seed: int = 0,
        group_by_chain: bool = False,
        *,
        memory: int = GIB,
    ) -> Float[Tensor, "*C S N"]:
        """Log p(y_n | x_n, z_s), ``[S, N]`` or ``[C, S/C, N]``, in the model's units.

        Args:
            data: Rows in the model's units; columns as in :meth:`predict`, but those of a
                ``Dataset`` in the order of the fit.
            num_samples: Number of draws, the total over chains.
            seed: Seed of the draws.
            group_by_chain: Whether to keep chains apart.
            memory: Bound in bytes on the result, the draws of weights and intermediate results.

        Raises:
            DataError: If the columns have names, and these are not those of the fit.
            OptionError: If the result exceeds the bound; names the num_samples that fits.
        """
        draws = self.in_blocks(self.count(num_samples), seed)
        run = log_likelihoods(self.chunks, draws, self.batch(data), self.params)
        (values,) = run.together(memory)
        return values.unflatten(0, (run.draws.num_chains, -1)) if group_by_chain else values

    @isolated()
    def log_joint(
        self, data: DatasetOrPair, num_samples: int | None = None, seed: int = 0
    ) -> Float[Tensor, " S"]:
        """Log p(y, z_s | x) ``[S]`` over all rows of ``data``, unconstrained, with Jacobian.

        Of the model itself, whatever predicts.

        Where the model is under ``poutine.scale``, its terms have that scale.
        """

        def log_likelihood_terms(z: Tensor, rows: RowTensors, params: Params) -> tuple[Tensor, ...]:
            return (self.program.log_likelihood_terms(z, Batch(*rows), params),)

        draws = self.in_blocks(self.count(num_samples), seed)
        run = self.chunks.over(
            "log likelihood terms", log_likelihood_terms, draws, self.batch(data), self.params
        )
        if refusal := run.excess(GIB, run.one.itemsize):
            raise OptionError(refusal)
        # Made before the blocks: small results left among what they free would split the heap
        total = torch.zeros(len(run.draws), dtype=torch.float64, device=run.one.device)
        for rows in run.blocks(GIB):
            start = 0
            for (values,) in rows.parts(GIB):
                total[start : start + len(values)] += values.sum(-1, dtype=torch.float64)
                start += len(values)

        def log_prior(z: Tensor, rows: RowTensors, params: Params) -> tuple[Tensor, ...]:
            return (self.program.log_prior(z, rows[0], params),)

        row = (run.rows[0][:1],)  # the prior uses its shape only
        (prior,) = self.chunks.over("log prior", log_prior, run.draws, row, self.params).together(
            GIB
        )
        return total.to(prior.dtype) + prior

    @isolated()
    def densities(
        self, data: DatasetOrPair, num_samples: int | None = None, seed: int = 0
    ) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
        """Log p(y, z_s | x) and log q(z_s), each ``[S]``, in the same coordinates.

        Raises:
            SiteError: If the posterior has no density q.
        """
        return self.log_joint(data, num_samples, seed), self.log_q(num_samples, seed)

    @isolated()
    def elbo(
        self, data: DatasetOrPair, num_samples: int | None = None, seed: int = 0
    ) -> tuple[float, float]:
        """ELBO on ``data`` in nats and its Monte Carlo standard error.

        It is the mean of log p(y, z | x) - log q(z) over draws of q, in the model's units.

        Raises:
            OptionError: If ``num_samples`` is 1, which has no standard error.
            SiteError: If the posterior has no ELBO: no density q, or a prior without density.
        """
        self._require_elbo(num_samples)
        return estimated_elbo(*self.densities(data, num_samples, seed))

    # Export

    @isolated()
    def to_arviz(
        self,
        train: Dataset,
        test: Dataset | None = None,
        num_samples: int | None = None,
        include_weights: bool = False,
        *,
        seed: int = 0,
        memory: int = GIB,
    ) -> DataTree:
        """The posterior as an ArviZ ``DataTree``.

        Groups: ``posterior`` (hyper-parameters, the norm of each weight tensor, f at up to eight
        rows), ``posterior_predictive``, ``log_likelihood``, ``log_prior`` (a density a site),
        ``observed_data``, ``constant_data``;
        with ``test`` also ``predictions``, ``predictions_constant_data``, ``test_data``,
        ``log_likelihood_predictions``; ``sample_stats`` (for an approximation ``log_p`` and
        ``log_q``), ``optimization``, ``prior``, ``prior_predictive``. Beside y and f,
        ``predictions`` has the mean and variance of y, or the class probabilities, given each draw;
        a file of ``Comparison.save`` holds them beside the evaluation that reports are made of.
        Under a flat prior there is no group of the prior.

        Inputs, classes and several targets have their names as coordinates where they are known. x
        and y are in the model's units, which their attributes name.

        Of a large table, more than 10,000 rows, the groups over rows have rows evenly spread over
        it; ``log_p`` is of all training rows, and NaN of draws for which that would take too long.

        The draws of an approximation (where ``sample_stats`` has ``log_q``) are not those of the
        posterior, so ``arviz.loo`` and ``arviz.compare`` of the tree score neither: use
        ``arviz.loo_approximate_posterior``, or :func:`pyro_bnn.arviz_io.loo_approximate`, which
        refuses an approximation that is too far away.

        Args:
            train: Training rows.
            test: Held-out rows.
            num_samples: Number of draws, the total over chains.
            include_weights: Whether all weights are stored too.
            seed: Seed of the draws.
            memory: Bound in bytes on the draws of one array over rows.

        Raises:
            DataError: If rows are no Dataset, or the columns have names, and these are not those of
                the fit.
            OptionError: If an array exceeds the bound; names the num_samples that fits.

        Warns:
            BNNWarning: If rows are left out.
        """
        from pyro_bnn.posterior.arviz_groups import arviz_tree

        for rows in (train, test):
            if rows is not None:
                require_dataset(rows)
                check_names(rows, self.provenance)
        count = self.count(num_samples)
        if self.num_stored_draws is not None:
            count = min(count, self.num_stored_draws)
        tell_of_left_out(train, test, count)
        return arviz_tree(
            self,
            train,
            test,
            partial(self.predict, num_samples=count, seed=seed, memory=memory),
            partial(self.log_likelihood, num_samples=count, seed=seed, memory=memory),
            num_samples=count,
            include_weights=include_weights,
            seed=seed,
            memory=memory,
        )

    @isolated()
    def export(
        self,
        path: str | Path,
        example: ArrayLike,
        num_samples: int | None = None,
        seed: int = 0,
        *,
        raw: bool = True,
        level: float | None = 0.95,
    ) -> None:
        """Write the predictive distribution of fixed draws as a program that torch or ONNX runs.

        It takes rows ``[N, ...]``, any number of them, and returns what ``predict(x, num_samples,
        seed, raw)`` says of them, by name: of numbers ``mean``, ``sd``, ``sd_epistemic``,
        ``sd_aleatoric``, and ``low``, ``median`` and ``high``, ``[N, O]`` each; of classes
        ``probs`` ``[N, C]``, in the order of the classes of the fit, ``entropy`` and
        ``mutual_information`` ``[N]``. Standardisation is inside.

        ``.pt2`` is a program of torch.export in the precision of the model: it needs torch alone,
        ``torch.export.load(path).module()(x)``. ``.onnx`` is in single precision but for the units
        of x and y, and is run by ONNX Runtime; to write it takes
        ``pip install 'pyro-bnn[onnx]'``. Quantiles are those of :meth:`.Prediction.quantile`, of
        Gaussian noise to 1e-5 sds where not of rounding. Counts and noise without an inverse in
        torch have none.

        Before the file is written, the program is compared with :meth:`predict` at three rows: in
        sds all are right to 1e-3, quantiles of a model in double precision to 1e-5.

        Args:
            path: The file, which ends in ``.pt2`` or ``.onnx``.
            example: Some rows, as for :meth:`predict`: the program takes rows of their shape and
                dtype. Columns of text go into it as :func:`pyro_bnn.data.from_frame` encodes them.
            num_samples: Number of draws S; default 100, or all stored draws where fewer, or those
                whose weights are less than 1 GiB: all are in the file.
            seed: Seed of the draws.
            raw: Whether rows and outputs are in the user's units.
            level: Probability of the interval from ``low`` to ``high``; None leaves out quantiles.

        Raises:
            ModelError: If the model is no fixed sequence of operations, as it reads numbers, or the
                program differs from :meth:`predict`.
            OptionError: If the name ends otherwise, or onnxscript is missing.
            OutputError: If the file cannot be written.

        Warns:
            BNNWarning: If there are no quantiles.
        """
        from pyro_bnn.posterior.export import export

        export(self, Path(path), example, num_samples, seed, raw=raw, level=level)

    @isolated()
    def state_dict(
        self, draw: int | None = None, num_samples: int | None = None, seed: int = 0
    ) -> dict[str, Tensor]:
        """Weights for a network of torch: their mean over draws, or those of one draw.

        Of a model made by ``bayesian(net)`` or ``bayesian_dropout(net)`` they have the names of
        ``net``, buffers included: ``net.load_state_dict(posterior.state_dict())``. Of other models
        they are sites and parameters by their names. A network at mean weights is one function: it
        has no uncertainty, and is not the mean of the networks.

        Args:
            draw: Number s of one of the draws of ``sample(num_samples, seed)``; None for the mean.
            num_samples: Number of draws.
            seed: Seed of the draws.

        Raises:
            OptionError: If there is no such draw.
        """
        from pyro_bnn.posterior.state import state_dict

        draws = self.in_blocks(self.count(num_samples), seed)
        return state_dict(self.program, self.params, draws, draw)

    def save(self, path: str | Path) -> None:
        """Write the posterior to one file that :meth:`load` reads; the model is not in it.

        Raises:
            OutputError: If the file cannot be written.
        """
        provenance = replace(self.provenance, nature=self.nature)
        storage.save(Path(path), self.program, self.params, provenance, self._contents())

    @staticmethod
    @isolated()
    def load(path: str | Path, model: Model) -> Posterior:
        """Read a posterior written by :meth:`save`.

        Args:
            path: The file.
            model: The Pyro model, built as it was for the fit, buffers included: they are compared
                and not restored.

        Raises:
            FileFormatError: If the file is missing, truncated, foreign or newer.
            SiteError: If the model differs from the one that was saved: in its sites, buffers,
                prior, network or likelihood.
        """
        kind, contents = storage.load(Path(path), model)
        posterior: Posterior = SitePosterior._by_kind[kind](**contents)  # type: ignore[assignment]
        return posterior

    @isolated()
    def batch(self, data: DatasetOrPair) -> Batch:
        """Rows of data as the functions of the program take them.

        Raises:
            DataError: If data are of another kind, or the columns have names, and these are not
                those of the fit.
        """
        x, y = pair(data, self.provenance)
        return self.program.batch(self._inputs(x), y)

    def _inputs(self, x: ArrayLike) -> Tensor:
        rows = in_order_of_fit(x, self.provenance)
        if rows.ndim < 1 or not len(rows):
            raise ShapeError(f"x has shape {tuple(rows.shape)}, but holds N rows, N at least 1")
        check_finite(rows, "x")
        if self.program.x_dtype.is_floating_point:
            rows = cast(rows, self.program.x_dtype, "x")
        return self.program.inputs(rows)
