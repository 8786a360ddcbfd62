"""What a model must be to be traced as a program; each refusal prints the corrected code."""

from __future__ import annotations

import contextlib
import functools
import linecache
import textwrap
import traceback
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.spectral_norm import SpectralNorm

from pyro_bnn.errors import BNNError, ModelError, ShapeError, SiteError
from pyro_bnn.handled import model_name, module_of, unhandled
from pyro_bnn.likelihoods import as_columns, match_observation
from pyro_bnn.models.from_network import BayesianModule
from pyro_bnn.program.distributions import base_distribution, require_in_support
from pyro_bnn.program.failures import raise_plainly
from pyro_bnn.program.handlers import (
    Evaluate,
    Model,
    ModelTrace,
    data_plate,
    evaluate,
    in_rows,
    innermost,
    is_deterministic,
    is_point,
    latents_of_density,
    log_prob,
    own_rows,
    trace_model,
    unseen,
)
from pyro_bnn.program.latents import require_fixed_supports
from pyro_bnn.program.random_state import isolated
from pyro_bnn.sites import base_support

CORRECTED = """
    f = pyro.deterministic("f", f)                       # f [N, F], the network output
    with pyro.plate("data", x.shape[0]):
        return pyro.sample("y", dist.Normal(f, 0.1).to_event(1), obs=y)"""

AS_IT_IS = """
A model of any other form, with sites of rows, other names or no f, runs as it is on its arguments:
    engine.run(model, bnn.data.Call(x, y))"""

SPECTRAL_NORMS = (parametrizations._SpectralNorm, SpectralNorm)

FEW = 100  # rows that a model is looked at on


def check_model(model: Model, x: Tensor, y: Tensor) -> tuple[ModelTrace, Tensor, int]:
    """Check a model against the contract ``model(x, y=None)`` and match y to its likelihood.

    Args:
        model: Pyro model that records f ``[N, F]``, or ``[N]`` for one output, and observes one
            site ``"y"`` in ``"data"``.
        x: Inputs, N rows.
        y: Observations ``[N]`` or ``[N, O]``.

    Returns:
        The model's trace, y in the shape and dtype of the model's likelihood, and how many of the
        first rows were traced.

    Raises:
        DataError: If y holds class labels that are not 0 .. C-1.
        ModelError: If the model breaks the contract; the message shows the corrected lines.
        ShapeError: If y does not fit the likelihood, or f would broadcast against it.
        SiteError: If a latent site is discrete, per row, or there is none.
    """
    _check_modules(model, x)
    if len(x) > FEW:  # seconds and gigabytes of 10,000 images; any refusal is that of all rows
        with contextlib.suppress(Exception):
            trace, matched, fn = _checked(model, x[:FEW], y[:FEW])
            for rows in (x[:1], x[-FEW:]):
                _require_same_sites(model, trace, rows)
            y = _matched(y, fn.expand(torch.Size([len(x)]))).to(matched.dtype)
            return trace, y, FEW
    trace, y, _ = _checked(model, x, y)
    return trace, y, len(x)


def _checked(model: Model, x: Tensor, y: Tensor) -> tuple[ModelTrace, Tensor, Any]:
    """The trace, y as the likelihood takes it, and the distribution of y of the first row."""
    num_rows = x.shape[0]
    with isolated(), unseen(model):
        free = _traced(model, "on all rows", x)
        nodes: Mapping[str, Any] = free.nodes
        if "y" not in nodes:
            raise ModelError(
                f'the model has no sample site named "y"; it should end with{CORRECTED}{AS_IT_IS}'
            )
        if "y_unobserved" in nodes:
            raise ModelError(
                'obs_mask= makes of "y" a latent value for each row that it leaves out; write '
                "with poutine.mask(mask=...) around the sample statement, whose rows have no "
                "density where it is False"
            )
        if nodes["y"]["is_observed"]:
            raise ModelError(
                'the model observes "y" without being given it, as where pyro.condition holds it, '
                "or poutine.reparam takes all sites: pass y with the data, run(model, (x, y)), and "
                "name other sites to the handler"
            )
        _check_held(free)
        _check_rows(free, num_rows)
        of_first = _traced(model, "on the first row alone, though not on all", x[:1])
        _check_function(cast(Mapping[str, Any], of_first.nodes)["f"]["value"], 1)
        _check_plate(free, of_first)
        _check_draws(free, of_first)
        y = _matched(y, nodes["y"]["fn"]).to(nodes["y"]["value"].dtype)
        observed = _traced(poutine.replay(model, free), "once y is given", x, y)
        _check_names(model, {*free.nodes, *observed.nodes})
        _check_observed(observed, model, x, y)
        _check_same_output(model, x, free, observed)
    with isolated():
        return trace_model(model, (x,)), y, of_first.nodes["y"]["fn"]


