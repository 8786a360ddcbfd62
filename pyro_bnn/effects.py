"""The one place where Pyro's effect handlers run: check a model, find its sites, evaluate it.

Downstream of this module (and of ``program.py``, which wraps it) a model is a set of pure
functions of tensors.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from pyro.distributions.util import scale_and_mask
from pyro.ops.provenance import detach_provenance
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import biject_to, constraints, transform_to

from pyro_bnn.errors import ModelError, ShapeError, SiteError
from pyro_bnn.handled import module_of, unhandled
from pyro_bnn.likelihoods import as_columns, match_observation

logger = logging.getLogger("pyro_bnn")

Model = Callable[..., Any]

ENUMERATION = "https://pyro.ai/examples/enumeration.html"

_COMPOSITE = (torch.distributions.Distribution, torch.distributions.Transform)

CORRECTED = """
    f = pyro.deterministic("f", f)                       # f [N, F], the network output
    with pyro.plate("data", x.shape[0]):
        return pyro.sample("y", dist.Normal(f, 0.1).to_event(1), obs=y)"""


@dataclass(frozen=True)
class Site:
    """One latent site of a model, and its slice of the flat unconstrained vector z.

    Attributes:
        name: Name of the sample site.
        shape: Shape of the value, batch and event together.
        support: Constraint that the value obeys.
        start: First entry of the site in z.
        stop: One past its last entry in z.
        unconstrained_shape: Shape of the unconstrained value.
    """

    name: str
    shape: torch.Size
    support: constraints.Constraint
    start: int
    stop: int
    unconstrained_shape: torch.Size

    @property
    def is_real(self) -> bool:
        """Whether the unconstrained value is the value itself."""
        return is_real(self.support)

    def unconstrained(self, z: Tensor) -> Tensor:
        """The site's unconstrained value ``[..., *shape]`` out of z ``[..., P]``."""
        return self._shaped(z[..., self.start : self.stop])

    def value(self, z: Tensor) -> Tensor:
        """The site's value ``[..., *shape]`` out of z ``[..., P]``."""
        return self.value_of(z[..., self.start : self.stop])

    def value_of(self, entries: Tensor) -> Tensor:
        """The site's value ``[..., *shape]`` out of its own entries of z."""
        u = self._shaped(entries)
        return u if self.is_real else cast(Tensor, biject_to(self.support)(u))

    def _shaped(self, entries: Tensor) -> Tensor:
        return entries.reshape((*entries.shape[:-1], *self.unconstrained_shape))

    def log_abs_det_jacobian(self, z: Tensor) -> Tensor:
        r""":math:`\log|\partial\,\mathrm{value}/\partial z|` ``[...]`` of z ``[..., P]``."""
        return self.log_abs_det_jacobian_of(z[..., self.start : self.stop])

    def log_abs_det_jacobian_of(self, entries: Tensor) -> Tensor:
        """The same, out of the site's own entries of z."""
        if self.is_real:
            return entries.new_zeros(entries.shape[:-1])
        u = self._shaped(entries)
        transform = biject_to(self.support)
        log_det = transform.log_abs_det_jacobian(u, transform(u))
        return cast(Tensor, log_det.reshape((*entries.shape[:-1], -1)).sum(-1))

    def flatten(self, value: Tensor) -> Tensor:
        """The unconstrained entries ``[..., stop - start]`` of values ``[..., *shape]``."""
        batch = value.shape[: value.ndim - len(self.shape)]
        u = value if self.is_real else biject_to(self.support).inv(value)
        return u.reshape((*batch, self.stop - self.start))


@dataclass(frozen=True)
class ModelTrace:
    """What one look at a model says: its latent sites, a draw of them, its parameters.

    Attributes:
        sites: Latent sites in the order of the model's execution.
        messages: Pyro's message (``fn``, ``value``, ...) of each latent site, from a prior draw.
        param_messages: Messages of explicit ``pyro.param`` statements.
    """

    sites: tuple[Site, ...]
    messages: Mapping[str, Mapping[str, Any]]
    param_messages: Mapping[str, Mapping[str, Any]]


