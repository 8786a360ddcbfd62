"""The one place where Pyro's effect handlers run: check a model, find its sites, evaluate it.

Downstream of this module (and of ``program.py``, which wraps it) a model is a set of pure
functions of tensors.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from pyro.distributions.util import scale_and_mask
from pyro.ops.provenance import detach_provenance
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import biject_to, constraints, transform_to

from pyro_bnn.data import Call
from pyro_bnn.errors import ModelError, SiteError
from pyro_bnn.handled import Model as Model  # noqa: PLC0414  # older code imports it from here
from pyro_bnn.handled import module_of, parameters_of
from pyro_bnn.likelihoods import as_columns
from pyro_bnn.priors.prior import tensors_of, unvalidated
from pyro_bnn.program.batched import without_fast_path
from pyro_bnn.program.dependence import PARAMETER, Marks
from pyro_bnn.program.distributions import (
    base_distribution,
    bounds_of,
    with_own_density,
    zeros_like,
)
from pyro_bnn.program.random_state import empty_store, isolated
from pyro_bnn.program.subsampling import Plate, WholePlates, is_rows_of_plate, of_rows
from pyro_bnn.sites import Site, base_support, bijection, shape_of_entries

logger = logging.getLogger("pyro_bnn")

ENUMERATION = "https://pyro.ai/examples/enumeration.html"


@dataclass(frozen=True)
class ModelTrace:
    """What one run of a model shows: its latent sites, a draw of them, its parameters.

    Attributes:
        sites: Latent sites in the order of the model's execution.
        messages: Pyro's message (``fn``, ``value``, ...) of each latent site, from a prior draw, or
            at its ``infer={"start": ...}``.
        param_messages: Messages of explicit ``pyro.param`` statements.
        first_array: The first floating array that the model samples or records, if any.
        without_draws: Names of the latent sites whose priors cannot be drawn from, and whose
            values here are unconstrained uniform(-2, 2).
        enumerated: Message of each site that was left out for its ``infer={"enumerate": ...}``.
        batch_dims: How many dimensions from the right the plates and batches of sites take.
        plate: The largest plate that takes some of its rows at random, of those that hold arrays.
    """

    sites: tuple[Site, ...]
    messages: Mapping[str, Mapping[str, Any]]
    param_messages: Mapping[str, Mapping[str, Any]]
    first_array: Tensor | None = None
    without_draws: frozenset[str] = frozenset()
    enumerated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    batch_dims: int = 0
    plate: Plate | None = None


@contextmanager
def unseen(model: Model) -> Iterator[None]:
    """Hide a model's run from handlers around; Pyro's store and frozen parameters stay unchanged.

    The store would set ``requires_grad`` of every parameter that it sees.
    """
    frozen = [p for p in parameters_of(model).values() if not p.requires_grad]
    try:
        with poutine.block(), empty_store(), _without_registration_warnings():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad = False


@contextmanager
def _without_registration_warnings() -> Iterator[None]:
    """Silence Pyro's warning of parameters without gradients: here values come from outside."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was not registered in the param store.*")
        yield


def own_rows(args: Iterable[Any]) -> list[Any]:
    """Copies of arguments, so that a model may overwrite them, as ``ReLU(inplace=True)`` does."""
    return [value.clone() if isinstance(value, Tensor) else value for value in args]


@contextmanager
def without_validation() -> Iterator[None]:
    """Switch off the checks of Pyro and torch; ``pyro.validation_enabled`` forgets torch's flag."""
    validates = torch.distributions.Distribution._validate_args
    try:
        with pyro.validation_enabled(is_validate=False):
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(validates)