def _matched(y: Tensor, fn: Any) -> Tensor:
    """Observations in the shape of their distribution; labels among its classes."""
    y = match_observation(y, fn)
    if isinstance(base_distribution(fn), dist.Categorical):  # whose density looks y up
        require_in_support(y, fn)
    return y


def _traced(model: Model, when: str, *rows: Tensor) -> poutine.Trace:
    """The trace of a model that may write to the rows it is given.

    Raises:
        ModelError: If the model fails; names the model and the shape of the rows.
    """
    tracer = poutine.trace(model)
    try:
        return tracer.get_trace(*own_rows(rows))
    except torch.OutOfMemoryError:
        raise
    except BNNError as error:
        raise_plainly(error)
    except Exception as error:
        _check_embeddings(model, *rows)
        nodes = cast(Mapping[str, Any], tracer.msngr.trace.nodes)
        _check_numbers(nodes, are_finite=True)
        if "f" in nodes:
            _check_function(f := nodes["f"]["value"], len(rows[0]))
            if bad := int((~as_columns(f).isfinite()).any(1).sum()):
                raise ModelError(
                    f"f is NaN or infinite at {bad} of {len(f)} rows given together, at a draw "
                    "of the prior: look for a logarithm or root of a number that may be negative, "
                    "a division by 0, or a spread over rows, which one row has not"
                ) from error
        line = site = ""
        for frame, number in traceback.walk_tb(error.__traceback__):
            if frame.f_code is pyro.deterministic.__code__ and frame.f_locals["name"] == "f":
                _check_function(frame.f_locals["value"], len(rows[0]))
            if frame.f_code is pyro.sample.__code__:
                site = frame.f_locals["name"]
            if frame.f_code is dist.ImproperUniform.sample.__code__:
                raise SiteError(
                    f"the prior of {site!r} is ImproperUniform, which has no draws to start from: "
                    "over real numbers write pyro_bnn.priors.Flat().distribution(torch.Size("
                    "[...])), of the same density; over others take a wide prior"
                ) from error
            if frame.f_globals["__name__"].partition(".")[0] not in ("torch", "pyro", "pyro_bnn"):
                line = linecache.getline(frame.f_code.co_filename, number).strip()
        shapes = " and ".join(f"{n} {tuple(v.shape)}" for n, v in zip("xy", rows, strict=False))
        what = textwrap.shorten(str(error).partition("Trace Shapes:")[0], 400, placeholder=" ...")
        raise ModelError(
            f"{model_name(model)} fails {when}, {shapes}: {type(error).__name__}: "
            f"{what or 'no message'}"
            f"{f'; in the line {line}' if line else ''}"
        ) from error


