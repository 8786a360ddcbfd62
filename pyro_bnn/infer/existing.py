"""Runs of stock Pyro as posteriors: chains of its ``MCMC``, draws of a guide that it trained."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, overload

import numpy as np
import pyro
import torch
from numpy.typing import NDArray
from pyro import poutine
from pyro.infer import MCMC
from pyro.infer.autoguide import AutoLaplaceApproximation
from torch import Tensor, nn

from pyro_bnn.checks import check_positive_int, check_seed, plain
from pyro_bnn.data import Call
from pyro_bnn.errors import ModelError, OptionError, SiteError
from pyro_bnn.handled import model_name, parameters_of
from pyro_bnn.infer.call_problem import CallProblem
from pyro_bnn.infer.inputs import FitData, as_dataset, unchanged
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.svi.stock import NUM_DRAWS, draws_of_guide, laplace_of
from pyro_bnn.posterior.call_posterior import CallDraws
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.program.device import gpu_name
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.random_state import isolated
from pyro_bnn.sites import require_sites

logger = logging.getLogger("pyro_bnn")

UNKNOWN = math.nan  # seconds of a run that nobody timed
SAME = 1e-6  # difference of one log joint in double precision, relative where that is more
OF_CHAINS = {
    "settling": "raise warmup_steps and num_samples of MCMC",
    "few draws": "raise num_samples of MCMC",
    "divergent": "raise target_accept_prob of its kernel, or use a non-centred prior",
}
LONGER = "train the guide by more steps"
RICHER = "take a guide with correlations, such as AutoMultivariateNormal, or use NUTS"
OF_GUIDE = {
    "unfinished": LONGER,
    "optimum": f"{LONGER}, or by a lower learning rate",
    "narrow": RICHER,
    "poor family": RICHER,
}


@overload
def from_mcmc(mcmc: MCMC, model: Model, data: Call, *, wall_time: float = ...) -> CallDraws: ...


@overload
def from_mcmc(
    mcmc: MCMC, model: Model, data: FitData, *, wall_time: float = ...
) -> DrawsPosterior: ...


def from_mcmc(
    mcmc: MCMC, model: Model, data: FitData | Call, *, wall_time: float = UNKNOWN
) -> DrawsPosterior | CallDraws:
    """The posterior of a run of ``pyro.infer.MCMC``: its draws by chain, and its divergences.

    Parameters by ``pyro.param`` have the values of Pyro's parameter store; those that are not in
    it, as after a run in other processes, the values that they start at.

    Args:
        mcmc: The run. It knows which draws diverged, and of each chain how often it moved, which
            is in ``options["acceptance_rate"]``; the energies that E-BFMI needs it does not keep.
        model: The model of its kernel.
        data: What the model was run on: its arguments as a ``Call``; or, of a network with f and
            y, a ``Dataset`` or a pair (x, y), so that reports and ``compare`` take the posterior.
        wall_time: Seconds that the run took, where they are known.

    Raises:
        ModelError: If the log joint of the model on these data is not that of the run.
        OptionError: If there are no draws.
        SiteError: If a site is missing or unknown, has another shape, or a value outside of its
            support or of no density; names it.

    Example:
        >>> import pyro.distributions as dist
        >>> from pyro.infer import MCMC, NUTS
        >>> def model(y):
        ...     loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        ...     pyro.sample("y", dist.Normal(loc, 1.0), obs=y)
        >>> mcmc = MCMC(NUTS(model), num_samples=5, warmup_steps=5, disable_progbar=True)
        >>> y = torch.tensor(2.0)
        >>> mcmc.run(y)
        >>> from_mcmc(mcmc, model, Call(y))
        CallDraws(NUTS by MCMC, P=1, 5 draws)
    """
    if not isinstance(mcmc, MCMC):
        raise OptionError(f"mcmc is a pyro.infer.MCMC that has run, not {type(mcmc).__name__}")
    if getattr(mcmc, "_samples", None) is None:
        raise OptionError("this MCMC has no draws: call mcmc.run with the model's arguments first")
    values: dict[str, Tensor] = mcmc.get_samples(group_by_chain=True)  # [C, S, *shape]
    kernel = type(mcmc.kernel).__name__
    store = _store()
    with isolated(), unchanged(model):
        problem = _problem(model, data, "MCMC")
        for name in _take_params(problem.joint, store):
            logger.warning(
                "the parameter %r is not in Pyro's store: its first value is taken", name
            )
        z = _unconstrained(problem.joint, values, f"the run of {kernel}")  # [C, S, P]
        with _with_store(store):
            _require_density(problem, z, _first_density(mcmc, values))
        diverging, options = _diagnosed(mcmc, *z.shape[:2])
        provenance = _provenance(
            problem,
            kernel,
            options,
            wall_time,
            num_parameters=problem.joint.num_latents,
            nature=Nature(kind="chains", remedies=OF_CHAINS),
        )
        lp = _log_joints(problem, z, provenance)
        stats = {"lp": lp.cpu().numpy(), **diverging}
        return problem.draws_posterior(z, provenance, stats)


@overload
def from_guide(
    guide: Any,
    model: Model,
    data: Call,
    *,
    num_samples: int = ...,
    seed: int = ...,
    losses: Sequence[float] = ...,
    wall_time: float = ...,
) -> CallDraws: ...


@overload
def from_guide(
    guide: Any,
    model: Model,
    data: FitData,
    *,
    num_samples: int = ...,
    seed: int = ...,
    losses: Sequence[float] = ...,
    wall_time: float = ...,
) -> DrawsPosterior: ...


def from_guide(
    guide: Any,
    model: Model,
    data: FitData | Call,
    *,
    num_samples: int = NUM_DRAWS,
    seed: int = 0,
    losses: Sequence[float] = (),
    wall_time: float = UNKNOWN,
) -> DrawsPosterior | CallDraws:
    """The posterior of a guide that stock Pyro has trained: independent draws, and log q of each.

    The guide runs as ``guide(*args)`` does now, with Pyro's parameter store as it is, from which
    the parameters of the model are taken too. The draws are stored as one chain, of an
    approximation: R-hat and effective draws say nothing of it.

    Args:
        guide: An autoguide, which for ``AutoLaplaceApproximation`` is the Gaussian at its mode, or
            a guide function.
        model: The model that it was trained for.
        data: What the model was run on; see :func:`from_mcmc`.
        num_samples: Number of draws.
        seed: Of the draws.
        losses: What ``svi.step`` returned at each step, by which reports judge its convergence.
        wall_time: Seconds that the training took, where they are known.

    Raises:
        DivergenceError: If an ``AutoLaplaceApproximation`` has not ended at a maximum.
        OptionError: If ``guide`` or ``num_samples`` is none.
        SiteError: If the guide lacks a site or draws it in another shape or outside of its support,
            if it has not been trained, or if a parameter is not where it was left.

    Example:
        >>> import pyro.distributions as dist
        >>> from pyro.infer import SVI, Trace_ELBO
        >>> def model(y):
        ...     loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        ...     pyro.sample("y", dist.Normal(loc, 1.0), obs=y)
        >>> guide, y = pyro.infer.autoguide.AutoNormal(model), torch.tensor(2.0)
        >>> svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
        >>> losses = [svi.step(y) for _ in range(3)]
        >>> from_guide(guide, model, Call(y), losses=losses)
        CallDraws(AutoNormal by SVI, P=1, 1000 draws)
    """
    check_positive_int("num_samples", num_samples)
    seed = plain(seed)
    check_seed(seed)
    if not callable(guide):
        raise OptionError(f"guide is a guide that has been trained, not {type(guide).__name__}")
    name, store = getattr(guide, "__name__", type(guide).__name__), _store()
    with isolated(seed), unchanged(model), unchanged(guide):
        problem = _problem(model, data, "SVI")
        joint = problem.joint
        if missing := _take_params(joint, store):
            raise SiteError(
                f"the parameters {', '.join(missing)} of the model are not in Pyro's parameter "
                "store, so that their trained values are lost: call this before "
                "pyro.clear_param_store(), or load the store that was saved"
            )
        call = data if isinstance(data, Call) else Call(*problem.rows)
        with _with_store(store):
            num_parameters = _require_trained(guide, name, call, joint, store)
            is_mode = isinstance(guide, AutoLaplaceApproximation)
            q = laplace_of(guide, call) if is_mode else guide
            torch.manual_seed(seed)
            values, log_q = draws_of_guide(q, call, joint.sites, num_samples)
        values = {key: value.unsqueeze(0) for key, value in values.items()}  # [1, S, *shape]
        z = _unconstrained(joint, values, f"the guide {name}")
        if log_q is not None:
            log_q = (log_q + joint.log_abs_det_jacobian(z[0])).unsqueeze(0)
        is_point = num_samples > 1 and bool((z == z[:, :1]).all())
        provenance = _provenance(
            problem,
            name,
            {"num_samples": num_samples},
            wall_time,
            seed=seed,
            num_parameters=num_parameters,
            losses=np.asarray(losses, dtype=np.float64),
            nature=Nature(kind="point" if is_point else "approximation", remedies=OF_GUIDE),
        )
        return problem.draws_posterior(z, provenance, {}, log_q)


def _problem(model: Model, data: FitData | Call, engine: str) -> Problem | CallProblem:
    """The model and its data, as an engine would have them.

    Raises:
        ModelError: If a model without f and y has rows for data.
    """
    if isinstance(data, Call):
        return CallProblem(model, data, None, 0, engine)
    problem = Problem(model, data, as_dataset(data), None, 0, engine)
    try:
        assert problem.joint is problem.program  # traces the model
    except ModelError as error:
        raise ModelError(
            f"{error}\nIf it is no network with f and y, pass its arguments as data.Call(...)"
        ) from error
    return problem


def _provenance(
    problem: Problem | CallProblem,
    method: str,
    options: dict[str, Any],
    wall_time: float,
    **facts: Any,
) -> Provenance:
    return Provenance(
        method=method,
        engine=problem.engine,
        options=options,
        wall_time=float(wall_time),
        threads=None,
        gpu=gpu_name(problem.joint.device),
        **facts,
        **problem.of_data(),
    )


# Pyro's parameter store


Store = dict[str, dict[str, Any]]


def _store() -> Store:
    """Pyro's parameter store, the very tensors."""
    store: Any = pyro.get_param_store()
    return {"params": dict(store.named_parameters()), "constraints": dict(store._constraints)}


