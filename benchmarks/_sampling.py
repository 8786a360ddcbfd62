"""One run of one sampler in this process, for ``benchmarks.nuts``: prints its times as JSON.

``python -m benchmarks._sampling LIBRARY OPTIONS OUT``: options as JSON; the function's draws go to
OUT, an NPY file. Libraries are imported before the clock starts, and it stops when the draws are in
memory; a process imports nothing of another library.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks._posteriors import NOISE_SD, TARGETS, Array, Target

THIN = 4  # steps of BlackJAX's MCLMC between two draws, as this package's has here
TUNING_STEPS = 16  # of its warm-up, for each draw of that


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run samples.

    Attributes:
        target: Name of the posterior, in ``TARGETS``.
        chains: Number of chains C.
        warmup: Warm-up draws of each chain.
        draws: Draws S of each chain that are kept.
        method: How NumPyro runs its chains: ``"vectorized"``, ``"parallel"``, ``"sequential"``.
        steps: Steps of a trajectory, or of a memory, of those that find it; None lets them.
        depth: Trajectories have fewer than 2 to this power leapfrog steps; 10 is every default.
        seed: Seed of the run.
        threads: CPU threads.
    """

    target: str
    chains: int
    warmup: int
    draws: int
    method: str = ""
    steps: int | None = None
    depth: int = 10
    seed: int = 0
    threads: int = 1


class Drawn(NamedTuple):
    """What a sampler has when its clock stops.

    Attributes:
        function_draws: Makes the outputs ``[C, S, M, 1]`` at the points, off the clock.
        phases: Seconds of each phase that the library tells apart.
        steps: Mean gradients of a kept draw; None where the library does not say.
        divergences: Kept draws whose trajectory diverged; None where the library does not say.
    """

    function_draws: Callable[[], Array]
    phases: Mapping[str, float]
    steps: float | None = None
    divergences: int | None = None


Sampler = Callable[[Target, Options], Drawn]


def pyro_bnn(engine: str = "NUTS") -> Sampler:
    """A sampler of this package, ``bnn.NUTS``, at its defaults on ``bnn.models.MLP``."""
    bnn, torch = (importlib.import_module(name) for name in ("pyro_bnn", "torch"))
    made = getattr(bnn, engine)  # rooms are imported when they are first asked for
    importlib.import_module("pyro_bnn.models")

    def sample(target: Target, options: Options) -> Drawn:
        x, y, points = map(torch.from_numpy, (*target.arrays(), target.points()))
        sampler = made(
            num_chains=options.chains,
            warmup_steps=options.warmup,
            num_samples=options.draws,
            **{"NUTS": {"max_tree_depth": options.depth}}.get(engine, {"num_steps": options.steps}),
        )
        posterior = sampler.run(our_model(target), (x, y), seed=options.seed, progress=False)
        total = options.chains * options.draws

        def function_draws() -> Array:
            f: Array = posterior.function_draws(points, total, group_by_chain=True, memory=8 << 30)
            return np.asarray(f)

        stats = posterior.sample_stats
        return Drawn(
            function_draws,
            getattr(posterior.provenance, "phases", {}),
            float(stats.get("n_gradients", stats["n_steps"]).mean()),
            int(stats["diverging"].sum()),
        )

    return sample


def our_model(target: Target) -> Any:
    """The network and its priors, and the noise, at this package's defaults."""
    bnn = importlib.import_module("pyro_bnn")
    inputs, *hidden, _ = target.sizes
    likelihood = bnn.likelihoods.Bernoulli() if target.is_binary else bnn.likelihoods.Normal()
    return bnn.models.MLP(inputs, hidden=tuple(hidden), likelihood=likelihood)


def stock_pyro() -> Sampler:
    """``pyro.infer.MCMC`` of ``pyro.infer.NUTS`` at its defaults, without a progress bar."""
    infer, torch = (importlib.import_module(name) for name in ("pyro.infer", "torch"))
    pyro = importlib.import_module("pyro")

    def sample(target: Target, options: Options) -> Drawn:
        x, y = map(torch.from_numpy, target.arrays())
        pyro.set_rng_seed(options.seed)
        phases: dict[str, float] = defaultdict(float)
        last = time.perf_counter()

        def record(_kernel: Any, _samples: Any, stage: str, _index: int) -> None:
            nonlocal last
            now = time.perf_counter()
            phases["warm-up" if stage.startswith("Warmup") else "sampling"] += now - last
            last = now

        mcmc = infer.MCMC(
            infer.NUTS(pyro_model(target), max_tree_depth=options.depth),
            num_samples=options.draws,
            warmup_steps=options.warmup,
            num_chains=options.chains,
            hook_fn=record,  # tells nothing where Pyro runs its chains in processes of their own
            disable_progbar=True,
        )
        mcmc.run(x, y)
        weights = mcmc.get_samples(group_by_chain=True)
        divergences = sum(map(len, mcmc.diagnostics()["divergences"].values()))
        return Drawn(lambda: target.function_draws(weights), dict(phases), divergences=divergences)

    return sample


def pyro_model(target: Target) -> Callable[..., Any]:
    """The model as a function of stock Pyro, which costs Pyro less than a ``PyroModule``."""
    pyro, torch = (importlib.import_module(name) for name in ("pyro", "torch"))
    dist = importlib.import_module("pyro.distributions")
    sites = {
        name: dist.Normal(torch.zeros(()), torch.tensor(sd)).expand(shape).to_event(len(shape))
        for name, shape, sd in target.priors()
    }

    def model(x: Any, y: Any = None) -> None:
        weights = {name: pyro.sample(name, prior) for name, prior in sites.items()}
        f = target.outputs(weights, x, torch.relu)
        if target.is_binary:
            noise = dist.Bernoulli(logits=f)
        else:
            noise = dist.Normal(f, pyro.sample(NOISE_SD, dist.HalfNormal(torch.tensor(1.0))))
        with pyro.plate("data", len(x)):
            pyro.sample("y", noise, obs=y)

    return model