def _check_embeddings(model: Model, *rows: Tensor) -> None:
    """Of a model that fails: check that no embedding is asked for an entry that it does not have.

    Raises:
        ModelError: If one is; names it.
    """
    refusals: list[str] = []

    def check(name: str, module: Any, inputs: tuple[Any, ...]) -> None:
        last = module.num_embeddings - 1
        refusals.extend(
            f"the {type(module).__name__} {name} has entries 0 to {last}, but is asked for "
            f"{index}: raise its num_embeddings, or number what x holds from 0 on"
            for index in map(int, inputs[0].aminmax())
            if not 0 <= index <= last
        )

    inner = module_of(model)
    with contextlib.ExitStack() as hooks:
        for name, module in () if inner is None else inner.named_modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                hook = functools.partial(check, name)
                hooks.enter_context(module.register_forward_pre_hook(hook))
        with contextlib.suppress(Exception):
            model(*own_rows(rows))
    if refusals:
        raise ModelError(refusals[0])


def _check_numbers(nodes: Mapping[str, Any], *, are_finite: bool = False) -> None:
    """Check that no prior draws NaN; with ``are_finite``, nor a number that is infinite.

    Raises:
        SiteError: If one does; names the site.
    """
    for name, node in nodes.items():
        if node["type"] != "sample" or node["is_observed"] or name == "y":
            continue
        value = torch.as_tensor(node["value"])
        if (is_nan := bool(value.isnan().any())) or (are_finite and bool(value.isinf().any())):
            what = "NaN" if is_nan else "infinite"
            raise SiteError(
                f"the prior of {name!r} draws {what if is_nan else 'infinite numbers'}: a "
                f"parameter of its {type(base_distribution(node['fn'])).__name__} is {what}"
            )


def _check_draws(whole: poutine.Trace, first_row: poutine.Trace) -> None:
    """Check that a prior draws as many numbers for one row as for all.

    Raises:
        SiteError: If it does not; names the site.
    """
    nodes, of_first = (cast(Mapping[str, Any], trace.nodes) for trace in (whole, first_row))
    _check_numbers(nodes)
    for name in whole.stochastic_nodes:
        value = nodes[name]["value"]
        if name == "y" or in_rows(nodes[name]) or name not in of_first:
            continue
        if type(nodes[name]["fn"]).__name__ == "_Subsample":
            continue
        if value.shape != (shape := of_first[name]["value"].shape):
            raise SiteError(
                f"the latent site {name!r} has shape {tuple(value.shape)} where x has "
                f"{len(nodes['f']['value'])} rows, and {tuple(shape)} where it has one: latent "
                "sites are shared by all rows, of whatever number they are; write the size of "
                f"{name!r} as a number, or after the columns, x.shape[1]. {AS_IT_IS.lstrip()}"
            )


def _require_same_sites(model: Model, trace: ModelTrace, rows: Tensor) -> None:
    """Check that other rows have the same sites, of the same supports, and all of them a term.

    Raises:
        ModelError: If they have not: the sites are then those of all rows.
    """
    with isolated(), unseen(model):
        nodes: Mapping[str, Any] = poutine.trace(model).get_trace(rows.clone()).nodes
    plates = [
        node["fn"] for node in nodes.values() if type(node.get("fn")).__name__ == "_Subsample"
    ]
    same = all(plate.subsample_size is None for plate in plates)
    for site in trace.sites:
        value, support = nodes[site.name]["value"], nodes[site.name]["fn"].support
        same &= value.shape == site.shape and _bounds(support) == _bounds(site.support)
    if not same:
        raise ModelError("the sites of the model depend on the rows that it is given")


def _bounds(support: Any) -> list[Any]:
    """The numbers that a support is made of."""
    return [
        b.tolist() if isinstance(b, Tensor) else b for b in vars(base_support(support)).values()
    ]


def _check_held(trace: poutine.Trace) -> None:
    """Check that no site is held at a value which is computed from other sites."""
    nodes: Mapping[str, Any] = trace.nodes
    for name in trace.observation_nodes:
        if not is_point(nodes[name]["fn"]):
            continue
        value, point = nodes[name]["value"], innermost(nodes[name]["fn"]).v
        if value is not point and not torch.equal(value, point):
            if is_deterministic(nodes[name]) and in_rows(nodes[name]):
                raise ModelError(
                    f'pyro.deterministic({name!r}, ...) inside the plate "data" takes all rows '
                    "for those of each: write it before the plate, or pass event_dim=f.ndim - 1"
                    f"{CORRECTED}"
                )
            raise ModelError(
                f"{name!r} is computed from other sites, so that it has no density at a value at "
                "which pyro.condition holds it: condition on the sites that it is made of"
            )