class Starting(Messenger):
    """Give each site a value to start from: a draw, or ``number`` of ``infer={"start": number}``.

    Attributes:
        without_draws: Names of the sites whose priors cannot be drawn from.
        last: Name of the site that the model sampled last.
        plates: The innermost plate of each site in one, by the site's name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.without_draws: set[str] = set()
        self.plates: dict[str, str] = {}
        self.last = ""

    def _pyro_sample(self, msg: Any) -> None:
        if not is_rows_of_plate(msg):
            self.last = msg["name"]
            if msg["cond_indep_stack"]:
                self.plates[self.last] = msg["cond_indep_stack"][-1].name
        number = msg["infer"].get("start")
        if msg["value"] is not None:
            return
        if number is not None:
            msg["value"] = torch.full_like(msg["fn"](), number)
        elif isinstance(msg["fn"], torch.distributions.Distribution):
            msg["value"], is_draw = draw_or_start(msg)
            if not is_draw:
                self.without_draws.add(msg["name"])


RADIUS = 2.0
"""Unconstrained starts are uniform between minus this and this, as Stan's and Pyro's are."""


def draw_or_start(msg: Mapping[str, Any]) -> tuple[Tensor, bool]:
    """A draw from a site's distribution, and True; a point of its support, and False, without one.

    A distribution like ``dist.ImproperUniform`` has a density alone: its ``sample`` raises
    NotImplementedError. Its point is uniform(-2, 2) in each unconstrained entry.
    """
    fn = msg["fn"]
    try:
        return fn(*msg["args"], **msg["kwargs"]), True
    except NotImplementedError:
        _check_support(msg["name"], fn)
        parts = [t for t in (*tensors_of(fn), *bounds_of(fn.support)) if isinstance(t, Tensor)]
        like = next((t for t in parts if t.is_floating_point()), torch.empty(0))
        shape = shape_of_entries(fn.support, fn.shape(*msg["args"]))
        u = (2 * torch.rand(shape, dtype=like.dtype, device=like.device) - 1) * RADIUS
        return bijection(fn.support)(u), False


def trace_model(
    model: Model,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    leave_enumerated: bool = False,
    of_rows: bool = True,
    start: Starting | None = None,
) -> ModelTrace:
    """Run a model once and list its latent sites; it draws from torch's global generator.

    Args:
        model: Pyro model.
        args: Its arguments.
        kwargs: Its keyword arguments.
        leave_enumerated: Whether to leave out sites with ``infer={"enumerate": ...}``.
        of_rows: Whether the arguments are rows of data, x alone: ``"y"`` in the plate ``"data"`` is
            no latent site then, and a plate that takes some rows has them already. Else it takes
            all of them.
        start: Gives sites their values; default a :class:`Starting`.

    Raises:
        ModelError: If a plate takes more rows than it has.
        SiteError: If a latent site is discrete or has no density, or the model has none.
    """
    whole = WholePlates()
    plates = contextlib.nullcontext() if of_rows else whole
    with unseen(model), plates, Starting() if start is None else start as starting:
        trace = poutine.trace(model).get_trace(*own_rows(args), **(kwargs or {}))
    _check_sizes(whole.plates.values())
    nodes: Mapping[str, Any] = trace.nodes
    sites: list[Site] = []
    enumerated: dict[str, Mapping[str, Any]] = {}
    first = 0
    for name in trace.stochastic_nodes:
        node = nodes[name]
        if is_rows_of_plate(node):
            continue
        if node["infer"].get("is_auxiliary"):
            continue
        if of_rows and name == "y" and in_rows(node):
            continue
        fn = node["fn"]
        if leave_enumerated and node["infer"].get("enumerate"):
            enumerated[name] = node
            continue
        _check_support(name, fn, has_own_maps=not of_rows)
        u = bijection(fn.support).inv(node["value"])
        sites.append(Site(name, node["value"].shape, fn.support, first, first + u.numel(), u.shape))
        first += u.numel()
    if not sites and enumerated:
        raise SiteError(
            f"every latent site of the model, {', '.join(map(repr, enumerated))}, is summed out, "
            "and none is left to infer: pyro.infer.infer_discrete draws them from their posterior"
        )
    if not sites:
        raise SiteError(
            "the model has no latent sample site: give its weights priors, for example with "
            "pyro_bnn.bayesian(net)"
        )
    messages = {site.name: nodes[site.name] for site in sites}
    params = {name: node for name, node in nodes.items() if node["type"] == "param"}
    started = frozenset(starting.without_draws)
    first_array = _first_array({k: v for k, v in nodes.items() if k not in started})
    return ModelTrace(
        tuple(sites),
        messages,
        params,
        first_array,
        started & {*messages},
        enumerated,
        _batch_dims(nodes),
        _largest(whole.plates, nodes),
    )


def _check_sizes(plates: Iterable[Plate]) -> None:
    """Check that plates take no more rows than they have; a later run may be of fewer, and whole.

    Raises:
        ModelError: If one takes more, which Pyro refuses, too.
    """
    for plate in plates:
        if plate.taken > plate.size:
            raise ModelError(
                f"the plate {plate.name!r} has {plate.size} rows and subsample_size="
                f"{plate.taken}, which is more: take at most {plate.size}, or leave "
                "subsample_size out for all rows"
            )


def _batch_dims(nodes: Mapping[str, Any]) -> int:
    """How many dimensions from the right the plates and batches of a run's sites take."""
    samples = [node for node in nodes.values() if node["type"] == "sample"]
    frames = [f for node in samples for f in node["cond_indep_stack"] if f.vectorized]
    drawn = [node for node in samples if isinstance(node["fn"], torch.distributions.Distribution)]
    batches = [len(node["fn"].batch_shape) for node in drawn]
    values = [torch.as_tensor(n["value"]).ndim - len(n["fn"].event_shape) for n in drawn]
    return max([*(-frame.dim for frame in frames), *batches, *values], default=0)


