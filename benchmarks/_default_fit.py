"""One fit at its defaults in this process, for ``benchmarks.default``: prints its times as JSON.

``python -m benchmarks._default_fit OPTIONS OUT``: options as JSON; the q of every hundredth step
goes to OUT, an NPZ file, where marks are asked for. Libraries are imported before the clock starts,
and a process imports nothing of another library.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._posteriors import DIABETES
from benchmarks._problem import LEARNING_RATE, Problem

STEPS = 10_000  # the default of this package's SVI
EVERY = 100  # steps between two marks: this package looks back as often
Arrays = dict[str, NDArray[Any]]


class Diabetes(Problem):
    """The training rows of diabetes, all of them in every step."""

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Standardised x ``[N, I]`` and y ``[N]``."""
        return DIABETES.arrays()


PROBLEMS: Mapping[str, Problem] = {
    "diabetes": Diabetes(10, (50,), batch=398, num_data=398),
    "batches": Problem(10, (50,), batch=128),
    "wide": Problem(784, (400, 400), batch=256),
    "quick": Problem(3, (4,), batch=16, num_data=32),
}


class Method(NamedTuple):
    """A guide and the model that it is fitted to, by their classes; the rest is at its default."""

    guide: str
    model: str = "MLP"
    prior: str | None = None


