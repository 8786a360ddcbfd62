r"""A model whose network is linear in z, its tangent at one point.

.. math:: f(x; z) \to f(x; m) + J_x(m)\,(z - m)

What y is given f stays as the model has it, and so do the sites that f does not depend on, such as
a noise scale. The Jacobian is never made: each draw takes one product with it.

References:
    Immer, Korzepa & Bauer, "Improving predictions of Bayesian neural nets via local linearization",
    AISTATS 2021, arXiv:2008.08400.
"""

from __future__ import annotations

import warnings
from typing import cast

import torch
from torch import Tensor

from pyro_bnn.errors import ModelError
from pyro_bnn.program.handlers import Evaluate
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params


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
        self.centre = centre.detach().to(program.initial)
        with warnings.catch_warnings():  # torch compiles rules of its own before its first product
            warnings.filterwarnings("ignore", message=".*torch.jit.script.* is deprecated")
            torch.func.jvp(torch.sin, (self.centre,), (self.centre,))
        self._check_output()

    def _run(
        self, z: Tensor | None, x: Tensor, y: Tensor | None, params: Params | None
    ) -> Evaluate:
        if z is None:
            return super()._run(z, x, y, params)

        def f(z: Tensor) -> Tensor:
            return cast(Tensor, self._run_at(self.constrain(z), x, None, params).f)

        at_centre, slope = cast(
            tuple[Tensor, Tensor], torch.func.jvp(f, (self.centre,), (z - self.centre,))
        )
        return self._run_at(self.constrain(z), x, y, params, output=at_centre + slope)

    def _check_output(self) -> None:
        """See whether another f makes another distribution of y."""
        x, y = self.example
        values = self.constrain(self.centre)
        with torch.no_grad():
            f = cast(Tensor, self._run_at(values, x, None, None).f)
            own, other = (
                self._log_likelihood(self._run_at(values, x, y, None, output=output))[0]
                for output in (f, f + 1 + f.abs() * torch.arange(1, f.shape[-1] + 1).to(f))
            )
        if torch.equal(own, other):
            raise ModelError(
                "the network cannot be linearised, as y does not depend on the recorded f: use "
                'what it returns, as in f = pyro.deterministic("f", f), or take '
                'predictive="weights"'
            )