def _check_names(model: Model, sites: Collection[str]) -> None:
    """Check that the model has every site that a handler around it names."""
    for handler in unhandled(model)[1]:
        data = handler.data if isinstance(handler, DoMessenger | ConditionMessenger) else {}
        if isinstance(data, Mapping) and (unknown := [name for name in data if name not in sites]):
            known = [name for name in sites if not name.startswith("_")]
            does = "poutine.do sets" if isinstance(handler, DoMessenger) else "pyro.condition holds"
            raise ModelError(
                f"{does} {', '.join(map(repr, unknown))}, which the model does not have; its sites "
                f"are {', '.join(sorted(known))}"
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
        if name not in ("y", "f") and not is_deterministic(nodes[name])
        if not isinstance(nodes[name]["fn"], dist.Unit)
    ]
    of_rows = [n for n in others if in_rows(nodes[n]) and not is_point(nodes[n]["fn"])]
    if not of_rows:
        _check_shared(trace)
    if others and not of_rows:
        names = [n for n in trace.stochastic_nodes if type(nodes[n]["fn"]).__name__ != "_Subsample"]
        values = {name: nodes[name]["value"] for name in names}
        runs = [evaluate(model, values, *rows) for rows in ((x, y), (x[:1], y[:1]))]
        terms = [{n: log_prob(run.held[n]).sum() for n in others} for run in runs]
        of_rows = [name for name in others if not torch.equal(*(term[name] for term in terms))]
    if of_rows:
        raise ModelError(
            f'the model observes {", ".join(map(repr, of_rows))} beside "y"; one site observed in '
            "the rows is supported: put what belongs to one row into one distribution. A site "
            "whose density is that of no row may be held at a value by pyro.condition"
            f"{CORRECTED}{AS_IT_IS}"
        )


def _check_rows(trace: poutine.Trace, num_rows: int) -> None:
    """Check f, the plate and the distribution of y of a trace over N rows."""
    nodes: Mapping[str, Any] = trace.nodes
    node = nodes["y"]
    if "f" not in nodes or not is_deterministic(nodes["f"]):
        raise ModelError(
            'the model does not record its network output "f"; add the first of these lines'
            f"{CORRECTED}{AS_IT_IS}"
        )
    _check_function(nodes["f"]["value"], num_rows)
    if "data" not in [frame.name for frame in node["cond_indep_stack"]]:
        raise ModelError(f'the site "y" is not inside pyro.plate("data", N):{CORRECTED}{AS_IT_IS}')
    batch_shape = node["fn"].batch_shape
    if batch_shape != (num_rows,):
        raise ShapeError(
            f'the distribution of "y" has batch shape {tuple(batch_shape)}, not ({num_rows},): '
            "f [N, 1] in a plate of N rows broadcasts to [N, N]; make the columns one event, as "
            f"in{CORRECTED}"
        )


def _check_function(f: Any, num_rows: int) -> None:
    """Check that what is recorded as f is the output of a network, a row for each of x."""
    if not isinstance(f, Tensor) or not f.is_floating_point():
        what = "None" if f is None else f"a {type(f).__name__}"
        what = f"a tensor of {f.dtype}" if isinstance(f, Tensor) else what
        raise ModelError(
            f'the model records as "f" {what}, but f is the network output, a tensor [N, F] of '
            f"real numbers{CORRECTED}"
        )
    if as_columns(f).ndim != 2 or as_columns(f).shape[0] != num_rows:
        rows = "one row" if num_rows == 1 else f"{num_rows} rows"
        raise ModelError(
            f'f has shape {tuple(f.shape)}, but "f" is the network output [N, F], or [N] for one '
            f"output, and x has {rows} here: compute f from x, a row for each row of it{CORRECTED}"
        )


