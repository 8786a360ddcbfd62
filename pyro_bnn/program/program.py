"""A Pyro model, traced once, as pure functions over a flat unconstrained vector z ``[P]``.

Every engine, guide, prediction and diagnostic uses these functions and nothing else of the model;
they are independent of Pyro, can be batched with ``torch.func.vmap`` and captured as a graph.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.errors import DataError, ModelError, ShapeError
from pyro_bnn.handled import model_name, parameters_of
from pyro_bnn.likelihoods import match_observation
from pyro_bnn.priors.prior import tensors_of, unvalidated
from pyro_bnn.program.batched import batched_or_looped, refused_as
from pyro_bnn.program.contract import (
    CORRECTED,
    check_model,
    check_run,
    data_plate,
    explained,
)
from pyro_bnn.program.dependence import PARAMETER
from pyro_bnn.program.distributions import base_distribution, with_tensors
from pyro_bnn.program.handlers import (
    Evaluate,
    Model,
    evaluate,
    held_given_latents,
    log_prob,
    marked_run,
    scale_of_rows,
    total_log_prob,
)
from pyro_bnn.program.latents import Latents
from pyro_bnn.program.model_facts import (
    dtype_and_device,
    input_dtype,
    require_two_classes,
    store_params,
)
from pyro_bnn.program.prior import prior_draws
from pyro_bnn.program.random_state import isolated, own_generators
from pyro_bnn.program.rows import FewRows
from pyro_bnn.program.slopes import require_gradients
from pyro_bnn.program.snapshot import Snapshot
from pyro_bnn.program.terms import (
    Batch,
    ELBOTerms,
    GuideLike,
    GuideTerms,
    Params,
    Predictive,
    RowEstimate,
    with_prefix,
)
from pyro_bnn.sites import Site

logger = logging.getLogger("pyro_bnn")

T = TypeVar("T")

MANY, NUM_NUMBERS = 2_000, 100_000
"""Rows, and numbers of x, on which a model is run to see that its rows are apart."""


class Program:
    r"""A model as tensor functions.

    The coordinates are the flat unconstrained vector :math:`z \in \mathbb R^P`: site s owns
    ``z[s.start:s.stop]``, and its value is ``s.value(z)``. Densities over z include the Jacobian
    of that map. The likelihood of a batch of B rows is scaled by N/B, unless the model's plate
    scales it already.

    A latent site that ``pyro.condition(model, data)`` holds at a value has no coordinates: it is a
    constant, and its density, given the sites that are left, is part of the joint and of the prior.
    Under ``poutine.reparam(model, config)`` the sites are those that it makes.

    A z may be followed by values of parameters of the model, ``[P + Q]``: the parameters in
    ``member_params`` take these values at this draw, so that the members of a mixture have their
    own.

    Args:
        model: Pyro model ``model(x, y=None)`` that records ``f`` and observes ``"y"`` in the plate
            ``"data"``.
        x: Inputs ``[B, ...]`` of any rows of the data; only the shapes of the model's sites are
            read from them.
        y: Observations of these rows.
        num_data: Rows N of the whole data set, where these are some of them; default B.

    Raises:
        ModelError: If the model breaks the contract; the message shows the corrected lines.
        ShapeError: If x and y do not fit the model or each other.
        DataError: If all rows of the data set are of one class.
        SiteError: If a latent site is discrete or per row, or its support is not fixed.

    Attributes:
        latents: The latent sites and their prior.
        initial: A draw of z from the prior, ``[P]``.
        params: The model's point-estimated parameters by name, unconstrained, as clones: engines
            train those that require gradients and leave the user's model as it is.
        member_params: Names of the parameters that draws may carry after z.
        held_given_latents: Names of the held sites whose density depends on latent sites; then the
            prior of these is not their density given the values.
        is_batched: Whether draws are computed as one batch; False once the model refused that.
        x_dtype: Of the inputs: ``dtype``, or that of whole numbers which the model alone takes.
        likelihood_family: Class of the distribution of y.
        example: The first two rows.
        snapshot: The model's buffers, priors and modes as they were.
    """

    def __init__(self, model: Model, x: Tensor, y: Tensor, *, num_data: int | None = None) -> None:
        if x.shape[0] != y.shape[0]:
            raise ShapeError(f"x has {x.shape[0]} rows, but y has {y.shape[0]}")
        self.model = model
        self.snapshot = Snapshot(model)  # the user may change the model after the fit
        self.dtype, self.device = dtype_and_device(model, x)
        self.x_dtype = input_dtype(model, x, self.dtype, self.device)
        x, y = self.inputs(x), self._cast(y)
        self.num_data = x.shape[0] if num_data is None else num_data
        trace, y = check_model(model, x, y)
        self._y_dtype = y.dtype
        self.is_batched = True
        self._predictive_is_checked = False
        self.example = Batch(x[:2].clone(), y[:2].clone())
        self.params: dict[str, Tensor] = {}
        self.member_params: tuple[str, ...] = ()
        for name, parameter in parameters_of(model).items():
            trainable = parameter.requires_grad  # one that the user froze stays frozen
            self.params[name] = parameter.detach().clone().requires_grad_(trainable)
        self._store = store_params(model, trace.param_messages)
        for name, (value, _) in self._store.items():
            self.params[name] = value.clone().requires_grad_()
        initial = torch.cat(
            [site.flatten(trace.messages[site.name]["value"]) for site in trace.sites]
        )
        self.initial = initial.detach().to(self.dtype)
        self.latents = Latents(trace.sites)
        self._writes_rows = torch.is_inference_mode_enabled()  # where no versions are counted
        with own_generators():
            row = x[:1].clone(), y[:1].clone()
            versions = [] if self._writes_rows else [value._version for value in row]
            values = self.constrain(self.initial)
            probe = marked_run(
                lambda values: self._run_at(values, *row, self.params),
                values,
                self.params.values(),
            )
            self._writes_rows |= any(v._version > n for v, n in zip(row, versions, strict=False))
            many = self._at_many_rows(values, x, len(cast(Tensor, trace.f)))
            check_run(probe, many)
            if data_plate(probe.observed).size == 1:  # not of a size of its own
                run = partial(self._run_at, params=self.params)
                few = FewRows(run, self.constrain, self.initial, x, y)
                few.require_apart(model, probe, many)
                require_gradients(few)
                few.warn_of_probabilities()
            self.held_given_latents = held_given_latents(probe)
            self.latents.find_closed_forms(probe)
            self._priors_are_apart = all(probe.sources(s.name) <= {PARAMETER} for s in self.sites)
        self.likelihood_family: type = type(base_distribution(probe.observed["fn"]))
        self.num_function_outputs = cast(Tensor, probe.f).shape[1]
        if num_data is None:  # all rows of the data set
            require_two_classes(y, self.likelihood_family)

    def prepare(self, guide: GuideLike) -> None:
        """Make ready for the draws of a guide, before its ELBO is captured in a graph."""
        self.member_params = guide.member_params
        self.latents.closed_forms(guide.cauchy_sites, guide.marginal_family)

    # Coordinates

    @property
    def sites(self) -> tuple[Site, ...]:
        """The latent sites, in the order of the model's execution."""
        return self.latents.sites

    @property
    def num_latents(self) -> int:
        """Length P of z."""
        return self.latents.num_latents

    def constrain(self, z: Tensor) -> dict[str, Tensor]:
        """Values ``[..., *shape]`` of all sites, by name, out of z ``[..., P]``."""
        return self.latents.constrain(z)

    def unconstrain(self, values: Mapping[str, Tensor]) -> Tensor:
        """Flat z ``[..., P]`` of the sites' values ``[..., *shape]``.

        Raises:
            SiteError: If a site is missing or has another shape.
        """
        return self.latents.unconstrain(
            {k: torch.as_tensor(v, dtype=self.dtype, device=self.device) for k, v in values.items()}
        )

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs in the dtype and on the device of the model.

        Raises:
            DataError: If the model takes whole numbers alone and these are not.
        """
        is_rounded = x.is_floating_point() and not self.x_dtype.is_floating_point
        if is_rounded and bool((x != x.floor()).any()):
            raise DataError(
                "x holds fractions, but the model takes whole numbers, to which it was fitted: "
                "pass the numbers that its embedding looks up"
            )
        # vmap refuses the layout of images whose channels came last
        return x.to(device=self.device, dtype=self.x_dtype).contiguous()

    def batch(self, x: Tensor, y: Tensor) -> Batch:
        """Rows in the program's dtype and device, y in the shape the likelihood takes.

        Raises:
            ShapeError: If y does not fit the likelihood.
            DataError: If values of y lie outside the likelihood's support, such as a class label
                that is not 0..C-1.
        """
        x, y = self.inputs(x), self._cast(y)
        fn = self._run(self.initial, x[:1], None, self.params).observed["fn"]
        fn = fn.expand(torch.Size([x.shape[0]]))
        y = match_observation(y, fn)
        if not bool((inside := fn.support.check(y)).all()):
            outside = y[~inside].unique()[:5].tolist()
            raise DataError(
                f"y holds {', '.join(map(str, outside))}, outside the support of the model's "
                f"{self.likelihood_family.__name__} likelihood, {fn.support}"
            )
        # captured graphs expect this layout
        return Batch(x, y.to(self._y_dtype).contiguous())

    # Densities

    def log_joint(
        self, z: Tensor, batch: Batch, params: Params | None = None, *, jacobian: bool = True
    ) -> Tensor:
        """Log p(y, z | x) ``[...]`` of z ``[..., P]``, likelihood scaled by N/B.

        With ``jacobian=False``, the density of the sites' values instead, which MAP maximises.
        """

        def of(run: Evaluate, z: Tensor) -> Tensor:
            rows, scale = self._log_likelihood(run)
            return rows.sum() * scale + self._log_prior(run, z, jacobian=jacobian)

        return self._at(z, *batch, params, of)

    def log_densities(
        self, z: Tensor, batch: Batch, params: Params | None = None
    ) -> tuple[Tensor, Tensor]:
        """The two parts of :meth:`log_joint`, ``[...]`` each: likelihood scaled by N/B, prior."""

        def of(run: Evaluate, z: Tensor) -> tuple[Tensor, Tensor]:
            rows, scale = self._log_likelihood(run)
            return rows.sum() * scale, self._log_prior(run, z)

        return self._at(z, *batch, params, of)

    def log_prior(self, z: Tensor, x: Tensor, params: Params | None = None) -> Tensor:
        """Log p(z) ``[...]`` of z ``[..., P]``; x gives the model's row shapes only.

        Of a model under ``pyro.condition``, the density of z and of the values together.
        """
        return self._at(z, x[:1], None, params, self._log_prior)

    def log_priors(self, z: Tensor, x: Tensor, params: Params | None = None) -> Tensor:
        """Log density ``[..., K]`` of the values of each of the K sites, without Jacobians."""
        return self._at(z, x[:1], None, params, lambda run, _: self.latents.log_priors(run))

    def log_likelihood(self, z: Tensor, batch: Batch, params: Params | None = None) -> Tensor:
        """Log p(y_n | x_n, z) ``[..., N]`` of z ``[..., P]``, a row at a time, unscaled."""
        return self._at(z, *batch, params, lambda run, _: log_prob(run.observed))

    def log_likelihood_terms(self, z: Tensor, batch: Batch, params: Params | None = None) -> Tensor:
        """The same ``[..., N]`` times the scale of ``poutine.scale``: the rows' part of log p."""

        def of(run: Evaluate, _: Tensor) -> Tensor:
            rows, scale = self._log_likelihood(run)
            return rows * (scale * rows.shape[0] / self.num_data)

        return self._at(z, *batch, params, of)

    def log_likelihood_given(
        self, f: Tensor, z: Tensor, batch: Batch, params: Params | None = None
    ) -> Tensor:
        """Log p(y | f, z) ``[]`` of a batch, scaled by N/B, at z ``[P]`` and f ``[B, F]``."""
        own, own_params = self._split(z, params)
        run = self._run_at(self.constrain(own), *batch, own_params, output=f)
        rows, scale = self._log_likelihood(run)
        return rows.sum() * scale

    def function(self, z: Tensor, x: Tensor, params: Params | None = None) -> Tensor:
        """Network output f ``[..., N, F]`` of z ``[..., P]``."""
        with explained(self.model, x, self.example.x):
            return self._at(z, x, None, params, lambda run, _: cast(Tensor, run.f))

    def for_all_draws(self, x: Tensor, params: Params | None = None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """What is computed of rows x once for all draws, ``[N, ...]`` each: nothing."""
        return ()

    @contextmanager
    def given(self, of_rows: tuple[Tensor, ...]) -> Iterator[None]:  # noqa: ARG002
        """Take what :meth:`for_all_draws` gave for these rows."""
        yield

    # The distribution of y

    def predictive(self, z: Tensor, x: Tensor, params: Params | None = None) -> Predictive:
        """Network output and distribution of y at x ``[N, ...]`` given each z ``[S, P]``.

        Raises:
            ModelError: If the distribution of y cannot be batched over draws.
            ShapeError: If the model fails on x, whose columns are not those it was fitted to.
        """
        f, *values = self.predictive_tensors(z, x, params)
        return Predictive(f, with_tensors(self.observed(z[0], x, params)[0], values, z.shape[0]))

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
        with explained(self.model, x, self.example.x):
            return self._predictive_tensors(z, x, params)

    def _predictive_tensors(
        self, z: Tensor, x: Tensor, params: Params | None
    ) -> tuple[Tensor, ...]:
        def tensors(run: Evaluate, _: Tensor) -> tuple[Tensor, ...]:
            return (cast(Tensor, run.f), *tensors_of(unvalidated(run.observed["fn"])))

        return self._at(z, x, None, params, tensors)

    def observed(
        self, z: Tensor, x: Tensor, params: Params | None = None
    ) -> tuple[Distribution, bool]:
        """Distribution of y ``[N]`` at one z ``[P]``, and whether rows of it are masked."""
        with explained(self.model, x, self.example.x):
            msg = self._at(z, x, None, params, lambda run, _: run.observed)
        return unvalidated(msg["fn"]), msg["mask"] is not None

    def row_weights(self, z: Tensor, x: Tensor, params: Params | None = None) -> Tensor | None:
        """What a tensor of ``poutine.scale`` weights the rows by ``[N]``; None without one."""
        msg = self._at(z, x, None, params, lambda run, _: run.observed)
        _, weights = scale_of_rows(msg)
        return None if weights is None else weights.expand(msg["fn"].batch_shape)

    def _check_predictive(self, params: Params | None) -> None:
        """Compare the batched distribution of y with the model's own, a draw at a time."""
        x, y = self.example
        z = torch.stack([self.initial, 0.9 * self.initial, 1.1 * self.initial])  # S differs from N

        def density(run: Evaluate, _: Tensor) -> Tensor:  # of rows that are masked, too
            found: Tensor = unvalidated(run.observed["fn"]).log_prob(run.observed["value"])
            return found

        with torch.no_grad():
            expected = torch.stack([self._at(row, x, y, params, density) for row in z])
            try:
                _, *values = self._predictive_tensors(z, x, params)
                fn, _ = self.observed(z[0], x, params)
                actual = with_tensors(fn, values, len(z)).log_prob(y)
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

    def prior_draws(
        self, num_draws: int, x: Tensor, seed: int = 0, params: Params | None = None
    ) -> Tensor:
        """Draws z ``[S, P]`` from the prior; x ``[1, ...]`` gives the model's row shapes only."""

        def run() -> Evaluate:
            return self._run(None, x, None, params)

        with isolated(seed), torch.no_grad():
            apart = self._priors_are_apart and x.device.type == "cpu"
            rows = prior_draws(run, num_draws, apart=apart)
        flat = [torch.cat([s.flatten(values[s.name]) for s in self.sites]) for values in rows]
        return torch.stack(flat).detach().to(self.dtype)

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
        r"""The ELBO of a guide at given noise, in its two halves.

        .. math:: \tfrac{N}{B} \sum_{b} E_q \log p(y_b \mid x_b, z)
                  - \mathrm{KL}\bigl(q(z) \,\|\, p(z)\bigr)

        The KL is summed over all of z, once per data set. Its entropy is in closed form where the
        guide has it, the expected log prior where the marginals of q and the prior are a pair of
        families with a closed form; the rest is a Monte Carlo average over the same draws. For a
        guide without density (a point estimate) the second half is minus the log prior density of
        the values.

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
        own = with_prefix(params, "guide.")
        model = {**self.params, **with_prefix(params, "model.")}  # frozen ones keep their values
        by_row = noise.ndim == 3
        q = guide.terms(own, noise[:, 0] if by_row else noise)
        # the likelihood has draws of its own, apart from the KL's
        is_apart = by_row or estimate is not None
        seen = Batch(batch.x[:1], batch.y[:1]) if is_apart else batch
        weights = q.weights if estimate is None else estimate.kl_weights
        jacobian = guide.has_log_prob
        rows, scale, log_prior, log_factors = self._at_draws(q, weights, seen, model, jacobian)
        if estimate is not None:
            rows, scale = estimate.rows(q, (noise, *row_noise), batch, model, own)
        elif by_row:
            rows, scale = self._at_draws_of_each_row(guide, own, noise, batch, model)
        kl, sampled = self._kl(q, weights, log_prior)
        if q.weights is None:
            expected = guide.reduce_log_likelihood(rows, scale)
        else:
            expected = (q.weights @ rows.sum(-1)) * scale
        return ELBOTerms(expected, kl, sampled, log_factors)

    def _at_draws(
        self, q: GuideTerms, weights: Tensor | None, batch: Batch, params: Params, jacobian: bool
    ) -> tuple[Tensor, float, Tensor, Tensor | None]:
        """The model at the D draws of a guide.

        Returns:
            Log densities ``[D, B]`` of the rows, their scale N/B, the mean over draws of the log
            prior, but for what is in closed form, and that of ``pyro.factor`` statements, or None.
        """
        blocks = None  # None: the whole prior is sampled
        if q.marginals is not None:
            blocks = self.latents.closed_forms(q.marginals.cauchy, q.marginals.others).sampled
        has_factors, scale = False, 1.0

        def one(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            nonlocal has_factors, scale
            z, own_params = self._split(z, params)
            run = self._run(z, *batch, own_params)
            prior = self._log_prior(run, z, jacobian=jacobian, blocks=blocks)
            has_factors = bool(run.factors)
            rows, scale = self._log_likelihood(run)
            return rows, prior, total_log_prob(run.factors, like=z)

        if len(q.z) == 1:
            rows, log_prior, log_factors = one(q.z.squeeze(0))
            rows = rows.unsqueeze(0)  # [D, B]
        else:
            rows, *of_draws = self._vmap(one, q.z)
            log_prior, log_factors = (_mean(values, weights) for values in of_draws)
        return rows, scale, log_prior, log_factors if has_factors else None

    def _kl(
        self, q: GuideTerms, weights: Tensor | None, log_prior: Tensor
    ) -> tuple[Tensor, Tensor]:
        """KL(q || p) ``[]`` out of the sampled part of the log prior, and its own sampled part."""
        sampled = -log_prior
        if q.marginals is not None:
            log_prior = log_prior + self.latents.expected_log_prior(q.marginals)
        if q.entropy is not None:
            kl = -q.entropy - log_prior
        elif q.log_prob is not None:
            kl = sampled = _mean(q.log_prob, weights) - log_prior
        else:
            kl = -log_prior
        return (kl if q.kl_scale == 1 else q.kl_scale * kl), sampled

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
        return self._log_likelihood(self._run_at(values, *batch, params, output=output))

    def function_at(self, values: Mapping[str, Tensor], x: Tensor, params: Params) -> Tensor:
        """Network output f ``[N, F]`` at values of all sites."""
        return cast(Tensor, self._run_at(values, x, None, params).f)

    def _at_draws_of_each_row(
        self, guide: GuideLike, own: Params, noise: Tensor, batch: Batch, params: Params
    ) -> tuple[Tensor, float]:
        """Log densities ``[D, B]`` of each row at draws of its own, of noise ``[S, B, M]``; N/B."""
        z = guide.terms(own, noise.flatten(0, 1), density=False).z
        z = z.unflatten(0, (*noise.shape[:2], -1)).transpose(1, 2).flatten(0, 1)  # [D, B, P]
        scale = 1.0

        def one(z: Tensor, x: Tensor, y: Tensor) -> Tensor:
            nonlocal scale
            z, own_params = self._split(z, params)
            run = self._run(z, x.unsqueeze(0), y.unsqueeze(0), own_params)
            rows, scale = self._log_likelihood(run, num_rows=batch.x.shape[0])
            return rows.squeeze(0)

        with refused_as(
            "draws for each row need a model that can be batched over draws and rows, and this one "
            "cannot: leave per_example_draws at False"
        ):
            rows = torch.func.vmap(lambda draw: torch.func.vmap(one)(draw, *batch))(z)
        return rows, scale

    def non_finite_terms(self, z: Tensor, batch: Batch, params: Params | None = None) -> list[str]:
        """Names of the sites, ``"y"`` included, whose value or density is not finite at z."""
        messages = self._at(z, *batch, params, lambda run, _: {**run.latent, "y": run.observed})
        return [
            name
            for name, msg in messages.items()
            if not (msg["value"].isfinite().all() and log_prob(msg).isfinite().all())
        ]

    # Inside

    def _at(
        self,
        z: Tensor,
        x: Tensor,
        y: Tensor | None,
        params: Params | None,
        of: Callable[[Evaluate, Tensor], T],
    ) -> T:
        """What is made of the model at z ``[P]``, or at each of several draws ``[S, P]``."""

        def one(draw: Tensor) -> T:
            own, own_params = self._split(draw, params)
            return of(self._run(own, x, y, own_params), own)

        return self._vmap(one, z) if z.ndim == 2 else one(z)

    def _run(
        self, z: Tensor | None, x: Tensor, y: Tensor | None, params: Params | None
    ) -> Evaluate:
        """The model evaluated at z ``[P]``, or at a draw from its prior."""
        values = dict.fromkeys(s.name for s in self.sites) if z is None else self.constrain(z)
        return self._run_at(values, x, y, params)

    def _run_at(
        self,
        values: Mapping[str, Tensor | None],
        x: Tensor,
        y: Tensor | None,
        params: Params | None,
        output: Tensor | None = None,
    ) -> Evaluate:
        """The model evaluated at values of its sites; None draws one from its prior.

        With ``output`` y is given that in place of the network's own f.
        """
        params = self.params if params is None else params
        rows = (x,) if y is None else (x, y)
        with self.snapshot.held():
            return evaluate(
                self.model,
                values,
                *([value.clone() for value in rows] if self._writes_rows else rows),
                params={**self.snapshot.buffers, **params},
                store=self._store,
                output=output,
            )

    def _at_many_rows(self, values: Mapping[str, Tensor], x: Tensor, num_rows: int) -> Evaluate:
        """The model at the first rows: as many as cost little, else those that it was traced on."""
        most = min(MANY, max(1, NUM_NUMBERS // max(1, x[0].numel())))
        with torch.no_grad():
            if most > num_rows:
                with contextlib.suppress(Exception):
                    return self._run_at(values, x[:most], None, self.params)
            return self._run_at(values, x[:num_rows], None, self.params)

    def _split(self, z: Tensor, params: Params | None) -> tuple[Tensor, Params | None]:
        """Z ``[P]`` of a draw ``[P + Q]``, and the parameters with the Q values that it carries."""
        if len(z) == self.num_latents:
            return z, params
        params = dict(self.params if params is None else params)
        start = self.num_latents
        for name in self.member_params:
            stop = start + params[name].numel()
            params[name] = z[start:stop].reshape(params[name].shape)
            start = stop
        return z[: self.num_latents], params

    def _log_prior(self, run: Evaluate, z: Tensor, **how: Any) -> Tensor:
        """Log density ``[]`` of z ``[P]`` and of the values that other sites are held at."""
        log_prior = self.latents.log_prior(run, z, **how)
        return log_prior + total_log_prob(run.given, like=z) if run.given else log_prior

    def _log_likelihood(self, run: Evaluate, num_rows: int | None = None) -> tuple[Tensor, float]:
        """Log densities ``[B]`` of the rows of a run, and their scale, N/B by default.

        Args:
            run: The model, evaluated.
            num_rows: Rows B of the batch where the run holds one of them; default those of the run.

        Raises:
            ModelError: If the run holds one row and the plate scales by its own size.
        """
        msg = run.observed
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

    def _vmap(self, fn: Callable[[Tensor], T], z: Tensor) -> T:
        """Batch ``fn`` over draws, or loop over them where the model cannot be batched."""
        found, reason = batched_or_looped(fn, z, as_batch=self.is_batched)
        if reason:
            self.is_batched = False
            logger.warning(
                "%s cannot be batched over draws and runs draw by draw, which is slower: %s",
                model_name(self.model),
                reason,
            )
        return found

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.device, self.dtype if value.is_floating_point() else value.dtype)


def _mean(of_draws: Tensor, weights: Tensor | None) -> Tensor:
    """Mean over draws ``[D, ...]`` of given or equal weights."""
    return of_draws.mean(0) if weights is None else weights @ of_draws