def _first_array(nodes: Mapping[str, Any]) -> Tensor | None:
    """The first floating array that a model samples or records."""
    values = [node["value"] for node in nodes.values() if node["type"] == "sample"]
    arrays = (v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.ndim)
    return next(arrays, None)


def _largest(plates: Mapping[str, Plate], nodes: Mapping[str, Any]) -> Plate | None:
    """The plate of the most rows, of those that some site of a run has as a dimension."""
    samples = [node for node in nodes.values() if node["type"] == "sample"]
    arrays = {f.name for node in samples for f in node["cond_indep_stack"] if f.vectorized}
    held = [plate for name, plate in plates.items() if name in arrays]
    return max(held, key=lambda plate: plate.size, default=None)


def _check_support(name: str, fn: Distribution, *, has_own_maps: bool = True) -> None:
    """Check that a latent site has a density, and a map from unconstrained numbers onto it.

    Args:
        name: Of the site.
        fn: Its distribution.
        has_own_maps: Whether maps beside torch's are taken.
    """
    kind = type(base_distribution(fn)).__name__
    point: Any = fn
    while hasattr(point, "base_dist"):  # inside events, masks, transforms
        point = point.base_dist
    if isinstance(point, dist.Delta | dist.Empirical):
        raise SiteError(
            f"the prior of {name!r} is {type(point).__name__}, which has no density to sample or "
            f"fit: write pyro.deterministic({name!r}, value) where the value is known, and give it "
            "a prior with a density, such as a narrow Normal, where it is to be inferred"
        )
    if not fn.has_rsample and base_support(fn.support).is_discrete:
        if has_own_maps:
            raise SiteError(f"the latent site {name!r} is discrete ({kind}), {way_out(fn)}")
        raise SiteError(
            f"the latent site {name!r} is discrete ({kind}); sum it out in the model, as by "
            "pyro.distributions.MixtureSameFamily, since every latent site has to be continuous. "
            'Guides leave out a site with infer={"enumerate": "parallel"}, which '
            f"pyro.infer.TraceEnum_ELBO sums out: {ENUMERATION}"
        )
    try:
        (bijection if has_own_maps else biject_to)(fn.support)
    except NotImplementedError as error:
        if type(base_support(fn.support)) is type(dist.constraints.sphere):
            raise SiteError(
                f"the latent site {name!r} lies on a sphere ({kind}), onto which no numbers map "
                "one to one: take a ProjectedNormal, and fit the model poutine.reparam(model, "
                f"{{{name!r}: ProjectedNormalReparam()}}), of pyro.infer.reparam"
            ) from error
        raise SiteError(
            f"the latent site {name!r} ({kind}) has the support {fn.support}, for which torch has "
            "no map from unconstrained numbers: write it as a function of sites that have one"
        ) from error