@contextmanager
def isolated(seed: int | None = None) -> Iterator[None]:
    """Leave the caller's random state, parameter store and Pyro settings as they were.

    Args:
        seed: Seed of torch's global generators inside, or None to leave them at their state.
    """
    with torch.random.fork_rng(), empty_store():
        if seed is not None:
            torch.manual_seed(seed)
        yield


@contextmanager
def empty_store() -> Iterator[None]:
    """Put Pyro's parameters aside, and back, as the caller's trace of them has them."""
    store = pyro.get_param_store()
    shown = [value for _, value in store.named_parameters() if hasattr(value, "unconstrained")]
    try:
        with store.scope():
            yield
    finally:
        for value in shown:  # which the store's scope takes from them
            value.unconstrained = weakref.ref(value)


@contextmanager
def with_gradients() -> Iterator[None]:
    """Record gradients, which show what depends on what, also under the caller's ``no_grad``."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield


@contextmanager
def still_frozen(model: Model) -> Iterator[None]:
    """Keep frozen what the user froze: Pyro's store sets ``requires_grad`` of what it is shown."""
    module = module_of(model)
    parameters = () if module is None else module.parameters()
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad = False


def derived_seed(seed: int, stream: int) -> int:
    """Seed of a random stream that is independent of that of ``seed`` itself."""
    state = np.random.SeedSequence([seed % 2**64, stream]).generate_state(1, np.uint64)
    return int(state[0])


@contextmanager
def _without_registration_warnings() -> Iterator[None]:
    """Pyro warns of parameters that need no gradient; here all are given from outside."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was not registered in the param store.*")
        yield


@contextmanager
def without_validation() -> Iterator[None]:
    """Switch off the checks of Pyro and torch; ``pyro.validation_enabled`` forgets torch's flag."""
    validates = torch.distributions.Distribution._validate_args
    try:
        with pyro.validation_enabled(is_validate=False):
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(validates)


def trace_model(
    model: Model, *args: Any, leave_enumerated: bool = False, **kwargs: Any
) -> ModelTrace:
    """Run a model once and list its latent sites; it draws from torch's global generator.

    Args:
        model: Pyro model.
        args: Its arguments.
        leave_enumerated: Whether to leave out sites with ``infer={"enumerate": ...}``.
        kwargs: Its keyword arguments.

    Raises:
        SiteError: If a latent site is discrete, or the model has none.
    """
    quiet = _without_registration_warnings()
    with poutine.block(), empty_store(), still_frozen(model), quiet:
        trace = poutine.trace(model).get_trace(*args, **kwargs)
    nodes: Mapping[str, Any] = trace.nodes
    sites: list[Site] = []
    start = 0
    for name in trace.stochastic_nodes:
        node = nodes[name]
        if node["infer"].get("is_auxiliary") or type(node["fn"]).__name__ == "_Subsample":
            continue
        if name == "y" and _in_rows(node):  # sampled because y was None
            continue
        fn = node["fn"]
        if leave_enumerated and node["infer"].get("enumerate"):
            continue
        _check_support(name, fn)
        u = biject_to(fn.support).inv(node["value"])
        sites.append(Site(name, node["value"].shape, fn.support, start, start + u.numel(), u.shape))
        start += u.numel()
    if not sites:
        raise SiteError(
            "the model has no latent sample site: give its weights priors, for example with "
            "pyro_bnn.bayesian(net)"
        )
    messages = {site.name: nodes[site.name] for site in sites}
    params = {name: node for name, node in nodes.items() if node["type"] == "param"}
    return ModelTrace(tuple(sites), messages, params)


def _check_support(name: str, fn: Distribution) -> None:
    """Check that there is a map from unconstrained numbers onto the support of a latent site."""
    kind = type(base_distribution(fn)).__name__
    if not fn.has_rsample and _base(fn.support).is_discrete:
        raise SiteError(
            f"the latent site {name!r} is discrete ({kind}); sum it out in the model, as by "
            "pyro.distributions.MixtureSameFamily, since every latent site has to be continuous. "
            'Guides leave out a site with infer={"enumerate": "parallel"}, which '
            f"pyro.infer.TraceEnum_ELBO sums out: {ENUMERATION}"
        )
    try:
        biject_to(fn.support)
    except NotImplementedError as error:
        if type(_base(fn.support)) is type(dist.constraints.sphere):
            raise SiteError(
                f"the latent site {name!r} lies on a sphere ({kind}), onto which no numbers map "
                "one to one: take a ProjectedNormal, and fit the model poutine.reparam(model, "
                f"{{{name!r}: ProjectedNormalReparam()}}), of pyro.infer.reparam"
            ) from error
        raise SiteError(
            f"the latent site {name!r} ({kind}) has the support {fn.support}, for which torch has "
            "no map from unconstrained numbers: write it as a function of sites that have one"
        ) from error