def _check_plate(whole: poutine.Trace, first_row: poutine.Trace) -> None:
    """Check that the plate follows the rows of x, unless it subsamples itself."""
    plate, of_first = (
        data_plate(cast(Mapping[str, Any], trace.nodes)["y"]) for trace in (whole, first_row)
    )
    if plate.full_size not in (None, plate.size):
        return
    if (size := of_first.size) != 1:
        raise ModelError(
            f'the plate "data" has {size} rows whatever x has: give it the rows of x, as '
            f"minibatches and predictions have other numbers of them{CORRECTED}"
        )


def require_size_of_plate(plate: Any, num_data: int) -> None:
    """Check that a plate with a size of its own has that of the data set.

    Raises:
        ModelError: If it has another, by which it would scale the likelihood.
    """
    if (size := plate.full_size) not in (None, plate.size, num_data):
        raise ModelError(
            f'the plate "data" has size {size:,}, and the data have {num_data:,} rows: each would '
            f"count {size / num_data:.3g} times; give the plate the rows of the data, or leave its "
            f"subsample_size= out, as batches of rows are scaled here{CORRECTED}"
        )


def _check_shared(trace: poutine.Trace) -> None:
    """Check that no latent site has a value for each row, and no factor a term for each."""
    nodes: Mapping[str, Any] = trace.nodes
    for name in [*trace.stochastic_nodes, *trace.observation_nodes]:
        if name in ("y", "f") or is_deterministic(nodes[name]):
            continue
        if in_rows(nodes[name]) and not is_point(nodes[name]["fn"]):
            if isinstance(nodes[name]["fn"], dist.Unit):
                raise ModelError(
                    f'the factor {name!r} lies inside the plate "data", which scales it with the '
                    "rows; write pyro.factor(...) before the plate"
                )
            raise SiteError(
                f'the latent site {name!r} lies inside the plate "data", one value a row; latent '
                f"sites are shared by all rows: sample it before the plate. {AS_IT_IS.lstrip()}"
            )


def _check_same_output(model: Model, x: Tensor, *traces: poutine.Trace) -> None:
    """Check that f is the same in two traces of the same values of the latent sites."""
    if _have_same_output(*traces):
        return
    held = poutine.replay(model, traces[0])
    again = []
    for _ in range(2):
        with isolated(0):
            again.append(_traced(held, "when it is run again", x))
    if _have_same_output(*again):
        raise ModelError(
            "the network draws random numbers, as dropout in training mode does: f would be random "
            "given the weights; take it out, or call .eval() on it"
        )
    raise ModelError(
        "the network keeps something from one call to the next, as a counter or a running mean: f "
        "of the same rows and weights is another one each time; make f a function of x and of the "
        "weights alone"
    )


def _have_same_output(*traces: poutine.Trace) -> bool:
    nodes: list[Mapping[str, Any]] = [trace.nodes for trace in traces]
    f, again = (of["f"]["value"].detach() for of in nodes)
    finite = f[f.isfinite()].abs()
    atol = 1e-4 * float(finite.max()) if finite.numel() else 0.0  # sums on a GPU have no order
    return torch.allclose(f, again, rtol=0, atol=atol, equal_nan=True)


