"""One run on one posterior in this process, for ``benchmarks.posteriordb``: prints JSON.

``python -m benchmarks._posteriordb_sampling LIBRARY OPTIONS OUT``: options as JSON; draws of the
sites that the reference has go to OUT, an NPZ file. All is in 64 bits. The clock of a run starts
when the libraries are imported and stops when its draws are in memory; the process that started
this one adds what was before.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from benchmarks._posteriordb import Array, arguments, sites


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run samples.

    Attributes:
        name: The posterior.
        chains: Number of chains C.
        warmup: Warm-up draws of each chain.
        draws: Draws S of each chain that are kept.
        method: How NumPyro runs its chains: ``"vectorized"`` or ``"parallel"``.
        seed: Seed of the run.
        threads: CPU threads.
    """

    name: str
    chains: int = 4
    warmup: int = 1_000
    draws: int = 1_000
    method: str = ""
    seed: int = 0
    threads: int = 1


class Drawn(NamedTuple):
    """What a sampler has when its clock stops.

    Attributes:
        draws: Of each site, ``[C, S, *shape]``.
        phases: Seconds of each phase that the library tells apart.
        steps: Mean gradients of a kept draw; None where the library does not say.
        divergences: Kept draws whose trajectory diverged.
    """

    draws: Mapping[str, Any]
    phases: Mapping[str, float]
    steps: float | None
    divergences: int


Sampler = Callable[[Options], Drawn]


def pyro_bnn() -> Sampler:
    """``bnn.NUTS`` at its defaults on the plain Pyro model."""
    bnn, torch = (importlib.import_module(name) for name in ("pyro_bnn", "torch"))
    models = importlib.import_module("benchmarks._posteriordb_models").MODELS
    nuts, call = bnn.NUTS, bnn.data.Call  # rooms are imported when they are first asked for
    torch.set_default_dtype(torch.float64)

    def sample(options: Options) -> Drawn:
        given = call(*map(torch.as_tensor, arguments(options.name)))
        sampler = nuts(
            num_chains=options.chains, warmup_steps=options.warmup, num_samples=options.draws
        )
        posterior = sampler.run(models[options.name], given, seed=options.seed, progress=False)
        draws = posterior.sample(options.chains * options.draws, group_by_chain=True)
        stats = posterior.sample_stats
        return Drawn(
            draws,
            getattr(posterior.provenance, "phases", {}),
            float(stats["n_steps"].mean()),
            int(stats["diverging"].sum()),
        )

    return sample


def numpyro() -> Sampler:
    """``numpyro.infer.MCMC`` of ``numpyro.infer.NUTS`` at its defaults, without a progress bar."""
    jax, infer = (importlib.import_module(name) for name in ("jax", "numpyro.infer"))
    library = importlib.import_module("numpyro")
    library.enable_x64()
    models = importlib.import_module("benchmarks._posteriordb_numpyro").MODELS
    phases: dict[str, float] = defaultdict(float)

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):  # tracing, lowering, XLA
            phases["compile"] += seconds

    jax.monitoring.register_event_duration_secs_listener(listen)

    def sample(options: Options) -> Drawn:
        if options.method == "parallel":
            library.set_host_device_count(options.chains)
            if (devices := jax.local_device_count()) != options.chains:
                raise RuntimeError(f"{options.chains} parallel chains would share {devices}")
        start = time.perf_counter()
        mcmc = infer.MCMC(
            infer.NUTS(models[options.name]),
            num_warmup=options.warmup,
            num_samples=options.draws,
            num_chains=options.chains,
            chain_method=options.method,
            progress_bar=False,  # its fastest way
        )
        key = jax.random.PRNGKey(options.seed)
        mcmc.run(key, *arguments(options.name), extra_fields=("num_steps", "diverging"))
        draws = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
        phases["warm-up and sampling"] = time.perf_counter() - start - phases["compile"]
        extra = mcmc.get_extra_fields()
        return Drawn(
            draws, dict(phases), float(extra["num_steps"].mean()), int(extra["diverging"].sum())
        )

    return sample