def sampled_like(model: Model, x: Tensor) -> Tensor | None:
    """The first floating array that a model samples or records, or None.

    A model that names no tensor makes its own from numbers or after x, and only running it tells
    which; where it fails on x, what it sampled until then does.
    """
    quiet = _without_registration_warnings()
    with poutine.block(), isolated(), still_frozen(model), quiet, poutine.trace() as tracer:
        try:
            model(x)
        except Exception as error:  # it is raised again by the model's check, on x as it is cast
            logger.debug("the model cannot run on x of dtype %s: %s", x.dtype, error)
    nodes: Mapping[str, Any] = tracer.trace.nodes
    values = [node["value"] for node in nodes.values() if node["type"] == "sample"]
    arrays = (v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.ndim)
    return next(arrays, None)


def takes(model: Model, x: Tensor) -> bool:
    """Whether a model runs on x; nothing of it is kept."""
    quiet = _without_registration_warnings()
    with poutine.block(), isolated(), still_frozen(model), quiet:
        try:
            model(x)
        except Exception as error:
            logger.debug("the model cannot run on x of dtype %s: %s", x.dtype, error)
            return False
    return True


def require_sites(covered: Collection[str], sites: Sequence[Site]) -> None:
    """Check that a guide covers every latent site of a model.

    Raises:
        SiteError: If it misses one.
    """
    if missing := [site.name for site in sites if site.name not in covered]:
        raise SiteError(
            f"the guide does not cover {', '.join(map(repr, missing))}: every latent site of the "
            "model needs a sample statement of the same name in the guide"
        )


def check_model(model: Model, x: Tensor, y: Tensor) -> tuple[ModelTrace, Tensor]:
    """Check a model against the contract ``model(x, y=None)`` and match y to its likelihood.

    Args:
        model: Pyro model that records f ``[N, F]``, or ``[N]`` for one output, and observes one
            site ``"y"`` in ``"data"``.
        x: Inputs, N rows.
        y: Observations ``[N]`` or ``[N, O]``.

    Returns:
        The model's trace, and y in the shape and dtype of the model's likelihood.

    Raises:
        ModelError: If the model breaks the contract; the message shows the corrected lines.
        ShapeError: If y does not fit the likelihood, or f would broadcast against it.
        SiteError: If a latent site is discrete, per row, or there is none.
    """
    _check_modules(model)
    num_rows = x.shape[0]
    quiet = _without_registration_warnings()
    with poutine.block(), isolated(), still_frozen(model), quiet:
        free = poutine.trace(model).get_trace(x)
        nodes: Mapping[str, Any] = free.nodes
        if "y" not in nodes:
            raise ModelError(
                f'the model has no sample site named "y"; it should end with{CORRECTED}'
            )
        if nodes["y"]["is_observed"]:
            raise ModelError(
                'the model observes "y" without being given it, as where pyro.condition holds it, '
                "or poutine.reparam takes all sites: pass y with the data, run(model, (x, y)), and "
                "name other sites to the handler"
            )
        _check_held(free)
        _check_rows(free, num_rows)
        _check_plate(free, poutine.trace(model).get_trace(x[:1]))
        y = match_observation(y, nodes["y"]["fn"]).to(nodes["y"]["value"].dtype)
        observed = poutine.trace(model).get_trace(x, y)
        _check_names(model, {*free.nodes, *observed.nodes})
        _check_observed(observed, model, x, y)
    with isolated():
        return trace_model(model, x), y


