"""What the models share: f recorded, y observed given f; their likelihood, priors and layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_bnn.checks import check_positive_int
from pyro_bnn.errors import ModelError, OptionError, ShapeError, SiteError, UnknownNameError
from pyro_bnn.likelihoods import Likelihood, as_columns
from pyro_bnn.likelihoods import Normal as NormalLikelihood
from pyro_bnn.models.outputs import record_output
from pyro_bnn.models.torch_module import plain_copy
from pyro_bnn.priors import Normal as NormalPrior
from pyro_bnn.priors import Priors, match_priors
from pyro_bnn.priors.prior import AnyPrior

Activation: TypeAlias = Callable[[Tensor], Tensor]

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": torch.relu,
    "leaky_relu": nn.functional.leaky_relu,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "silu": nn.functional.silu,
    "identity": lambda h: h,
}


class Network(PyroModule):
    """A Bayesian network: weights are sampled, f is the network's output, y is drawn given f.

    A subclass has ``network(x)``, which samples the weights and gives f ``[N, F]``.

    Args:
        likelihood: Distribution of y given f; None for Gaussian noise with learned scale.

    Raises:
        OptionError: If it is not a likelihood of this package.
    """

    num_inputs: int | None = None
    """Columns of x, where x is ``[N, I]``."""

    def __init__(self, likelihood: Likelihood | None) -> None:
        super().__init__()
        self.likelihood = own_likelihood(NormalLikelihood() if likelihood is None else likelihood)

    def network(self, x: Tensor) -> Tensor:
        """Sample the weights: the network's output f ``[N, F]`` at inputs x."""
        raise NotImplementedError(f"{type(self).__name__} has no network(x)")

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample the weights, record f, and sample or observe y.

        Args:
            x: Inputs, as the network takes them; the first dimension counts rows.
            y: Observations ``[N]`` or ``[N, O]``, or None to sample them.

        Returns:
            y, sampled where it was None.

        Raises:
            ModelError: If the network does not map the rows of x to ``[N, F]``.
            ShapeError: If x has not the columns, or the images, that the network takes.
        """
        if self.num_inputs is not None:
            require_columns(x, self.num_inputs)
        f = record_output(self, self.network, x)
        return cast(Tensor, self.likelihood(f, y))


class Perceptron(Network):
    """Fully connected layers of some kind, with ``activation``, if it has one, between them.

    Args:
        num_inputs: Number of input columns I.
        num_outputs: Number of targets O.
        hidden: Units of each hidden layer.
        likelihood: As in :class:`Network`.

    Attributes:
        sizes: Units from the inputs over the hidden layers to the outputs F of the likelihood.

    Raises:
        OptionError: If a size is not a positive integer.
    """

    num_inputs: int
    layers: nn.ModuleList

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        hidden: Sequence[int],
        likelihood: Likelihood | None,
    ) -> None:
        super().__init__(likelihood)
        for size in (num_inputs, num_outputs, *hidden):
            check_positive_int("the size of a layer", size)
        self.num_inputs = num_inputs
        outputs = self.likelihood.num_function_outputs(num_outputs)
        self.sizes = (num_inputs, *hidden, outputs)

    def network(self, x: Tensor) -> Tensor:
        """Sample the weights: the network's output f ``[N, F]`` at inputs x ``[N, I]``."""
        activation = getattr(self, "activation", ACTIVATIONS["identity"])
        h = x
        for i, layer in enumerate(self.layers):
            h = layer(activation(h) if i else h)  # [..., units of the layer]
        return h


def own_likelihood(likelihood: Likelihood) -> Likelihood:
    """A copy for one model, so that two models never share a likelihood's state.

    Raises:
        OptionError: If it is not a likelihood of this package.
    """
    if not isinstance(likelihood, Likelihood):
        raise OptionError(
            f"likelihood is a pyro_bnn.likelihoods object, for example likelihoods.Normal(), not "
            f"{likelihood!r}"
        )
    return copy.deepcopy(likelihood)


def priors_of_all(prior: Priors | None, names: Sequence[str], model: nn.Module) -> Any:
    """The prior of every weight of a model, by name; None for Gaussians with fan-in scale.

    Raises:
        SiteError: If the patterns leave a weight without a prior, or one matches nothing.
    """
    priors: dict[str, AnyPrior] = match_priors(NormalPrior() if prior is None else prior, names)
    if missing := [name for name in names if name not in priors]:
        raise SiteError(
            f"no prior pattern matches {', '.join(missing)}; every weight of the "
            f"{type(model).__name__} has a prior: add "
            '{"*": pyro_bnn.priors.Normal()} as the last pattern'
        )
    return priors


def activation_function(activation: str | Activation) -> Activation:
    """The activation of a name, or a callable as it is, a copy of a module.

    Raises:
        OptionError: If it is a class instead of an instance.
        UnknownNameError: If the name is not known; suggests the nearest.
    """
    if isinstance(activation, type):
        raise OptionError(
            f"activation is the class {activation.__name__}, but a function of one tensor is "
            f"expected: pass an instance, {activation.__name__}()"
        )
    if isinstance(activation, nn.Module):  # its parameters become the model's own
        return plain_copy(activation)
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise UnknownNameError("activation", str(activation), ACTIVATIONS)
    return ACTIVATIONS[activation]


def module_list(modules: Iterable[nn.Module]) -> nn.ModuleList:
    """Modules in a list that tells Pyro their names."""
    make: Any = PyroModule[nn.ModuleList]  # a class made on the fly
    return cast(nn.ModuleList, make(modules))


def require_columns(x: Tensor, num_inputs: int) -> None:
    """Check that x is ``[N, num_inputs]``.

    Raises:
        ShapeError: If it is not.
    """
    if x.ndim != 2 or x.shape[1] != num_inputs:
        raise ShapeError(f"x has shape {tuple(x.shape)}, but the model takes [N, {num_inputs}]")


def require_rows(f: Any, x: Tensor) -> Tensor:
    """The output of a torch module as ``[N, F]``, one row for each row of x.

    Raises:
        ModelError: If it is not.
    """
    if not isinstance(f, Tensor):
        first = "0" if isinstance(f, tuple | list) else ""
        if isinstance(f, Mapping):
            first = repr(next(iter(f), "f"))
        part = f", as in net(x)[{first}]" if first else ""
        raise ModelError(
            f"the network returns a {type(f).__name__}, but f is one tensor [N, F]: put it into a "
            f"module whose forward returns one{part}"
        )
    columns = as_columns(f)
    if columns.ndim != 2 or columns.shape[0] != x.shape[0]:
        raise ModelError(
            f"the network maps x of shape {tuple(x.shape)} to {tuple(f.shape)}, but f is [N, F], "
            "one row for each row of x, or [N]; end the network with torch.nn.Flatten() or a "
            "squeeze of the extra dimensions"
        )
    return columns