@contextmanager
def _with_store(store: Store) -> Iterator[None]:
    """Inside :func:`isolated`, the parameters that were outside; what is added is dropped."""
    with pyro.get_param_store().scope({part: dict(values) for part, values in store.items()}):  # type: ignore[arg-type]
        yield


def _take_params(joint: Joint, store: Store) -> list[str]:
    """Give the model's ``pyro.param`` statements the store's values; names those it lacks.

    Raises:
        SiteError: If a value has another shape, or a parameter of a module other values there.
    """
    missing = []
    own_of_module = {
        name.removesuffix("_unconstrained"): value  # as Pyro names those with a constraint
        for name, value in parameters_of(joint.model).items()
    }
    changed = [
        name
        for name, own in own_of_module.items()
        if (value := store["params"].get(name)) is not None and not torch.equal(value, own)
    ]
    _require_same(changed, model_name(joint.model))
    for name in joint.stated_params:
        value = store["params"].get(name)
        if value is None:
            missing.append(name)
            continue
        own = joint.params[name]
        if value.shape != own.shape:
            raise SiteError(
                f"the parameter {name!r} in Pyro's store has shape {tuple(value.shape)}, but the "
                f"model's is {tuple(own.shape)}: the store is of another model"
            )
        with torch.no_grad():
            own.copy_(value)
    return missing