def _check_held(trace: poutine.Trace) -> None:
    """Check that no site is held at a value which is computed from other sites."""
    nodes: Mapping[str, Any] = trace.nodes
    for name in trace.observation_nodes:
        if not _is_point(nodes[name]["fn"]):
            continue
        value, point = nodes[name]["value"], _innermost(nodes[name]["fn"]).v
        if value is not point and not torch.equal(value, point):
            raise ModelError(
                f"{name!r} is computed from other sites, so that it has no density at a value at "
                "which pyro.condition holds it: condition on the sites that it is made of"
            )


def _check_names(model: Model, sites: Collection[str]) -> None:
    """Check that the model has every site that a handler around it names."""
    for handler in unhandled(model)[1]:
        data = handler.data if isinstance(handler, ConditionMessenger) else {}
        if isinstance(data, Mapping) and (unknown := [name for name in data if name not in sites]):
            known = [name for name in sites if not name.startswith("_")]
            raise ModelError(
                f"pyro.condition holds {', '.join(map(repr, unknown))}, which the model does not "
                f"have; its sites are {', '.join(sorted(known))}"
            )


def _check_observed(trace: poutine.Trace, model: Model, x: Tensor, y: Tensor) -> None:
    """Check that y is observed, and that no other site belongs to rows.

    Observed beside it are factors, such as a penalty on parameters, and sites held at values: by
    ``pyro.condition``, or by a reparameterisation.
    """
    if not trace.nodes["y"]["is_observed"]:
        raise ModelError(f'the site "y" does not observe y: pass obs=y, as in{CORRECTED}')
    nodes: Mapping[str, Any] = trace.nodes
    others = [
        name
        for name in trace.observation_nodes
        if name not in ("y", "f") and not _is_deterministic(nodes[name])
        if not isinstance(nodes[name]["fn"], dist.Unit)
    ]
    in_rows = [n for n in others if _in_rows(nodes[n]) and not _is_point(nodes[n]["fn"])]
    if not in_rows:
        _check_shared(trace)
    if others and not in_rows:
        names = [n for n in trace.stochastic_nodes if type(nodes[n]["fn"]).__name__ != "_Subsample"]
        values = {name: nodes[name]["value"] for name in names}
        runs = [evaluate(model, values, *rows) for rows in ((x, y), (x[:1], y[:1]))]
        terms = [{n: log_prob(run.given[n]).sum() for n in others} for run in runs]
        in_rows = [name for name in others if not torch.equal(*(term[name] for term in terms))]
    if in_rows:
        raise ModelError(
            f'the model observes {", ".join(map(repr, in_rows))} beside "y"; one site observed in '
            "the rows is supported: put what belongs to one row into one distribution. A site "
            f"whose density is that of no row may be held at a value by pyro.condition{CORRECTED}"
        )


def _check_rows(trace: poutine.Trace, num_rows: int) -> None:
    """Check f, the plate and the distribution of y of a trace over N rows."""
    nodes: Mapping[str, Any] = trace.nodes
    node = nodes["y"]
    if "f" not in nodes or not _is_deterministic(nodes["f"]):
        raise ModelError(
            'the model does not record its network output "f"; add the first of these lines'
            f"{CORRECTED}"
        )
    f = nodes["f"]["value"]
    if as_columns(f).ndim != 2 or as_columns(f).shape[0] != num_rows:
        raise ModelError(
            f'f has shape {tuple(f.shape)}, but "f" is the network output [N, F] with N = '
            f"{num_rows} rows, or [N] for one output{CORRECTED}"
        )
    if "data" not in [frame.name for frame in node["cond_indep_stack"]]:
        raise ModelError(f'the site "y" is not inside pyro.plate("data", N):{CORRECTED}')
    batch_shape = node["fn"].batch_shape
    if batch_shape != (num_rows,):
        raise ShapeError(
            f'the distribution of "y" has batch shape {tuple(batch_shape)}, not ({num_rows},): '
            "f [N, 1] in a plate of N rows broadcasts to [N, N]; make the columns one event, as "
            f"in{CORRECTED}"
        )


def _check_plate(whole: poutine.Trace, first_row: poutine.Trace) -> None:
    """Check that the plate follows the rows of x, unless it subsamples itself."""
    plate = _data_plate(whole)
    if plate.full_size not in (None, plate.size):
        return
    if (size := _data_plate(first_row).size) != 1:
        raise ModelError(
            f'the plate "data" has {size} rows whatever x has: give it the rows of x, as '
            f"minibatches and predictions have other numbers of them{CORRECTED}"
        )