METHODS: Mapping[str, Method] = {
    "AutoDelta": Method("AutoDelta"),
    "AutoNormal": Method("AutoNormal"),
    "AutoLowRankMultivariateNormal": Method("AutoLowRankMultivariateNormal"),
    "AutoRank1Mixture": Method("AutoRank1Mixture", model="Rank1MLP"),
    "AutoNormal under HalfCauchyScale": Method("AutoNormal", prior="HalfCauchyScale"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a process fits.

    Attributes:
        library: Name in ``FITS``.
        problem: Name in ``PROBLEMS``.
        method: Name in ``METHODS``.
        steps: Optimiser steps.
        compile: Option of this package's SVI.
        marks: Whether the time and q of every hundredth step are kept.
        seed: Seed of the run.
        threads: CPU threads.
    """

    library: str
    problem: str
    method: str = "AutoNormal"
    steps: int = STEPS
    compile: Any = "auto"
    marks: bool = False
    seed: int = 0
    threads: int = 1


class Course:
    """What is seen of a fit while it runs.

    Attributes:
        seconds: Time of each mark since :meth:`start`.
        shapes: What describes q at each mark.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.shapes: list[Arrays] = []
        self._start = 0.0

    def start(self) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def mark(self, shape: Mapping[str, Any]) -> None:
        """Keep the time, and copies of the tensors that describe q."""
        self.seconds.append(self.elapsed())
        self.shapes.append({n: values.numpy().copy() for n, values in shape.items()})


Fit = Callable[[Options, Course], None]


def pyro_bnn() -> Fit:
    """``bnn.SVI`` with nothing set but its guide and, for minibatches, their size."""
    torch = importlib.import_module("torch")

    def fit(options: Options, course: Course) -> None:
        model, svi = our_model(options), our_svi(options)
        x, y = map(torch.from_numpy, PROBLEMS[options.problem].arrays())
        with _marking(svi, course) if options.marks else nullcontext():
            course.start()
            svi.run(model, (x, y), seed=options.seed)

    return fit


def our_model(options: Options) -> Any:
    """The network of a method on a problem."""
    bnn = importlib.import_module("pyro_bnn")
    problem, method = PROBLEMS[options.problem], METHODS[options.method]
    prior = {} if method.prior is None else {"prior": getattr(bnn.priors, method.prior)()}
    return getattr(bnn.models, method.model)(problem.num_inputs, hidden=problem.hidden, **prior)


def our_svi(options: Options) -> Any:
    """The engine."""
    bnn = importlib.import_module("pyro_bnn")
    problem = PROBLEMS[options.problem]
    size = None if problem.batch == problem.num_data else problem.batch
    guide = getattr(bnn.guides, METHODS[options.method].guide)
    return bnn.SVI(
        guide,
        num_steps=options.steps,
        batch_size=size,
        schedule="cosine",
        estimator="weight_sampling",  # as Pyro draws
        compile=options.compile,
    )


@contextmanager
def _marking(svi: Any, course: Course) -> Iterator[None]:
    """Mark where SVI, which calls nobody back, looks back at every hundred steps."""
    training: Any = sys.modules[type(svi).__module__].Training
    look_back = training._look_back

    def mark(run: Any, *args: Any) -> None:
        look_back(run, *args)
        course.mark(our_shape(run.guide))

    training._look_back = mark
    try:
        yield
    finally:
        training._look_back = look_back


def our_shape(guide: Any) -> dict[str, Any]:
    """What describes a guide of this package, as ``_default_elbo.ELBO`` reads it."""
    names = {"loc": "loc", "scale": "scale", "cov_factor": "factor"}
    have = {new: getattr(guide, old, None) for old, new in names.items()}
    return {name: values.detach() for name, values in have.items() if values is not None}


def stock_pyro() -> Fit:
    """``pyro.infer.SVI`` with Pyro's guide of the same name, ``Trace_ELBO`` and Adam."""
    pyro, torch = (importlib.import_module(name) for name in ("pyro", "torch"))
    infer = importlib.import_module("pyro.infer.autoguide")
    make_model = importlib.import_module("benchmarks._sampling").pyro_model

    def fit(options: Options, course: Course) -> None:
        x, y = map(torch.from_numpy, PROBLEMS[options.problem].arrays())
        model = make_model(DIABETES)
        pyro.set_rng_seed(options.seed)
        course.start()
        guide = getattr(infer, METHODS[options.method].guide)(model)
        adam = pyro.optim.Adam({"lr": LEARNING_RATE})
        svi = pyro.infer.SVI(model, guide, adam, pyro.infer.Trace_ELBO())
        for step in range(1, options.steps + 1):
            svi.step(x, y)
            if options.marks and step % EVERY == 0:
                course.mark(pyro_shape(guide))

    return fit


def pyro_shape(guide: Any) -> dict[str, Any]:
    """What describes a guide of Pyro, its sites in the order in which the model draws them."""
    torch = importlib.import_module("torch")
    if hasattr(guide, "cov_factor"):
        found = {"loc": guide.loc, "scale": guide.scale, "factor": guide.cov_factor}
        return {name: values.detach() for name, values in found.items()}
    sites = dict(guide.prototype_trace.iter_stochastic_nodes())
    if hasattr(guide, "scales"):
        pairs = [guide._get_loc_and_scale(name) for name in sites]
        parts = zip(("loc", "scale"), zip(*pairs, strict=True), strict=True)
        return {n: torch.cat([v.detach().flatten() for v in values]) for n, values in parts}
    # a point estimate, which Pyro holds in the sites' own coordinates
    biject_to, values = torch.distributions.biject_to, guide.median()
    z = [biject_to(site["fn"].support).inv(values[name]) for name, site in sites.items()]
    return {"loc": torch.cat([value.flatten() for value in z])}


def deterministic() -> Fit:
    """The network without a posterior, eager, under fused Adam, on one batch."""
    make = importlib.import_module("benchmarks._contenders").deterministic

    def fit(options: Options, course: Course) -> None:
        contender = make(PROBLEMS[options.problem])
        course.start()
        contender.advance(options.steps)

    return fit


FITS: Mapping[str, Callable[[], Fit]] = {
    "pyro_bnn": pyro_bnn,
    "pyro": stock_pyro,
    "deterministic": deterministic,
}


def main(argv: Sequence[str]) -> None:
    """Fit, keep the course and print one line of JSON."""
    from benchmarks._settings import set_threads

    options = Options(**json.loads(argv[0]))
    fit, course = FITS[options.library](), Course()
    set_threads(options.threads)
    fit(options, course)
    seconds = course.elapsed()
    if options.marks and all("loc" in shape for shape in course.shapes):
        shapes = {name: np.stack([s[name] for s in course.shapes]) for name in course.shapes[0]}
        np.savez(argv[1], allow_pickle=False, **shapes)
    print(json.dumps({"seconds": seconds, "marks": course.seconds}))


if __name__ == "__main__":
    main(sys.argv[1:])