def _require_trained(guide: Any, name: str, call: Call, joint: Joint, store: Store) -> int:
    """Check a run of the guide, and that it finds its parameters; how many numbers these are.

    Raises:
        SiteError: If it lacks a site of the model, or its parameters are new, or others in the
            store than in the guide.
    """
    own = dict(guide.named_parameters()) if isinstance(guide, nn.Module) else {}
    known = {id(value) for value in [*own.values(), *store["params"].values()]}
    before = {key: value.detach().clone() for key, value in own.items()}
    trace = poutine.trace(guide).get_trace(*call.args, **call.kwargs)
    require_sites(set(trace.stochastic_nodes), joint.sites)
    leaves = {}
    for key, node in trace.nodes.items():
        if node["type"] == "param":
            value: Any = node["value"]
            leaves[key] = value.unconstrained() if hasattr(value, "unconstrained") else value
    if new := [key for key, leaf in leaves.items() if id(leaf) not in known]:
        raise SiteError(
            f"the parameters {', '.join(new)} of {name} are neither in the guide nor in Pyro's "
            "store, so that they would be at their first values: train the guide, or load the "
            "store that was saved"
        )
    after = dict(guide.named_parameters()) if own else {}
    _require_same([k for k, value in before.items() if not torch.equal(value, after[k])], name)
    return sum(leaf.numel() for leaf in {id(leaf): leaf for leaf in leaves.values()}.values())


def _require_same(changed: list[str], name: str) -> None:
    """Refuse parameters that a module and the store have each in their way.

    Raises:
        SiteError: If there are any.
    """
    if changed:
        raise SiteError(
            f"the parameters {', '.join(changed)} of {name} have other values in Pyro's store, "
            "which another module of such names may have put there: call pyro.clear_param_store() "
            f"to take those of {name}, or {name} itself once to take those of the store"
        )


# Draws, and whether they are of this model


