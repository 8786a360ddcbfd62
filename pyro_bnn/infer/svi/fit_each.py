r"""One kind of guide fitted to many data sets of one model, with a step for all of them at once.

The parameters of D guides are stacked, and the objective is the sum of theirs, so that its gradient
is that of each; Adam goes by entries, so its steps are those of D runs of SVI.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from pyro_bnn.capture.captured import Captured, value_and_grad
from pyro_bnn.capture.compilers import compiler_of
from pyro_bnn.errors import CaptureError
from pyro_bnn.guides import Guide
from pyro_bnn.infer.compiling import C_TIME, is_compiled
from pyro_bnn.infer.inputs import set_up, unchanged
from pyro_bnn.infer.run import weight_of_kl
from pyro_bnn.infer.svi.estimators.by_name import FOR_ALL
from pyro_bnn.infer.svi.rounds import ends_of_rounds
from pyro_bnn.infer.svi.svi import SVI, make_guide
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.program.batched import without_vmap_warnings
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import derived_seed, isolated
from pyro_bnn.program.terms import Batch

AT_ONCE = 256  # data sets at once; larger operations are no faster
NUMBERS = 1 << 22  # parameters of all guides at once
NOISE = 1  # stream of random numbers beside that of the starts
FEW = 0.05  # share of fits that may still rise where all of them end
PAIRS = 200  # of objectives at one noise, that the ends of two rounds are compared by


def fits_at_once(engine: object) -> bool:
    """Whether an engine is SVI with options that leave the steps of many fits apart.

    Clipping goes by the norm of all gradients, patience by one objective, and other optimisers and
    estimators, minibatches and draws for each row are not built here.
    """
    return (
        isinstance(engine, SVI)
        and not isinstance(engine.guide, nn.Module)  # a guide instance would be trained in place
        and engine.optimizer is None
        and engine.batch_size is engine.patience is None
        and engine.clip_norm is None
        and not engine.per_example_draws
        and engine.estimator in FOR_ALL
    )


def fit_each(
    svi: SVI, program: Program, x: Tensor, ys: Tensor, *, seed: int = 0, progress: bool = True
) -> Iterator[Guide | None]:
    """A guide for each data set, fitted by the options of an SVI for which ``fits_at_once`` holds.

    Args:
        svi: The options.
        program: The model, without point-estimated parameters that are trained.
        x: Inputs ``[N, ...]`` of every data set.
        ys: Observations ``[D, N, ...]``.
        seed: Seed of starts and noise.
        progress: Whether to show a progress bar over steps.

    Yields:
        A trained guide, or None where its objective or a parameter became NaN or infinite.

    Raises:
        CaptureError: If the guide or the model cannot be batched over data sets.
    """
    size = sum(p.numel() for p in _new_guide(svi, program, seed).parameters())
    at_once = max(min(AT_ONCE, NUMBERS // max(size, 1)), 1)
    for start in range(0, len(ys), at_once):
        batches = [program.batch(x, y) for y in ys[start : start + at_once]]
        seeds = (derived_seed(seed, start + d) for d in range(len(batches)))
        guides = [_new_guide(svi, program, own) for own in seeds]
        with isolated(), unchanged(program.model):
            fits = _train(svi, program, guides, batches, seed + start, progress=progress)
        yield from fits


def _new_guide(svi: SVI, program: Program, seed: int) -> Guide:
    with isolated(seed), unchanged(program.model):
        guide = make_guide(svi.guide, program.model)
        if not isinstance(guide, Guide):
            raise CaptureError("a guide of stock Pyro is not batched over data sets")
        set_up(guide, program)
    program.prepare(guide)
    return guide


def _train(
    svi: SVI,
    program: Program,
    guides: Sequence[Guide],
    batches: Sequence[Batch],
    seed: int,
    *,
    progress: bool,
) -> list[Guide | None]:
    """The guides, trained in place."""
    guide, x = guides[0], batches[0].x
    ys = torch.stack([batch.y for batch in batches])  # [D, N, ...]
    names = [name for name, _ in guide.named_parameters()]
    parameters = zip(*(own.parameters() for own in guides), strict=True)
    stacked = [torch.stack(of_each).detach() for of_each in parameters]

    def one(noise: Tensor, y: Tensor, x: Tensor, weight: Tensor, *values: Tensor) -> Tensor:
        params = {f"guide.{name}": value for name, value in zip(names, values, strict=True)}
        return program.elbo(guide, params, noise, Batch(x, y)).loss(weight)

    def loss(
        variables: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        noise, x, ys, weight = rest
        of_each = (0, 0, None, None, *(0 for _ in variables))
        losses = torch.func.vmap(one, of_each)(noise, ys, x, weight, *variables)  # [D]
        return losses.sum(), (losses,)

    num_numbers = sum(values.numel() for values in stacked)
    gains = functools.partial(is_compiled, svi.compile, svi.likely_steps, num_numbers)
    step = Captured(
        value_and_grad(loss, len(names)),
        f"{type(guide).__name__} on {len(guides)} data sets",
        compiled=gains(C_TIME),
        compiler=compiler_of(is_long=gains()),
    )
    descent = svi.descent(stacked)
    loc_warmup = svi.warmup_of(guide, is_new=True)
    generator = torch.Generator(program.device).manual_seed(derived_seed(seed, NOISE))
    is_good = torch.ones(len(guides), dtype=torch.bool, device=program.device)
    ends = set(ends_of_rounds(svi.planned_steps)) if svi.ends_by_itself else set[int]()
    before: list[Tensor] | None = None
    total = None if svi.ends_by_itself else svi.num_steps
    bar = tqdm(disable=not progress, desc=f"{len(guides)} fits", unit="step", total=total)
    for number in range(svi.planned_steps):
        noise = guide.draw_noise(len(guides) * svi.num_particles, generator)
        noise = noise.unflatten(0, (len(guides), -1))  # [D, K, M]
        weight = weight_of_kl(number, svi.kl_warmup)
        try:
            _, losses, *gradients = step(*stacked, noise, x, ys, program.initial.new_tensor(weight))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise CaptureError(
                f"{type(guide).__name__} cannot be batched over data sets: {reason}"
            ) from error
        is_good &= losses.isfinite()
        for name, parameter, gradient in zip(names, stacked, gradients, strict=True):
            is_held = number < loc_warmup and name not in guide.mean_params
            parameter.grad = None if is_held else gradient
        descent.step(number)
        bar.update()
        if number + 1 not in ends:
            continue
        now = [parameter.clone() for parameter in stacked]
        if before is not None and number + 1 >= 2 * max(svi.kl_warmup, loc_warmup):
            rising = _num_rising(guide, one, before, now, ys, x, generator)
            if rising <= FEW * len(guides):
                break
        before = now
    bar.close()
    for parameter in stacked:
        is_good &= parameter.isfinite().flatten(1).all(1)
    for d, own in enumerate(guides):
        for parameter, values in zip(own.parameters(), stacked, strict=True):
            parameter.data.copy_(values[d])
    return [own if good else None for own, good in zip(guides, is_good.tolist(), strict=True)]


def _num_rising(
    guide: Guide,
    loss: Callable[..., Tensor],
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    ys: Tensor,
    x: Tensor,
    generator: torch.Generator,
) -> int:
    """How many of the fits the last round still raised, each by losses at one noise."""
    state = generator.get_state()  # the steps go on as if nothing had been asked
    weight = x.new_ones(()) if x.is_floating_point() else before[0].new_ones(())
    gains = []
    with torch.no_grad(), without_vmap_warnings():
        for _ in range(PAIRS if guide.noise_dim else 2):
            noise = guide.draw_noise(1, generator)
            of_each = (None, 0, None, None, *(0 for _ in after))
            first, last = (
                torch.func.vmap(loss, of_each)(noise, ys, x, weight, *values)
                for values in (before, after)
            )
            gains.append(first - last)  # [D]
    generator.set_state(state)
    rows = torch.stack(gains).double()  # [S, D]
    means, errors = rows.mean(0), rows.std(0) / len(rows) ** 0.5
    doublings = (Doubling(float(m), float(e), 0) for m, e in zip(means, errors, strict=True))
    return sum(doubling.is_unfinished for doubling in doublings)