def _check_modules(model: Model, x: Tensor) -> None:
    """Refuse modules that cannot be batched over draws; a frozen body, done with x, need not be."""
    inner = module_of(model)
    done = inner.modules_before(x) if isinstance(inner, BayesianModule) else set()
    for name, module in () if inner is None else inner.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is None:
                raise ModelError(
                    f"{name} is a {type(module).__name__} without running statistics: its output "
                    "for a row depends on the other rows of the batch, after .eval() too; use "
                    "torch.nn.GroupNorm instead"
                )
            if module.training:
                raise ModelError(
                    f"{name} is a {type(module).__name__} in training mode: its output for a row "
                    "depends on the other rows of the batch; use torch.nn.GroupNorm instead, or "
                    "call .eval() on it"
                )
        parts = (module, *module._forward_pre_hooks.values())
        if module.training and any(isinstance(part, SPECTRAL_NORMS) for part in parts):
            raise ModelError(
                f"{name.partition('.parametrizations')[0]} has spectral_norm in training mode, "
                "which changes from one call to the next: call .eval() on the network"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise ModelError(
                f"{name} is a {type(module).__name__} in training mode: f would be random given "
                "the weights; take it out, or call .eval() on it"
            )
        if isinstance(module, nn.RNNBase | nn.LSTMCell) and module not in done:
            raise ModelError(
                f"{name} is a {type(module).__name__}, whose kernel cannot be batched over draws; "
                "use pyro_bnn.layers.GRUCell, or a cell in plain operations"
            )


def check_run(run: Evaluate, many: Evaluate) -> None:
    """Check what a run of a model with marks shows of its sites.

    Args:
        run: The model on the first row alone, with marks.
        many: The model at the same values of its sites, on more rows.

    Raises:
        SiteError: If the support of a site is not fixed.
        ModelError: If a factor depends on a latent site, or a prior on the rows of x.
    """
    require_fixed_supports(run)
    require_factors_of_parameters(run)
    require_priors_of_no_rows(run, many)


def require_factors_of_parameters(run: Evaluate) -> None:
    """Check that ``pyro.factor`` statements depend on parameters only.

    Args:
        run: The model, evaluated with marks.

    Raises:
        ModelError: If one depends on a latent site.
    """
    for name, msg in run.factors.items():
        if latents_of_density(msg, run):
            raise ModelError(
                f"the factor {name!r} depends on a latent site: write its density into that site's "
                "prior; a factor may penalise point-estimated parameters. After an if on a site's "
                "value every factor counts as dependent: write it before"
            )


def require_priors_of_no_rows(run: Evaluate, many: Evaluate) -> None:
    """Check by the log density of a draw that no prior is made of the rows of x.

    Args:
        run: The model on the first row alone.
        many: The model at the same values of its sites, on more rows.

    Raises:
        ModelError: If one is: what is made of all rows at one place is of one row at another.
    """
    for name, msg in run.latent.items():
        of_first, of_all = (log_prob(seen).double() for seen in (msg, many.latent[name]))
        if not torch.allclose(of_first, of_all, rtol=1e-3, atol=1e-3, equal_nan=True):
            raise ModelError(
                f"the prior of {name!r} is made of the rows of x, of their values or their number, "
                "and is another one for other rows: compute what it takes from x once, outside of "
                "the model, as in high = float(x.max())"
            )


@contextlib.contextmanager
def explained(model: Model, x: Tensor, *known: Tensor) -> Iterator[None]:
    """Say of a failure at rows x where these are unlike the rows that are known, the user's last.

    Raises:
        ModelError: In place of the failure, if they ask an embedding for an entry that it lacks.
        ShapeError: If they are of another shape.
    """
    try:
        yield
    except (BNNError, torch.OutOfMemoryError):
        raise
    except (IndexError, RuntimeError, ValueError) as error:  # of layers of normalisation the last
        with isolated(), unseen(model):
            _check_embeddings(model, x)
        columns, fitted = tuple(x.shape[1:]), [tuple(rows.shape[1:]) for rows in known]
        if columns in fitted:
            raise
        way_out = "pass the same columns, in the same order"
        if fitted[-1][1:] and columns == fitted[-1][1:]:
            way_out = "if x is a single row, pass x.unsqueeze(0), a batch of one"
        raise ShapeError(
            f"the model fails on x with rows of shape {columns}; it was fitted to rows of "
            f"shape {fitted[-1]}: {way_out} ({error})"
        ) from error