def _unconstrained(joint: Joint, values: Mapping[str, Tensor], whose: str) -> Tensor:
    """Draws z ``[C, S, P]`` of the sites' values ``[C, S, *shape]``.

    Raises:
        SiteError: If a site is missing or unknown, has another shape, or has values that are not
            inside of its support.
    """
    names = [site.name for site in joint.sites]
    of_model = f"the latent sites of {model_name(joint.model)} are {', '.join(names)}"
    if missing := [name for name in names if name not in values]:
        raise SiteError(
            f"{whose} has no draws of {', '.join(map(repr, missing))}; {of_model}: pass the model "
            "that was run, without save_params"
        )
    if unknown := [name for name in values if name not in names]:
        raise SiteError(f"{whose} has draws of {', '.join(map(repr, unknown))}, but {of_model}")
    for site in joint.sites:
        if (shape := values[site.name].shape[2:]) != site.shape:
            raise SiteError(
                f"{whose} has draws of {site.name!r} of shape {tuple(shape)}, but the site's shape "
                f"in {model_name(joint.model)} is {tuple(site.shape)}"
            )
    with torch.no_grad():
        z = joint.unconstrain(values)
        back = joint.constrain(z)
    for site in joint.sites:
        value = values[site.name]
        eps = max(torch.finfo(v.dtype).eps for v in (value, back[site.name]))
        close = {"rtol": eps**0.5, "atol": eps**0.5}
        bad = ~torch.isclose(back[site.name].to(value), value, **close)
        bad = bad.reshape(*bad.shape[:2], -1).any(-1) | ~z[
            ..., site.start : site.stop
        ].isfinite().all(-1)  # [C, S]
        if bool(bad.any()):
            example = value[bad][0].flatten()[:5].tolist()
            support = f"{site.support}{', which other sites move' * site.is_dependent}"
            raise SiteError(
                f"{int(bad.sum())} of {bad.numel()} draws of {site.name!r} by {whose} are outside "
                f"of its support {support}, on its edge or not finite, such as {example}: pass the "
                "model that it is of"
            )
    return z.detach()


def _first_density(mcmc: MCMC, values: Mapping[str, Tensor]) -> float | None:
    """Log density of the first draw's values in the run, without Jacobians; None if unknown."""
    potential = getattr(mcmc.kernel, "potential_fn", None)
    if potential is None:
        return None
    total, z = 0.0, {}
    for name, value in values.items():
        z[name] = first = value[0, 0]
        if name in (mcmc.transforms or {}):
            transform = mcmc.transforms[name]
            z[name] = u = transform(first)
            total -= float(transform.inv.log_abs_det_jacobian(u, first).sum())
    with torch.no_grad():
        return total - float(potential(z))


def _require_density(problem: Problem | CallProblem, z: Tensor, expected: float | None) -> None:
    """Check that the model on its data has the log joint of the run.

    Raises:
        ModelError: If not.
    """
    if expected is None:
        return
    rows = None if isinstance(problem, CallProblem) else problem.rows
    with torch.no_grad():
        found = float(problem.joint.log_joint(z[0, 0], rows, jacobian=False))
        found += problem.joint.log_hidden
    same = max(SAME, torch.finfo(z.dtype).eps ** 0.5)
    if not math.isclose(found, expected, rel_tol=same, abs_tol=same):
        raise ModelError(
            f"the log joint of {model_name(problem.model)} on these data is {found:.6g} at the "
            f"first draw, and {expected:.6g} in the run: pass the model of the kernel, and the "
            "arguments that mcmc.run had"
        )


def _log_joints(problem: Problem | CallProblem, z: Tensor, provenance: Provenance) -> Tensor:
    """Log joint ``[C, S]`` of each draw.

    Raises:
        SiteError: If it is not finite.
    """
    draws = problem.draws_posterior(z, provenance, {})
    if isinstance(draws, CallDraws):
        lp = draws.log_joint()
    else:
        assert isinstance(problem, Problem)
        lp = draws.log_joint(problem.dataset, draws.num_stored_draws)
    if not bool(lp.isfinite().all()):
        first = z.flatten(0, 1)[~lp.isfinite()][0]
        rows = None if isinstance(problem, CallProblem) else problem.rows
        names = problem.joint.non_finite_terms(first, rows)
        raise SiteError(
            f"{int((~lp.isfinite()).sum())} of {lp.numel()} draws have no density at "
            f"{', '.join(map(repr, names))}: pass the model and the data of the run"
        )
    return lp.reshape(z.shape[:2])


def _diagnosed(
    mcmc: MCMC, num_chains: int, num_draws: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Which draws diverged ``[C, S]``, where the kernel knows it, and options of the run."""
    options: dict[str, Any] = {
        "num_chains": num_chains,
        "num_samples": num_draws,
        "warmup_steps": getattr(mcmc, "warmup_steps", None),
    }
    own = [found or {} for found in getattr(mcmc, "_diagnostics", [])]
    if len(own) != num_chains:
        return {}, options
    if all("acceptance rate" in found for found in own):
        options["acceptance_rate"] = [float(found["acceptance rate"]) for found in own]
    if not all("divergences" in found for found in own):
        return {}, options
    diverging = np.zeros((num_chains, num_draws), dtype=bool)
    for of_chain, found in zip(diverging, own, strict=True):
        of_chain[list(found["divergences"])] = True
    return {"diverging": diverging}, options