def way_out(fn: Distribution) -> str:
    """What to do with a discrete site of a distribution in a plain model."""
    if getattr(fn, "has_enumerate_support", False):
        return (
            "and is not marked for enumeration: put @pyro.infer.config_enumerate above the model, "
            'or infer={"enumerate": "parallel"} in the sample statement, and all of its values '
            f"are summed out exactly: {ENUMERATION}"
        )
    if getattr(innermost(fn), "has_enumerate_support", False) and isinstance(
        fn, torch.distributions.Independent
    ):
        return (
            "and all combinations of the entries that to_event joins are too many to sum out: put "
            "the entries in a pyro.plate, and @pyro.infer.config_enumerate above the model"
        )
    return (
        "and has no finite list of values that could be summed out: bound it, as by a Categorical "
        "over the values that matter, with @pyro.infer.config_enumerate above the model"
    )


def tried(model: Model, x: Tensor) -> tuple[bool, Tensor | None]:
    """Whether a model runs on x, and the first floating array that it samples or records, or None.

    A model without tensors makes its own: of a dtype that it names, or of that of x. Only a run
    shows which. If the run fails on x, the first array sampled before the failure shows it.
    """
    runs = True
    with isolated(), unseen(model), poutine.trace() as tracer:
        try:
            model(x.clone())
        except Exception as error:  # the model's check raises it again, on x after its cast
            logger.debug("the model cannot run on x of dtype %s: %s", x.dtype, error)
            runs = False
    return runs, _first_array(cast(Mapping[str, Any], tracer.trace.nodes))


def runs_without_f(model: Model, args: Iterable[Any]) -> bool:
    """Whether a model runs on arguments, and records no ``"f"``: it is no network on rows."""
    with isolated(), unseen(model), poutine.trace() as tracer:
        try:
            model(*own_rows(args))
        except Exception as error:  # what it runs on is not known
            logger.debug("the model cannot run on the data as they are: %s", error)
            return False
    return "f" not in tracer.trace.nodes


class Entries(NamedTuple):
    """The entries ``[n]`` of z that give a site its value once a run of the model reaches it."""

    site: Site
    of_z: Tensor

    def value_in(self, fn: Distribution) -> Tensor:
        """The value under the site's distribution in this run."""
        self.site.require_shape(fn.shape(), fn.support)
        return self.site.value_of(self.of_z, fn.support)


SiteValue: TypeAlias = Tensor | Entries | None
"""What a run gives a site: its value, its entries of z, or a draw from its prior for None."""