def numpyro() -> Sampler:
    """``numpyro.infer.MCMC`` of ``numpyro.infer.NUTS`` at its defaults, without a progress bar."""
    jax, infer = (importlib.import_module(name) for name in ("jax", "numpyro.infer"))
    library = importlib.import_module("numpyro")
    phases: dict[str, float] = defaultdict(float)

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):  # tracing, lowering, XLA
            phases["compile"] += seconds

    jax.monitoring.register_event_duration_secs_listener(listen)

    def sample(target: Target, options: Options) -> Drawn:
        x, y = target.arrays()
        if options.method == "parallel":
            library.set_host_device_count(options.chains)
            if (devices := jax.local_device_count()) != options.chains:
                raise RuntimeError(f"{options.chains} parallel chains would share {devices}")
        start = time.perf_counter()
        mcmc = infer.MCMC(
            infer.NUTS(numpyro_model(target), max_tree_depth=options.depth),
            num_warmup=options.warmup,
            num_samples=options.draws,
            num_chains=options.chains,
            chain_method=options.method,
            progress_bar=False,  # its fastest way
        )
        key = jax.random.PRNGKey(options.seed)
        mcmc.run(key, x, y, extra_fields=("num_steps", "diverging"))
        weights = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
        phases["warm-up and sampling"] = time.perf_counter() - start - phases["compile"]
        extra = mcmc.get_extra_fields()
        return Drawn(
            lambda: target.function_draws(weights),
            dict(phases),
            float(extra["num_steps"].mean()),
            int(extra["diverging"].sum()),
        )

    return sample


def numpyro_model(target: Target) -> Callable[..., Any]:
    """The model as a function of NumPyro."""
    names = ("numpyro", "numpyro.distributions", "jax.nn")
    library, dist, nn = (importlib.import_module(name) for name in names)

    def model(x: Any, y: Any = None) -> None:
        weights = {
            name: library.sample(name, dist.Normal(0.0, sd).expand(shape).to_event(len(shape)))
            for name, shape, sd in target.priors()
        }
        f = target.outputs(weights, x, nn.relu)
        if target.is_binary:
            noise = dist.Bernoulli(logits=f)
        else:
            noise = dist.Normal(f, library.sample(NOISE_SD, dist.HalfNormal(1.0)))
        with library.plate("data", len(x)):
            library.sample("y", noise, obs=y)

    return model


def blackjax() -> Sampler:
    """BlackJAX's MCLMC on NumPyro's density, tuned by its ``mclmc_find_L_and_step_size``."""
    names = ("jax", "numpyro.infer.util", "blackjax", "blackjax.mcmc.mclmc")
    jax, infer, peer, mclmc = map(importlib.import_module, names)

    def sample(target: Target, options: Options) -> Drawn:
        first, *keys = jax.random.split(jax.random.PRNGKey(options.seed), options.chains + 1)
        model = infer.initialize_model(
            jax.random.split(first, options.chains),
            numpyro_model(target),
            model_args=target.arrays(),
        )
        kernel = mclmc.build_kernel()

        def density(z: Any) -> Any:
            return -model.potential_fn(z)

        def chain(key: Any, z: Any) -> Any:
            begin, tune, draw = jax.random.split(key, 3)
            state, found, _ = peer.mclmc_find_L_and_step_size(
                mclmc_kernel=kernel,
                num_steps=3 * TUNING_STEPS * options.warmup,  # of which it takes a third
                state=mclmc.init(z, density, begin),
                rng_key=tune,
                logdensity_fn=density,
            )

            def step(state: Any, key: Any) -> Any:
                metric = found.inverse_mass_matrix
                return kernel(key, state, density, metric, found.L, found.step_size)

            def thinned(state: Any, key: Any) -> Any:
                state, info = jax.lax.scan(step, state, jax.random.split(key, THIN))
                return state, (state.position, ~info.nonans.all())

            return jax.lax.scan(thinned, state, jax.random.split(draw, options.draws))[1]

        weights, diverging = jax.pmap(chain)(np.stack(keys), model.param_info.z)
        jax.block_until_ready(weights)
        num_gradients = 2.0 * THIN  # of the minimal norm
        found = int(diverging.sum())
        return Drawn(lambda: target.function_draws(weights), {}, num_gradients, found)

    return sample


SAMPLERS: Mapping[str, Callable[[], Sampler]] = {
    "pyro_bnn": pyro_bnn,
    **{f"pyro_bnn {name}": partial(pyro_bnn, name) for name in ("HMC", "MAMS", "MCLMC")},
    "numpyro": numpyro,
    "blackjax": blackjax,
    "pyro": stock_pyro,
}


def main(argv: Sequence[str]) -> None:
    """Sample, keep the function's draws and print one line of JSON."""
    from benchmarks._settings import set_threads

    name, options, out = argv
    wanted = Options(**json.loads(options))
    if name == "blackjax":  # a device a chain; its import makes the devices
        importlib.import_module("numpyro").set_host_device_count(wanted.chains)
    sample = SAMPLERS[name]()
    set_threads(wanted.threads)
    TARGETS[wanted.target].arrays()  # what reads data is imported too
    imported = time.time()  # the clock of the process that started this one
    start = time.perf_counter()
    drawn = sample(TARGETS[wanted.target], wanted)
    seconds = time.perf_counter() - start
    np.save(out, drawn.function_draws())
    found = {
        "imported": imported,
        "seconds": seconds,
        "phases": dict(drawn.phases),
        "steps": drawn.steps,
        "divergences": drawn.divergences,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