def nutpie() -> Sampler:
    """``nutpie.sample`` at its defaults on the density that NumPyro's model has in JAX."""
    names = ("jax", "numpyro", "nutpie", "numpyro.infer.util", "jax.flatten_util")
    jax, library, peer, util, flatten = (importlib.import_module(name) for name in names)
    compiled = importlib.import_module("nutpie.compiled_pyfunc")
    library.enable_x64()
    models = importlib.import_module("benchmarks._posteriordb_numpyro").MODELS

    def sample(options: Options) -> Drawn:
        start, key = time.perf_counter(), jax.random.PRNGKey(options.seed)
        model = util.initialize_model(key, models[options.name], model_args=arguments(options.name))
        first, unflatten = flatten.ravel_pytree(model.param_info.z)
        density = jax.jit(jax.value_and_grad(lambda z: -model.potential_fn(unflatten(z))))

        def log_density(z: Any) -> tuple[float, Any]:
            value, slope = density(z)
            return float(value), np.asarray(slope)

        def expand(z: Any) -> dict[str, Any]:
            return {"z": np.asarray(z)}

        log_density(np.asarray(first))
        made = compiled.from_pyfunc(
            len(first),
            lambda: log_density,
            lambda *_: expand,
            [np.dtype("float64")],
            [first.shape],
            ["z"],
        )
        compiling = time.perf_counter() - start
        trace = peer.sample(
            made,
            draws=options.draws,
            tune=options.warmup,
            chains=options.chains,
            cores=options.threads,
            seed=options.seed,
            progress_bar=False,
        )
        z = trace.posterior["z"].to_numpy()  # [C, S, P]
        constrain = jax.jit(jax.vmap(jax.vmap(lambda z: model.postprocess_fn(unflatten(z)))))
        draws = jax.block_until_ready(constrain(z))
        phases = {
            "compile": compiling,
            "warm-up and sampling": time.perf_counter() - start - compiling,
        }
        stats = trace.sample_stats
        steps, diverging = (stats[key].to_numpy() for key in ("n_steps", "diverging"))
        return Drawn(draws, phases, float(steps.mean()), int(diverging.sum()))

    return sample


def stock_pyro() -> Sampler:
    """``pyro.infer.MCMC`` of ``pyro.infer.NUTS`` at its defaults, without a progress bar.

    Pyro's MCMC draws from a model once before it starts and ``ImproperUniform`` refuses that, so
    it gets a draw here: uniform within 2 of 0 on the unconstrained scale.
    """
    pyro, infer, torch = (importlib.import_module(name) for name in ("pyro", "pyro.infer", "torch"))
    models = importlib.import_module("benchmarks._posteriordb_models").MODELS
    torch.set_default_dtype(torch.float64)

    def draw(self: Any, sample_shape: Any = ()) -> Any:
        transform = torch.distributions.transform_to(self.support)
        shape = transform.inverse_shape(self.shape(sample_shape))
        return transform(4 * torch.rand(shape) - 2)

    pyro.distributions.ImproperUniform.sample = draw

    def sample(options: Options) -> Drawn:
        pyro.set_rng_seed(options.seed)
        phases: dict[str, float] = defaultdict(float)
        last = time.perf_counter()

        def record(_kernel: Any, _samples: Any, stage: str, _index: int) -> None:
            nonlocal last
            now = time.perf_counter()
            phases["warm-up" if stage.startswith("Warmup") else "sampling"] += now - last
            last = now

        model, given = models[options.name], list(map(torch.as_tensor, arguments(options.name)))
        mcmc = infer.MCMC(
            infer.NUTS(model),
            num_samples=options.draws,
            warmup_steps=options.warmup,
            num_chains=options.chains,
            hook_fn=record,  # tells nothing where Pyro runs its chains in processes of their own
            disable_progbar=True,
        )
        mcmc.run(*given)
        draws = mcmc.get_samples(group_by_chain=True)
        shape = (options.chains, options.draws)
        if missing := set(sites(options.name)) - set(draws):  # functions of the others
            flat = mcmc.get_samples()
            returned = infer.Predictive(model, flat, return_sites=missing, parallel=False)(*given)
            for site, value in returned.items():  # Pyro may put a dimension of 1 before its own
                draws[site] = value.reshape(*shape, *value.squeeze(1).shape[1:])
        divergences = sum(map(len, mcmc.diagnostics()["divergences"].values()))
        return Drawn(draws, dict(phases), None, divergences)

    return sample


SAMPLERS: Mapping[str, Callable[[], Sampler]] = {
    "pyro_bnn": pyro_bnn,
    "numpyro": numpyro,
    "nutpie": nutpie,
    "pyro": stock_pyro,
}


def main(argv: Sequence[str]) -> None:
    """Sample, keep the draws and print one line of JSON."""
    from benchmarks._settings import set_threads

    name, options, out = argv
    wanted = Options(**json.loads(options))
    sample = SAMPLERS[name]()
    set_threads(wanted.threads)
    imported = time.time()  # the clock of the process that started this one
    drawn = sample(wanted)
    done = time.time()
    kept: dict[str, Array] = {site: np.asarray(drawn.draws[site]) for site in sites(wanted.name)}
    np.savez(out, **kept)  # type: ignore[arg-type]  # its other option is no site's name
    found = {
        "imported": imported,
        "done": done,
        "phases": dict(drawn.phases),
        "steps": drawn.steps,
        "divergences": drawn.divergences,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