class Evaluate(Messenger):
    """Give every latent site its value, and keep the messages that densities are computed from.

    Attributes:
        latent: Message (fn, value, scale, mask) of each latent site.
        observed: Message of each observed site, and of ``"y"`` where the model runs without it.
        factors: Message of each ``pyro.factor`` statement.
        recorded: Value of each ``pyro.deterministic`` statement.
        summed: Message of each site that is marked for enumeration.
        unlisted: Names of the sites that are latent here and have no value: the run drew them.
        rows: Numbers of the rows that plates take, by name.
        marks: The marks that followed the run's values through its operations, if any.
    """

    def __init__(
        self,
        values: Mapping[str, SiteValue],
        params: Mapping[str, tuple[Tensor, constraints.Constraint]],
        output: Tensor | None = None,
        rows: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.values, self.params, self.output = values, params, output
        self.rows = rows or {}
        self.latent: dict[str, dict[str, Any]] = {}
        self.observed: dict[str, dict[str, Any]] = {}
        self.factors: dict[str, dict[str, Any]] = {}
        self.recorded: dict[str, Any] = {}
        self.summed: dict[str, dict[str, Any]] = {}
        self.unlisted: list[str] = []
        self.marks: Marks | None = getattr(values, "marks", None)

    @property
    def y(self) -> dict[str, Any]:
        """Message of the site ``"y"``."""
        return self.observed["y"]

    @property
    def held(self) -> dict[str, dict[str, Any]]:
        """Message of each other observed site.

        It is a latent site under ``pyro.condition``, or what a reparameterised site became.
        """
        return {name: msg for name, msg in self.observed.items() if name != "y"}

    @property
    def f(self) -> Tensor:
        """Network output ``[N, F]``."""
        return as_columns(self.recorded["f"])

    def sources(self, name: str, parts: Iterable[object] | None = None) -> frozenset[str]:
        """Names of the sites, and PARAMETER, that a site depends on, as the run's marks tell.

        Args:
            name: Of the site.
            parts: The tensors that it depends through; default those of a latent site's prior.
        """
        parts = tensors_of(self.latent[name]["fn"]) if parts is None else [*parts]
        return frozenset() if self.marks is None else self.marks.sources(name, parts)

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
            value = self.values[msg["name"]]
            if isinstance(value, Entries):
                value = value.value_in(msg["fn"])
            elif value is not None and self.rows:
                value = of_rows(value, msg, self.rows)
            msg["value"] = draw_or_start(msg)[0] if value is None else value
        elif msg["name"] == "f" and self.output is not None:
            msg["value"] = self.output.reshape(msg["value"].shape)
        elif msg["name"] == "y" and not (msg["is_observed"] or _is_enumerated(msg)):
            msg["value"] = zeros_like(msg["fn"])  # only the model's own code reads it
        elif is_rows_of_plate(msg) and msg["value"] is None:
            fn = msg["fn"]  # x is the minibatch already: draw no random rows of the plate
            size = fn.size if fn.subsample_size is None else fn.subsample_size
            rows = self.rows.get(msg["name"])
            msg["value"] = torch.arange(size, device=fn.device) if rows is None else rows
        elif self.rows and isinstance(msg["value"], Tensor):  # as pyro.condition gives all rows
            msg["value"] = of_rows(msg["value"], msg, self.rows)

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name in self.values:
            self.latent[name] = msg
        elif is_deterministic(msg):
            self.recorded[name] = msg["value"]
        elif isinstance(msg["fn"], dist.Unit):
            self.factors[name] = msg
        elif _is_enumerated(msg):
            self.summed[name] = msg
            if self.marks is not None:
                self.marks.put([msg["value"]], name)
        elif msg["is_observed"] or name == "y":
            self.observed[name] = msg
        elif not (msg["infer"].get("is_auxiliary") or is_rows_of_plate(msg)):
            self.unlisted.append(name)


def _is_enumerated(msg: Mapping[str, Any]) -> bool:
    """Whether a latent site is marked for enumeration."""
    return bool(msg["infer"].get("enumerate")) and not msg["is_observed"]


class Unobserved(Messenger):
    """Let a model draw what it observes, as ``poutine.uncondition`` does, but keep computed sites.

    Under that handler a ``pyro.deterministic`` value in a plate is expanded by the plate.
    """

    def __init__(self, kept: Collection[str]) -> None:
        super().__init__()
        self.kept = kept

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        is_drawn = not (is_point(msg["fn"]) or isinstance(msg["fn"], dist.Unit))
        if msg["is_observed"] and is_drawn and msg["name"] not in self.kept:
            msg["is_observed"], msg["value"] = False, None


class _HeldWhereItFits(Messenger):
    """Hold sites at values, where the run gives them the same shape."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        value = self.values.get(msg["name"])
        if value is not None and value.shape == msg["fn"].shape():
            msg["is_observed"], msg["value"] = True, value


def predicted(
    model: Model,
    call: Call,
    latents: Mapping[str, Tensor],
    discrete: Mapping[str, Tensor],
    *,
    anew: bool,
    params: Mapping[str, Tensor],
    store: Mapping[str, tuple[Tensor, constraints.Constraint]],
) -> dict[str, Tensor]:
    """Values of all sites but the latent ones, drawn or computed, at one value of each of these.

    Args:
        model: Pyro model.
        call: Its arguments.
        latents: Value of each latent site.
        discrete: Value of each discrete site that is summed out; one that has another shape in
            this run is drawn.
        anew: Whether what the model observes is drawn.
        params: As :func:`evaluate` takes them.
        store: As :func:`evaluate` takes them.
    """
    of_module, stated = _apart(params, store)
    values = {name: transform_to(constraint)(u) for name, (u, constraint) in stated.items()}
    with (
        empty_store(),
        _without_registration_warnings(),
        WholePlates(),
        Unobserved({*latents, *discrete}) if anew else contextlib.nullcontext(),
        poutine.trace() as tracer,
        poutine.substitute(data=values),
        poutine.condition(data=dict(latents)),
        _HeldWhereItFits(discrete),
    ):
        _call(model, own_rows(call.args), call.kwargs, of_module)
    nodes: Mapping[str, Any] = tracer.trace.nodes
    return {
        name: node["value"]
        for name, node in nodes.items()
        if node["type"] == "sample"
        and name not in latents
        and node["value"] is not discrete.get(name)
        and not is_rows_of_plate(node)
        and not isinstance(node["fn"], dist.Unit)
    }


def total_log_prob(messages: Mapping[str, Mapping[str, Any]], like: Tensor) -> Tensor:
    """Sum of the scaled log densities of some sites, ``[]``, in the dtype of ``like``."""
    total = like.new_zeros(())
    for msg in messages.values():
        total = total + (log_prob(msg) * msg["scale"]).sum().to(total.dtype)
    return total


def scale_of_rows(msg: Mapping[str, Any]) -> tuple[float, Tensor | None]:
    """The scale of the rows of ``"y"``: the number of its plate, and tensor weights or None.

    Args:
        msg: Message of the site ``"y"``.
    """
    scale = msg["scale"]
    if not isinstance(scale, Tensor):
        return scale, None
    of_plate = scale_of_plate(msg)
    return of_plate, scale / of_plate


def data_plate(msg: Mapping[str, Any]) -> Any:
    """The plate ``"data"`` that the site ``"y"`` lies in."""
    return next(frame for frame in msg["cond_indep_stack"] if frame.name == "data")


def scale_of_plate(msg: Mapping[str, Any]) -> float:
    """The factor by which the plate ``"data"`` scales its rows; 1 if it has no full size."""
    plates = (frame for frame in msg["cond_indep_stack"] if frame.name == "data")
    sizes = [p.full_size / p.size for p in plates if p.full_size is not None]
    return float(math.prod(sizes))


def held_given_latents(run: Evaluate) -> frozenset[str]:
    """Names of the held sites whose density depends on latent sites, such as a weight on its scale.

    Args:
        run: The model, evaluated with marks.
    """
    return frozenset(name for name, msg in run.held.items() if latents_of_density(msg, run))


def latents_of_density(msg: Mapping[str, Any], run: Evaluate) -> frozenset[str]:
    """Names of the latent sites that a site's density depends on, in a run with marks."""
    assert run.marks is not None
    with run.marks.seen():
        density = log_prob(msg) * msg["scale"]
    return run.sources(msg["name"], [density]) - {PARAMETER}


def evaluate(
    model: Model,
    values: Mapping[str, SiteValue],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    params: Mapping[str, Tensor] | None = None,
    store: Mapping[str, tuple[Tensor, constraints.Constraint]] | None = None,
    output: Tensor | None = None,
    rows: Mapping[str, Tensor] | None = None,
) -> Evaluate:
    """Run a model with its latent sites held at given values.

    Args:
        model: Pyro model.
        values: Value of every latent site, or its entries of z; None draws it from its prior.
        args: The model's arguments: x, or x and y as the likelihood takes it.
        kwargs: Its keyword arguments.
        params: Values that stand in for the model's own parameters and buffers, and unconstrained
            for those of ``store``, by name.
        store: Unconstrained start and constraint of explicit ``pyro.param`` statements.
        output: Replaces the network output f ``[N, F]``, from which y is drawn or scored.
        rows: Numbers of the rows that plates take, by name, in place of ``subsample_size``; those
            that are not named take all. None where the arguments are the rows already.
    """
    of_module, stated = _apart(params or {}, store or {})
    evaluation = Evaluate(values, stated, output, rows)
    with (
        poutine.block(),  # handlers around the engine are not the model's
        contextlib.nullcontext() if rows is None else WholePlates(),
        without_validation(),
        without_fast_path(),
        empty_store(),
        _without_registration_warnings(),
        evaluation,
    ):
        _call(model, args, kwargs or {}, of_module)
    return evaluation


def _apart(
    params: Mapping[str, Tensor], store: Mapping[str, tuple[Tensor, constraints.Constraint]]
) -> tuple[dict[str, Tensor], dict[str, tuple[Tensor, constraints.Constraint]]]:
    """Values of a module's own parameters, and those of ``pyro.param`` with constraints."""
    of_module = dict(params)
    stated = {name: (of_module.pop(name, start), c) for name, (start, c) in store.items()}
    return of_module, stated


def _call(
    model: Model, args: Sequence[Any], kwargs: Mapping[str, Any], of_module: dict[str, Tensor]
) -> None:
    """Call a model, with values in place of its module's parameters and buffers."""
    module, named = module_of(model), dict(kwargs)
    if module is None or not of_module:
        model(*args, **named)
    elif module is model:
        torch.func.functional_call(module, of_module, tuple(args), named)
    else:
        inner = {f"module.{name}": value for name, value in of_module.items()}
        torch.func.functional_call(_Handled(module, model), inner, tuple(args), named)


def marked_run(
    run: Callable[[Mapping[str, Tensor]], Evaluate],
    values: Mapping[str, Tensor],
    params: Iterable[Tensor],
) -> Evaluate:
    """Evaluate the model, with marks on all tensors computed from sites or from parameters.

    Args:
        run: Evaluates the model at values of its sites.
        values: The values, by name.
        params: The values of the parameters that it takes.
    """
    marks = Marks(values)
    marks.put(params, PARAMETER)
    with marks.seen():
        evaluation = run(marks.values)
    evaluation.marks = marks
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
    fn = with_own_density(unvalidated(msg["fn"]))
    value = scale_and_mask(fn.log_prob(msg["value"]), 1.0, msg["mask"])
    return detach_provenance(value) if isinstance(value, Tensor) else torch.as_tensor(value)


def is_reweighted(msg: Mapping[str, Any]) -> bool:
    """Whether a site's density is not that of its draws, by ``poutine.scale`` or a mask."""
    scale, mask = msg["scale"], msg["mask"]
    is_one = isinstance(scale, int | float) and scale == 1
    is_masked = isinstance(msg["fn"], dist.MaskedDistribution)
    is_masked |= not (mask is None or mask is True)
    return not is_one or is_masked


def in_rows(node: Mapping[str, Any]) -> bool:
    """Whether a site lies in the plate ``"data"``."""
    return "data" in [frame.name for frame in node["cond_indep_stack"]]


def is_point(fn: Distribution) -> bool:
    """Whether a site is computed from others: it is deterministic, or was reparameterised."""
    return isinstance(innermost(fn), dist.Delta)


def innermost(fn: Distribution) -> Any:
    """The distribution inside ``to_event`` and masks."""
    while isinstance(fn, dist.MaskedDistribution | torch.distributions.Independent):
        fn = cast("Distribution", fn.base_dist)
    return fn


def is_deterministic(node: Mapping[str, Any]) -> bool:
    """Whether a ``pyro.deterministic`` statement made the site."""
    return bool(node["infer"].get("_deterministic"))
