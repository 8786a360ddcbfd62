"""A network with dropout as a Bayesian model: latent masks, weights as point estimates."""

from __future__ import annotations

from torch import Tensor, nn

from pyro_bnn.errors import ModelError
from pyro_bnn.layers.dropout import MaskedDropout
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.models.from_network import _like
from pyro_bnn.models.network import Network, require_rows
from pyro_bnn.models.torch_module import plain_copy, torch_module

WHOLE = (nn.Dropout,)
OF_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class DropoutModule(Network):
    """A copy of a network whose dropout masks are latent sites; see :func:`bayesian_dropout`.

    Attributes:
        net: The copy, in evaluation mode but for its masks.
        rates: Probability of dropping an entry, by name of the dropout layer.
    """

    def __init__(self, net: nn.Module, likelihood: Likelihood | None) -> None:
        super().__init__(likelihood)
        self.net = plain_copy(net).eval()
        self._layers = _mask_layers(self.net)
        self.rates = {layer.name: layer.rate for layer in self._layers}
        for module in self.net.modules():
            # outside of training its fused kernel would pass its dropout layers by
            module.training = isinstance(module, nn.TransformerEncoderLayer)
        _like(self.likelihood, next(self.net.parameters()))

    def train(self, mode: bool = True) -> DropoutModule:
        """Nothing: dropout is on in either mode, and the rest of the network in evaluation mode."""
        self.training = mode
        return self

    def network(self, x: Tensor) -> Tensor:
        """Sample the masks: the network's output f ``[N, F]`` at inputs x."""
        for layer in self._layers:
            layer.num_rows, layer.num_calls = x.shape[0], 0
        f = self.net(x)
        for layer in self._layers:
            # during a capture the number of rows is a symbol and must not be stored
            layer.num_rows = 0
        return require_rows(f, x)

    def describe(self) -> str:
        """The network's class and what is dropped, in a line."""
        rates = " and ".join(f"{rate:.3g}" for rate in dict.fromkeys(self.rates.values()))
        return (
            f"{type(self.net).__name__} with dropout {rates}, "
            f"{type(self.likelihood).__name__} likelihood"
        )


def bayesian_dropout(net: nn.Module, likelihood: Likelihood | None = None) -> DropoutModule:
    r"""Copy a network that has dropout layers, trained or not, for MC dropout.

    .. math:: p(y \mid x, \theta) = \int p\bigl(y \mid f_\theta(x; m)\bigr)\, p(m)\, dm

    Each pass of each dropout layer has one mask m for all rows, so that a draw is a function:
    a latent site ``<layer>.noise`` of standard normal numbers, of which the lowest are dropped. The
    weights are parameters, point estimates without a prior. The posterior of the masks is taken to
    be their prior, whose KL is 0: under a likelihood without sites of its own, what ``SVI``
    maximises is a bound on the log of p(y | x, theta) above. Everything else of the network is in
    evaluation mode.

    - A trained network: ``mc_dropout(bayesian_dropout(net, likelihood), data)``.
    - One to be trained: ``SVI(guides.AutoDropout, per_example_draws=True).run(model, data)``, with
      masks of its own for each row of a step; weight decay is the optimiser's, as
      ``optimizer=functools.partial(torch.optim.AdamW, weight_decay=...)``. Gal & Ghahramani's
      prior on weights is that of ``guides.AutoDropout`` on ``bayesian(net)`` instead.
    - In plain Pyro: ``pyro.infer.Predictive(model, num_samples=100)(x)``.

    Layers are ``torch.nn.Dropout`` and ``Dropout1d`` to ``3d``. Dropout that is called as a
    function (``torch.nn.functional.dropout``) stays off.

    Args:
        net: Any module that maps x (rows first) to ``[N, F]``. It is copied, not changed.
        likelihood: Distribution of y given f. Default: Gaussian noise with learned scale; Gal's
            tau is ``likelihoods.Normal(tau ** -0.5)``, in the units of the target.

    Returns:
        A Pyro model ``model(x, y=None)``.

    Raises:
        OptionError: If ``net`` is not a module or is a Pyro model already.
        ModelError: If it has no parameters or no dropout layer, or one that is not built here.

    References:
        Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016, arXiv:1506.02142.

    Example:
        >>> import torch
        >>> from pyro_bnn import likelihoods
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        >>> model = bayesian_dropout(net, likelihoods.Normal(0.1))
        >>> model.rates
        {'2': 0.2}
        >>> x = torch.zeros(5, 3)
        >>> model(x).shape
        torch.Size([5, 1])
    """
    return DropoutModule(torch_module(net, "fit it with guides.AutoDropout"), likelihood)


def _mask_layers(net: nn.Module) -> tuple[MaskedDropout, ...]:
    """Put masks in the place of dropout layers; one that stands in two places stays one."""
    made: dict[nn.Module, MaskedDropout] = {}
    for prefix, parent in list(net.named_modules()):
        for own, child in list(parent._modules.items()):
            name = f"{prefix}.{own}" if prefix else own
            if isinstance(child, (*WHOLE, *OF_CHANNELS)):
                of_channels = isinstance(child, OF_CHANNELS)
                if child not in made:
                    made[child] = MaskedDropout(name, child.p, of_channels=of_channels)
                parent._modules[own] = made[child]
            elif _has_other_dropout(child):
                raise ModelError(
                    f"{name} is a {type(child).__name__}, whose dropout cannot be made a mask of "
                    "all rows: set its rate to 0, or write it with torch.nn.Dropout"
                )
    if not made:
        raise ModelError(
            f"{type(net).__name__} holds no torch.nn.Dropout: give its weights priors by "
            "pyro_bnn.bayesian(net), and take guides.AutoDropout to drop their inputs"
        )
    return tuple(made.values())


def _has_other_dropout(module: nn.Module | None) -> bool:
    if isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout):
        return module.p > 0
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    return False