def _data_plate(trace: poutine.Trace) -> Any:
    nodes: Mapping[str, Any] = trace.nodes
    return next(frame for frame in nodes["y"]["cond_indep_stack"] if frame.name == "data")


def _check_shared(trace: poutine.Trace) -> None:
    """Check that no latent site has a value for each row, and no factor a term for each."""
    nodes: Mapping[str, Any] = trace.nodes
    for name in [*trace.stochastic_nodes, *trace.observation_nodes]:
        if name in ("y", "f") or _is_deterministic(nodes[name]):
            continue
        if _in_rows(nodes[name]) and not _is_point(nodes[name]["fn"]):
            if isinstance(nodes[name]["fn"], dist.Unit):
                raise ModelError(
                    f'the factor {name!r} lies inside the plate "data", which scales it with the '
                    "rows; write pyro.factor(...) before the plate"
                )
            raise SiteError(
                f'the latent site {name!r} lies inside the plate "data", one value a row; latent '
                "sites are shared by all rows: sample it before the plate"
            )


def _check_modules(model: Model) -> None:
    """Refuse modules that cannot be batched over draws."""
    inner = module_of(model)
    for name, module in () if inner is None else inner.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise ModelError(
                f"{name} is a {type(module).__name__} in training mode: its output for a row "
                "depends on the other rows of the batch; use torch.nn.GroupNorm instead, or call "
                ".eval() on it"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise ModelError(
                f"{name} is a {type(module).__name__} in training mode: f would be random given "
                "the weights; take it out, or call .eval() on it"
            )
        if isinstance(module, nn.RNNBase | nn.LSTMCell):
            raise ModelError(
                f"{name} is a {type(module).__name__}, whose kernel cannot be batched over draws; "
                "use torch.nn.GRUCell, or a cell in plain operations"
            )


class Evaluate(Messenger):
    """Give every latent site its value and keep what densities are made of.

    Attributes:
        latent: Message (fn, value, scale, mask) of each latent site.
        observed: Message of the site ``"y"``.
        factors: Message of each ``pyro.factor`` statement.
        given: Message of each other observed site: a latent site under ``pyro.condition``, what a
            reparameterised site became.
        f: Network output ``[N, F]``.
    """

    def __init__(
        self,
        values: Mapping[str, Tensor | None],
        params: Mapping[str, tuple[Tensor, constraints.Constraint]],
    ) -> None:
        super().__init__()
        self.values, self.params = values, params
        self.latent: dict[str, dict[str, Any]] = {}
        self.observed: dict[str, Any] = {}
        self.factors: dict[str, dict[str, Any]] = {}
        self.given: dict[str, dict[str, Any]] = {}
        self.f: Tensor | None = None

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name in self.params:
            unconstrained, constraint = self.params[name]
            msg["value"], msg["done"] = transform_to(constraint)(unconstrained), True
        elif len(msg["args"]) > 1 and isinstance(msg["args"][1], Tensor):
            # a module's own parameter, already in place: keep it out of the store
            msg["value"], msg["done"] = msg["args"][1], True

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]
        elif msg["name"] == "y" and not msg["is_observed"]:
            msg["value"] = _zeros_like(msg["fn"])  # only the model's own code reads it
        elif type(msg["fn"]).__name__ == "_Subsample" and msg["value"] is None:
            fn = msg["fn"]  # x is the minibatch already: draw no random rows of the plate
            size = fn.size if fn.subsample_size is None else fn.subsample_size
            msg["value"] = torch.arange(size, device=fn.device)

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name in self.values:
            self.latent[name] = msg
        elif name == "y":
            self.observed = msg
        elif name == "f":
            self.f = as_columns(msg["value"])
        elif isinstance(msg["fn"], dist.Unit):
            self.factors[name] = msg
        elif msg["is_observed"] and not _is_deterministic(msg):
            self.given[name] = msg

    def log_given(self, like: Tensor) -> Tensor:
        """Log density ``[]`` of the values that sites are held at, given the latent ones."""
        total = like.new_zeros(())
        for msg in self.given.values():
            total = total + (log_prob(msg) * msg["scale"]).sum()
        return total


