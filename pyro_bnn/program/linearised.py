r"""A model whose network is linear in z, its tangent at one point.

.. math:: f(x; z) \to f(x; m) + J_x(m)\,(z - m)

What y is given f stays as the model has it, and so do the sites that f does not depend on, such as
a noise scale. The Jacobian is made once for all draws where it is small and rows do not depend on
each other; else each draw takes one product with it.

References:
    Immer, Korzepa & Bauer, "Improving predictions of Bayesian neural nets via local linearization",
    AISTATS 2021, arXiv:2008.08400.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from pyro_bnn.errors import ModelError
from pyro_bnn.priors.prior import tensors_of
from pyro_bnn.program.batched import plain_attention, without_vmap_warnings
from pyro_bnn.program.contract import explained
from pyro_bnn.program.handlers import Evaluate, latents_of_density, marked_run
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

JACOBIAN = 1 << 24  # numbers of one that is made
ROUNDING = 1e-4  # by which f of a row alone may differ from that among others


class LinearisedProgram(Program):
    """A program whose f is linearised.

    Args:
        program: The model as tensor functions.
        centre: The point m ``[P]``.

    Raises:
        ModelError: If y is not given the f that the model records.
    """

    def __init__(self, program: Program, centre: Tensor) -> None:
        self.__dict__.update(program.__dict__)  # a view of it: nothing is traced again
        self._predictive_is_checked = False
        self._tangent: tuple[Tensor, ...] = ()
        self.centre = centre.detach().to(program.initial)
        with warnings.catch_warnings():  # torch compiles rules of its own before its first product
            warnings.filterwarnings("ignore", message=".*torch.jit.script.* is deprecated")
            torch.func.jvp(torch.sin, (self.centre,), (self.centre,))
        self._values = self.constrain(self.centre)
        self._beside_f = self._check_output()

    def run_at(
        self, z: Tensor, args: Sequence[Any] | None = None, params: Params | None = None
    ) -> Evaluate:
        """The model at z ``[P]``, its f that of the tangent."""
        values, args = self.constrain(z), self.args if args is None else args
        if not self._tangent:
            x = args[0]
            at_centre, slope = cast(
                tuple[Tensor, Tensor],
                torch.func.jvp(lambda z: self._f(z, x, params), (self.centre,), (z - self.centre,)),
            )
            return self.run(values, args, params, output=at_centre + slope)
        at_centre, jacobian = self._tangent  # [N, F] and [N, F, P]
        slope = (jacobian.flatten(0, 1) @ (z - self.centre)).reshape(at_centre.shape)
        values = {k: values[k] if k in self._beside_f else v for k, v in self._values.items()}
        run = self.run(values, args, params, output=at_centre + slope)
        run.latent.clear()  # they are not those of z
        return run

    def _f(self, z: Tensor, x: Tensor, params: Params | None) -> Tensor:
        """The network's own f ``[N, F]``."""
        with plain_attention():
            return self.run(self.constrain(z), (x,), params).f

    def for_all_draws(self, x: Tensor, params: Params | None = None) -> tuple[Tensor, ...]:
        """F ``[N, F]`` and its Jacobian ``[N, F, P]`` at the point; none where that is too large.

        Nor where f of a row depends on the others, or the model cannot be batched over rows.
        """
        size = len(x) * self.num_function_outputs * self.num_latents
        if size > JACOBIAN or not self.is_batched:
            return ()

        def of_row(z: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            f = self._f(z, row.unsqueeze(0), params)[0]
            return f, f

        with torch.no_grad(), without_vmap_warnings():
            with explained(self.model, x, self.example.x):
                f = self._f(self.centre, x, params)
            try:
                jacobian, by_row = torch.func.vmap(
                    torch.func.jacrev(of_row, has_aux=True), (None, 0)
                )(self.centre, x)
            except RuntimeError:
                return ()
        scale = float(f.abs().max())
        return (f, jacobian) if torch.allclose(f, by_row, ROUNDING, ROUNDING * scale) else ()

    @contextmanager
    def reusing(self, of_rows: tuple[Tensor, ...]) -> Iterator[None]:
        """Inside, functions of these rows use what :meth:`for_all_draws` computed of them."""
        before, self._tangent = self._tangent, of_rows
        try:
            yield
        finally:
            self._tangent = before

    def _check_predictive(self, params: Params | None) -> None:
        with self.reusing(()):  # it is of other rows
            super()._check_predictive(params)

    def _check_output(self) -> frozenset[str]:
        """See whether another f makes another distribution of y.

        Returns:
            Names of the sites that it depends on beside f, such as the noise scale.

        Raises:
            ModelError: If it does not.
        """
        rows = self.example
        with torch.no_grad():
            f = self._f(self.centre, rows.x, None)
            other = f + 1 + f.abs() * torch.arange(1, f.shape[-1] + 1).to(f)
            run = marked_run(lambda values: self.run(values, rows, output=f), self._values, ())
            moved = self.run(self._values, rows, output=other)
        parts, others = (tensors_of(of.y["fn"]) for of in (run, moved))
        if all(map(torch.equal, parts, others)):  # densities are 0 where rows are masked
            raise ModelError(
                "the network cannot be linearised, as y does not depend on the recorded f: use "
                'what it returns, as in f = pyro.deterministic("f", f), or take '
                'predictive="weights"'
            )
        return latents_of_density(run.y, run) | run.sources("y", parts)
