"""A Pyro model of rows (x, y), traced once, as pure functions over a flat vector z ``[P]``.

Every engine, guide, prediction and diagnostic uses these functions and nothing else of the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.data import Call
from pyro_bnn.errors import DataError, ModelError, ShapeError
from pyro_bnn.handled import module_of
from pyro_bnn.likelihoods import match_observation
from pyro_bnn.priors.prior import tensors_of, unvalidated
from pyro_bnn.program.contract import (
    CORRECTED,
    check_model,
    check_run,
    explained,
    require_size_of_plate,
)
from pyro_bnn.program.distributions import base_distribution, require_in_support, with_tensors
from pyro_bnn.program.elbo import elbo
from pyro_bnn.program.features import BodyOfModel, Memo
from pyro_bnn.program.handlers import (
    Evaluate,
    Model,
    data_plate,
    log_prob,
    scale_of_rows,
    total_log_prob,
)
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.model_facts import dtype_and_device, input_dtype, require_two_classes
from pyro_bnn.program.rows import FewRows, spread_over
from pyro_bnn.program.slopes import require_gradients
from pyro_bnn.program.terms import (
    Batch,
    ELBOTerms,
    GuideLike,
    Params,
    PredictiveOfDraws,
    RowEstimate,
)

MANY, NUM_NUMBERS = 2_000, 100_000
"""Rows, and numbers of x, on which a model is run to see that its rows are apart."""
SPREAD = 256  # rows on which a likelihood is looked at


class Program(Joint):
    r"""A model of rows as tensor functions: its joint density, f, and the distribution of y.

    It is a :class:`Joint` whose arguments are rows x, or x and y, and change from call to call. The
    likelihood is that of ``"y"``: of a batch of B rows it is scaled by N/B, unless the model's
    plate scales it already. Factors, such as a penalty on parameters, are no part of it.

    A latent site that ``pyro.condition(model, data)`` holds at a value has no coordinates: it is a
    constant, and its density, given the sites that are left, is part of the joint and of the prior.
    Under ``poutine.reparam(model, config)`` the sites are those that it makes.

    Args:
        model: Pyro model ``model(x, y=None)`` that records ``f`` and observes ``"y"`` in the plate
            ``"data"``.
        x: Inputs ``[B, ...]`` of any rows of the data; only the shapes of the model's sites are
            read from them.
        y: Observations of these rows.
        num_data: Rows N of the whole data set, where these are some of them; default B.
        memo: Where the features of a frozen body are kept for the next program of these rows.

    Raises:
        ModelError: If the model breaks the contract; the message shows the corrected lines.
        ShapeError: If x and y do not fit the model or each other.
        DataError: If all rows of the data set are of one class.
        SiteError: If a latent site is discrete or per row, or its support is not fixed.

    Attributes:
        x_dtype: Of the inputs: ``dtype``, or that of whole numbers which the model alone takes.
        likelihood_family: Class of the distribution of y.
        num_function_outputs: Columns F of f.
        example: The first two rows, of a frozen body their features.
        example_x: Inputs of the first two rows.
        spread: At most a few hundred rows, among them those of extreme inputs; those of
            ``example`` once :meth:`forget_rows` is called.
        times_set: How often point estimates were set, where features depend on them.
    """

    times_set = 0

    def __init__(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        num_data: int | None = None,
        memo: Memo | None = None,
    ) -> None:
        if x.shape[0] != y.shape[0]:
            raise ShapeError(f"x has {x.shape[0]} rows, but y has {y.shape[0]}")
        self.dtype, self.device = dtype_and_device(model, x)
        self.x_dtype = input_dtype(model, x, self.dtype, self.device)
        plain = self.plain_inputs(x)
        self.example_x = plain[:2].clone()
        self._body = BodyOfModel(model, plain, memo)
        if self._body.serves(plain):
            module = module_of(model)
            assert module is not None
            own = {**dict(module.named_buffers()), **dict(module.named_parameters())}
            plain = self._body.of(plain, own, x)
        x, y = plain, self._cast(y)
        self.num_data = x.shape[0] if num_data is None else num_data
        trace, y, num_traced = check_model(model, x, y)
        self._y_dtype = y.dtype
        self._predictive_is_checked = False
        self.example = Batch(x[:2].clone(), y[:2].clone())
        self.spread = Batch(x, y).take(
            spread_over(x, min(SPREAD, NUM_NUMBERS // max(1, x[0].numel())))
        )
        first = x[:1].clone(), y[:1].clone()
        check = partial(self._check_rows, x, y, num_traced)
        super().__init__(model, first, trace=trace, check=check)
        if num_data is None:  # all rows of the data set
            require_two_classes(y, self.likelihood_family)

    def _check_rows(self, x: Tensor, y: Tensor, num_traced: int, first: Evaluate) -> None:
        """Check that rows are apart and have gradients, by a run with marks on the first."""
        many = self._at_many_rows(x, num_traced)
        check_run(first, many)
        require_size_of_plate(data_plate(first.y), self.num_data)
        if data_plate(first.y).size == 1:  # not of a size of its own
            few = FewRows(self._run_on, self.constrain, self.initial, x, y)
            few.require_apart(self.model, first, many)
            require_gradients(few)
            few.warn_of_probabilities()
        self.likelihood_family: type = type(base_distribution(first.y["fn"]))
        self.num_function_outputs = first.f.shape[1]

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs as the functions of rows take them: of a frozen body the features, once for all.

        Features are taken as they are.

        Raises:
            DataError: If the model takes whole numbers alone and these are not.
            ShapeError: If the body fails on x, whose columns are not those it was fitted to.
        """
        plain = self.plain_inputs(x)
        if not self._body.serves(plain):
            return plain
        with explained(self.model, plain, self.example_x), self.snapshot.held():
            return self._body.of(plain, {**self.snapshot.buffers, **self.params}, x)

    def forget_rows(self) -> None:
        """Keep no rows but the first two: a posterior needs no others."""
        self.spread = self.example

    def plain_inputs(self, x: Tensor) -> Tensor:
        """Inputs in the dtype and on the device of the model, which takes them, too.

        Raises:
            DataError: If the model takes whole numbers alone and these are not.
        """
        if (body := getattr(self, "_body", None)) is not None and body.takes(x):
            return x.to(self.device)
        is_rounded = x.is_floating_point() and not self.x_dtype.is_floating_point
        if is_rounded and bool((x != x.floor()).any()):
            raise DataError(
                "x holds fractions, but the model takes whole numbers, to which it was fitted: "
                "pass the numbers that its embedding looks up"
            )
        # vmap refuses the layout of images whose channels came last
        return x.to(device=self.device, dtype=self.x_dtype).contiguous()

    def set_params(self, values: Mapping[str, Tensor]) -> None:
        """Give point-estimated parameters other values; those of a frozen body change features."""
        super().set_params(values)
        if self._body.serves(self.example_x):
            self.times_set += 1
            self.example = Batch(self.inputs(self.example_x), self.example.y)

    def batch(self, x: Tensor, y: Tensor) -> Batch:
        """Rows in the program's dtype and device, y in the shape the likelihood takes.

        Raises:
            ShapeError: If y does not fit the likelihood.
            DataError: If values of y lie outside the likelihood's support, such as a class label
                that is not 0..C-1.
        """
        x, y = self.inputs(x), self._cast(y)
        fn = self.run_at(self.initial, (x[:1],)).y["fn"]
        fn = fn.expand(torch.Size([x.shape[0]]))
        y = match_observation(y, fn)
        require_in_support(y, fn)
        # captured graphs expect this layout
        return Batch(x, y.to(self._y_dtype).contiguous())

    @property
    def has_rows(self) -> bool:
        """Whether the arguments are rows of data: they are."""
        return True

    @property
    def call(self) -> Call:
        """One row of inputs: guides trace the model without y."""
        return Call(self.example.x[:1])

    def arguments(self, rows: Batch) -> Sequence[Any]:
        """The rows, x and y."""
        return rows

    def rows_of_plates(self, args: Sequence[Any]) -> None:
        """None: the arguments are the rows that a plate takes already."""

    # Densities

    def log_prior(self, z: Tensor, x: Any = None, params: Params | None = None) -> Tensor:
        """Log p(z) ``[...]`` of z ``[..., P]``; x gives the model's row shapes only.

        Of a model under ``pyro.condition``, the density of z and of the values together.
        """
        return super().log_prior(z, None if x is None else (x[:1],), params)

    def log_priors(self, z: Tensor, x: Any = None, params: Params | None = None) -> Tensor:
        """Log density ``[..., K]`` of the values of each of the K sites, without Jacobians."""
        return super().log_priors(z, None if x is None else (x[:1],), params)

    def prior_draws(
        self, num_draws: int, x: Any = None, seed: int = 0, params: Params | None = None
    ) -> Tensor:
        """Draws z ``[S, P]`` from the prior; x ``[1, ...]`` gives the model's row shapes only."""
        return super().prior_draws(num_draws, None if x is None else (x,), seed, params)

    def run_log_prior(self, run: Evaluate, z: Tensor, **how: Any) -> Tensor:
        """Log density ``[]`` of z ``[P]`` and of the values that other sites are held at."""
        log_prior = super().run_log_prior(run, z, **how)
        return log_prior + total_log_prob(held, like=z) if (held := run.held) else log_prior

    def row_densities(self, run: Evaluate, num_rows: int | None = None) -> tuple[Tensor, float]:
        """Log densities ``[B]`` of the rows of a run, and their scale, N/B by default.

        Args:
            run: The model, evaluated.
            num_rows: Rows B of the batch where the run holds one of them; default those of the run.

        Raises:
            ModelError: If the run holds one row and the plate scales by its own size.
        """
        msg = run.y
        plates = [frame for frame in msg["cond_indep_stack"] if frame.name == "data"]
        rows = log_prob(msg)  # [B]
        scale, weights = scale_of_rows(msg)
        if weights is not None:
            rows = rows * weights
        if any(p.full_size not in (None, p.size) for p in plates):  # the plate has scaled it
            if num_rows is not None:
                raise ModelError(
                    'draws for each row need a plate "data" of the rows of x, and this one has a '
                    f"size of its own; write{CORRECTED}"
                )
            return rows, scale
        return rows, scale * (self.num_data / (num_rows or rows.shape[0]))

    def penalties(self, run: Evaluate) -> dict[str, dict[str, Any]]:
        """Factors of a run, which depend on parameters alone."""
        return run.factors

    def log_likelihood(self, z: Tensor, batch: Batch, params: Params | None = None) -> Tensor:
        """Log p(y_n | x_n, z) ``[..., N]`` of z ``[..., P]``, a row at a time, unscaled."""
        return self._over_draws(lambda run, _: log_prob(run.y), z, batch, params)

    def log_likelihood_terms(self, z: Tensor, batch: Batch, params: Params | None = None) -> Tensor:
        """The same ``[..., N]`` times the scale of ``poutine.scale``: the rows' part of log p."""

        def terms(run: Evaluate, _: Tensor) -> Tensor:
            rows, scale = self.row_densities(run)
            return rows * (scale * rows.shape[0] / self.num_data)

        return self._over_draws(terms, z, batch, params)

    def log_likelihood_given(
        self, f: Tensor, z: Tensor, batch: Batch, params: Params | None = None
    ) -> Tensor:
        """Log p(y | f, z) ``[]`` of a batch, scaled by N/B, at z ``[P]`` and f ``[B, F]``."""
        z, params = self.split_draw(z, params)
        return self.run_log_likelihood(self.run(self.constrain(z), batch, params, output=f))

    def function(self, z: Tensor, x: Tensor, params: Params | None = None) -> Tensor:
        """Network output f ``[..., N, F]`` of z ``[..., P]``."""
        with explained(self.model, x, self.example.x, self.example_x):
            return self._over_draws(lambda run, _: run.f, z, (x,), params)

    def for_all_draws(self, x: Tensor, params: Params | None = None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """What is computed of rows x once for all draws, ``[N, ...]`` each: nothing."""
        return ()

    @contextmanager
    def reusing(self, of_rows: tuple[Tensor, ...]) -> Iterator[None]:  # noqa: ARG002
        """Inside, functions of these rows use what :meth:`for_all_draws` computed of them."""
        yield

    # The distribution of y

    def predictive(self, z: Tensor, x: Tensor, params: Params | None = None) -> PredictiveOfDraws:
        """Network output and distribution of y at x ``[N, ...]`` given each z ``[S, P]``.

        Raises:
            ModelError: If the distribution of y cannot be batched over draws.
            ShapeError: If the model fails on x, whose columns are not those it was fitted to.
        """
        f, *values = self.predictive_tensors(z, x, params)
        return PredictiveOfDraws(
            f, with_tensors(self.observed(z[0], x, params)[0], values, z.shape[0])
        )

    def predictive_tensors(
        self, z: Tensor, x: Tensor, params: Params | None = None
    ) -> tuple[Tensor, ...]:
        """Network output f ``[S, N, F]`` and the tensors ``[S, ...]`` of the distribution of y.

        Raises:
            ModelError: If the distribution of y cannot be batched over draws.
            ShapeError: If the model fails on x, whose columns are not those it was fitted to.
        """
        if not self._predictive_is_checked:
            self._check_predictive(params)
        with explained(self.model, x, self.example.x, self.example_x):
            return self._predictive_tensors(z, x, params)

    def _predictive_tensors(
        self, z: Tensor, x: Tensor, params: Params | None
    ) -> tuple[Tensor, ...]:
        def tensors(run: Evaluate, _: Tensor) -> tuple[Tensor, ...]:
            return (run.f, *tensors_of(unvalidated(run.y["fn"])))

        return self._over_draws(tensors, z, (x,), params)

    def observed(
        self, z: Tensor, x: Tensor, params: Params | None = None
    ) -> tuple[Distribution, bool]:
        """Distribution of y ``[N]`` at one z ``[P]``, and whether rows of it are masked."""
        with explained(self.model, x, self.example.x, self.example_x):
            msg = self._over_draws(lambda run, _: run.y, z, (x,), params)
        return unvalidated(msg["fn"]), msg["mask"] is not None

    def row_weights(self, z: Tensor, x: Tensor, params: Params | None = None) -> Tensor | None:
        """What a tensor of ``poutine.scale`` weights the rows by ``[N]``; None without one."""
        msg = self._over_draws(lambda run, _: run.y, z, (x,), params)
        _, weights = scale_of_rows(msg)
        return None if weights is None else weights.expand(msg["fn"].batch_shape)

    def _check_predictive(self, params: Params | None) -> None:
        """Compare the batched distribution of y with the model's own, a draw at a time."""
        batch = self.example
        z = torch.stack([self.initial, 0.9 * self.initial, 1.1 * self.initial])  # S differs from N

        def density(run: Evaluate, _: Tensor) -> Tensor:  # of rows that are masked, too
            log_density: Tensor = unvalidated(run.y["fn"]).log_prob(run.y["value"])
            return log_density

        with torch.no_grad():
            expected = torch.stack([self._over_draws(density, row, batch, params) for row in z])
            try:
                _, *values = self._predictive_tensors(z, batch.x, params)
                fn, _ = self.observed(z[0], batch.x, params)
                actual = with_tensors(fn, values, len(z)).log_prob(batch.y)
                fits = torch.allclose(actual, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
            except RuntimeError:
                fits = False
        if not fits:
            raise ModelError(
                f"the {self.likelihood_family.__name__} distribution of y cannot be batched over "
                "draws: write it with parameters that have a value for each row, or as one of "
                "pyro_bnn.likelihoods"
            )
        self._predictive_is_checked = True

    # The variational objective

    def elbo(
        self,
        guide: GuideLike,
        params: Params,
        noise: Tensor,
        batch: Batch,
        estimate: RowEstimate | None = None,
        row_noise: Sequence[Tensor] = (),
    ) -> ELBOTerms:
        """The ELBO of a guide at given noise, in its two halves; see :mod:`.elbo`.

        Args:
            guide: The guide.
            params: Values of the guide's parameters, keys ``guide.<name>``, and of the model's,
                keys ``model.<name>``.
            noise: Noise ``[S, M]`` of S particles; ``[S, B, M]`` gives every row draws of its own,
                for the likelihood only: the KL is that of the first row's draws.
            batch: Rows of the data.
            estimate: Of the likelihood term, where it is another one; the KL is as without.
            row_noise: Its noise, beside that of the draws.
        """
        return elbo(self, guide, params, noise, batch, estimate, row_noise)

    def row_log_likelihood(
        self,
        values: Mapping[str, Tensor],
        batch: Batch,
        params: Params,
        output: Tensor | None = None,
    ) -> tuple[Tensor, float]:
        """Log densities ``[B]`` of the rows at values of all sites, and their scale, N/B.

        With ``output [B, F]`` they are those given that f in place of the network's own.
        """
        return self.row_densities(self.run(values, batch, params, output=output))

    def function_at(self, values: Mapping[str, Tensor], x: Tensor, params: Params) -> Tensor:
        """Network output f ``[N, F]`` at values of all sites."""
        return self.run(values, (x,), params).f

    # Inside

    def _run_on(
        self, values: Mapping[str, Tensor], *rows: Tensor, output: Tensor | None = None
    ) -> Evaluate:
        """The model at values of its sites, on rows x and y."""
        return self.run(values, rows, output=output)

    def _at_many_rows(self, x: Tensor, num_traced: int) -> Evaluate:
        """The model at the first rows: as many as cost little, else those that it was traced on."""
        values = self.constrain(self.initial)
        most = min(MANY, max(1, NUM_NUMBERS // max(1, x[0].numel())))
        with torch.no_grad():
            if most > num_traced:
                with contextlib.suppress(Exception):
                    return self.run(values, (x[:most],))
            return self.run(values, (x[:num_traced],))

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.device, self.dtype if value.is_floating_point() else value.dtype)