def require_factors_of_parameters(run: Evaluate) -> None:
    """Check that ``pyro.factor`` statements depend on parameters only.

    Args:
        run: The model, evaluated at values that require gradients.

    Raises:
        ModelError: If one depends on a latent site.
    """
    for name, msg in run.factors.items():
        if _depends_on_latents(msg, run):
            raise ModelError(
                f"the factor {name!r} depends on a latent site: write its density into that site's "
                "prior; a factor may penalise point-estimated parameters"
            )


def held_given_latents(run: Evaluate) -> frozenset[str]:
    """Names of the held sites whose density depends on latent sites, such as a weight on its scale.

    Args:
        run: The model, evaluated at values that require gradients.
    """
    return frozenset(name for name, msg in run.given.items() if _depends_on_latents(msg, run))


def _depends_on_latents(msg: Mapping[str, Any], run: Evaluate) -> bool:
    """Whether a site's density depends on the value of a latent site."""
    term = log_prob(msg)
    if not term.requires_grad:
        return False
    values = [value for value in (m["value"] for m in run.latent.values()) if value.numel()]
    grads = torch.autograd.grad(term.sum(), values, retain_graph=True, allow_unused=True)
    return any(grad is not None for grad in grads)


def require_fixed_supports(run: Evaluate) -> None:
    """Check that no site's support depends on another site or on a parameter.

    Args:
        run: The model, evaluated at values and parameters that require gradients.

    Raises:
        SiteError: If one does: the map from z to its values would not be fixed.
    """
    for name, msg in run.latent.items():
        bounds = vars(_base(msg["fn"].support)).values()
        if any(isinstance(bound, Tensor) and bound.requires_grad for bound in bounds):
            raise SiteError(
                f"the support of the latent site {name!r} depends on another site or parameter; "
                "sample it on a fixed support and scale the sample"
            )


def evaluate(
    model: Model,
    values: Mapping[str, Tensor | None],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    module_params: Mapping[str, Tensor] | None = None,
    store_params: Mapping[str, tuple[Tensor, constraints.Constraint]] | None = None,
) -> Evaluate:
    """Run a model with its latent sites held at given values.

    Args:
        model: Pyro model.
        values: Value of every latent site; None draws it from its prior.
        args: The model's arguments: x, or x and y as the likelihood takes it.
        kwargs: Its keyword arguments.
        module_params: Values that stand in for the model's own parameters and buffers, by name.
        store_params: Unconstrained value and constraint of explicit ``pyro.param`` statements.
    """
    evaluation = Evaluate(values, store_params or {})
    with (
        poutine.block(),  # a handler around the engine is none of the model's
        without_validation(),
        empty_store(),
        _without_registration_warnings(),
        evaluation,
    ):
        module = module_of(model)
        named = {} if kwargs is None else dict(kwargs)
        if module is None or not module_params:
            model(*args, **named)
        elif module is model:
            torch.func.functional_call(module, dict(module_params), args, named)
        else:
            params = {f"module.{name}": value for name, value in module_params.items()}
            torch.func.functional_call(_Handled(module, model), params, args, named)
    return evaluation


class _Handled(nn.Module):
    """A model under handlers as a module, so that values can stand in for its parameters."""

    def __init__(self, module: nn.Module, model: Model) -> None:
        super().__init__()
        self.module, self.model = module, model

    def forward(self, *args: Any, **kwargs: Any) -> None:
        self.model(*args, **kwargs)


def log_prob(msg: Mapping[str, Any]) -> Tensor:
    """Log density of a message, in the shape of its batch, without its scale."""
    value = scale_and_mask(unvalidated(msg["fn"]).log_prob(msg["value"]), 1.0, msg["mask"])
    return detach_provenance(value) if isinstance(value, Tensor) else torch.as_tensor(value)


def unvalidated(fn: Distribution) -> Distribution:
    """A copy of a distribution that does not check its arguments.

    ``expand`` freezes the check at construction, where turning validation off no longer reaches
    it, and the check cannot be captured as a graph.
    """
    copied = object.__new__(type(fn))
    copied.__dict__.update(fn.__dict__)
    copied.__dict__["_validate_args"] = False
    if "base_dist" in copied.__dict__:
        copied.__dict__["base_dist"] = unvalidated(copied.__dict__["base_dist"])
    return copied


def distribution_tensors(fn: Distribution) -> list[Tensor]:
    """All tensors that a distribution is made of, in a fixed order."""
    found: list[Tensor] = []

    def collect(value: object) -> None:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, _COMPOSITE):
            for item in vars(value).values():
                collect(item)
        elif isinstance(value, list | tuple):
            for item in value:
                collect(item)

    collect(fn)
    return found


def with_tensors(fn: Distribution, tensors: Sequence[Tensor], num_draws: int) -> Distribution:
    """A copy of a distribution over S draws.

    Args:
        fn: The distribution at one draw.
        tensors: The ``distribution_tensors`` of all draws, each with a leading dimension S.
        num_draws: S.

    Returns:
        The distribution with batch shape ``[S, *batch]``.
    """
    remaining = iter(tensors)

    def copy(value: Any, ndim: int) -> Any:
        """A copy; its tensors get at least ``ndim`` dimensions after S, so that they broadcast."""
        if isinstance(value, Tensor):
            draws = next(remaining)  # [S, *shape]
            missing = max(0, ndim - draws.ndim + 1)
            return draws.reshape((num_draws, *(1,) * missing, *draws.shape[1:]))
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return type(value)(copy(item, ndim) for item in value)
        if not isinstance(value, _COMPOSITE):
            return value
        copied: Any = object.__new__(type(value))
        for name, item in vars(value).items():
            inner = ndim
            if isinstance(value, torch.distributions.Distribution):
                event_dim = len(value.event_shape)
                if isinstance(item, Tensor):
                    event_dim = _parameter_event_dim(value, name)
                inner = len(value.batch_shape) + event_dim
            copied.__dict__[name] = copy(item, inner)
        if isinstance(value, torch.distributions.Distribution):
            copied._batch_shape = torch.Size([num_draws, *value.batch_shape])
        return copied

    return cast(Distribution, copy(fn, 0))


def _parameter_event_dim(fn: torch.distributions.Distribution, name: str) -> int:
    """Dimensions of one parameter of a distribution, without its batch."""
    if name.endswith("_tril"):
        return 2
    constraint = fn.arg_constraints.get(name.removeprefix("_unbroadcasted_"))
    return constraint.event_dim if isinstance(constraint, constraints.Constraint) else 0


def base_distribution(fn: Distribution) -> Distribution:
    """The distribution inside ``to_event``."""
    while isinstance(fn, torch.distributions.Independent):
        fn = cast(Distribution, fn.base_dist)
    return fn


def _zeros_like(fn: Distribution) -> Tensor:
    """Zeros in the shape and on the device of a draw."""
    tensors = distribution_tensors(fn)
    device = tensors[0].device if tensors else None
    dtype = torch.long if isinstance(base_distribution(fn), dist.Categorical) else None
    if dtype is None and tensors and tensors[0].is_floating_point():
        dtype = tensors[0].dtype
    return torch.zeros(fn.shape(), dtype=dtype, device=device)


def is_real(support: constraints.Constraint) -> bool:
    """Whether values under this constraint are any real numbers."""
    return type(_base(support)) is type(constraints.real)  # which a copy shares


def _base(support: constraints.Constraint) -> constraints.Constraint:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _in_rows(node: Mapping[str, Any]) -> bool:
    return "data" in [frame.name for frame in node["cond_indep_stack"]]


def _is_point(fn: Distribution) -> bool:
    """Whether it is a value computed from other sites: a deterministic one, or reparameterised."""
    return isinstance(_innermost(fn), dist.Delta)


def _innermost(fn: Distribution) -> Any:
    """The distribution inside ``to_event`` and masks."""
    while isinstance(fn, dist.MaskedDistribution | torch.distributions.Independent):
        fn = cast(Distribution, fn.base_dist)
    return fn


def _is_deterministic(node: Mapping[str, Any]) -> bool:
    return bool(node["infer"].get("_deterministic"))
