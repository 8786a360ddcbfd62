r"""Stochastic variational inference: maximise the ELBO of a guide by stochastic gradients.

.. math:: \mathcal L = \tfrac NB \sum_b E_q \log p(y_b \mid x_b, z)
          - \beta_t\, \mathrm{KL}\bigl(q(z) \,\|\, p(z)\bigr)

with the KL weight :math:`\beta_t = \min(1, t / \text{kl\_warmup})`. Kingma & Welling, ICLR 2014,
arXiv:1312.6114; Blundell et al., ICML 2015, arXiv:1505.05424.
"""

from __future__ import annotations

import copy
import functools
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import DataLoader

from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.handled import module_of
from pyro_bnn.infer.batches import batches_of
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.engine import (
    Data,
    Init,
    as_dataset,
    check_positive_int,
    program_of,
    unchanged,
)
from pyro_bnn.infer.svi.estimators.by_name import WEIGHT_SAMPLING
from pyro_bnn.infer.svi.options import GuideSpec, SVIOptions, name_of
from pyro_bnn.infer.svi.stock import run_stock_guide
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.infer.warm_start import start_guide
from pyro_bnn.posterior.posterior import GuidePosterior, Posterior
from pyro_bnn.posterior.provenance import Provenance, of_data
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.random_state import isolated


@dataclass(frozen=True)
class SVI(SVIOptions):
    """Stochastic variational inference with any guide.

    Args:
        guide: A guide class, a ``functools.partial`` of one, a callable of the model that returns
            a guide, an instance (trained in place; the posterior holds a copy, and beside it the
            model's point estimates, which start at the model's values in every run), or a guide
            from stock Pyro, which runs through Pyro's own ``Trace_ELBO``.
        num_steps: Gradient steps.
        learning_rate: Step size of the optimiser at the start.
        optimizer: A ``torch.optim`` class or a partial of one, called with the parameters and
            ``lr``, or a callable of the parameters, which sets its own step size. Default: Adam.
        batch_size: Rows a step; default all. Each batch's likelihood is scaled by N/B. A
            ``DataLoader`` has its own.
        num_particles: Draws of z a step.
        per_example_draws: Whether each row of a step has draws of its own, which lowers the
            variance of the likelihood's gradient at the cost of one network a row; the KL is as
            without. Noise takes ``num_particles`` times B times M numbers.
        estimator: How the likelihood's expectation is estimated; the KL is the same in all, and so
            is the expectation of the gradient. ``"weight_sampling"`` draws the weights, for every
            guide. The others take ``guides.AutoNormal`` and have a lower variance:
            ``"local_reparameterization"`` draws the outputs of linear layers, independent over
            rows; ``"flipout"`` gives the draw of the weights signs of its own in each row, in
            linear layers and convolutions; ``"analytic"`` draws nothing, for an ``MLP`` with one
            hidden ReLU layer and Gaussian noise.
        kl_warmup: Steps over which the KL weight grows linearly to 1; 0 for none.
        loc_warmup: Steps at the start in which the scales of the guide are held at their initial
            values while its means, and the model's point estimates, are trained. Without them
            scales may grow before hidden units have found a use, and the KL switches these off for
            good; with them the fit may end in another optimum, of a higher or a lower ELBO: try 0
            as well. Default: a tenth of ``num_steps`` where a new guide has one vector of means
            ``loc [P]`` (an ``AutoNormalMixture`` one a component) beside other parameters, and
            neither ``init`` nor ``patience`` is given; else 0.
        patience: Steps without a better smoothed ELBO after which to stop, counted from the end
            of ``kl_warmup`` and ``loc_warmup``; default never.
        schedule: ``"cosine"`` decays the step size to 0 over ``num_steps``; ``"constant"``.
        clip_norm: Largest norm of the gradient, in nats per unit of the parameters; default none.
        compile: Whether the step is compiled, which takes about ten seconds the first time and a
            second or two once it is cached: ``"auto"`` where the run is long enough to gain from
            it, True always, an error where that cannot be, False never. Uncompiled the step is
            replayed as a graph of operations.

    Raises:
        OptionError: If an option is out of its range.
        UnknownNameError: If there is no estimator of this name.

    Example:
        >>> import torch
        >>> from pyro_bnn import guides, models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> model = models.MLP(1, hidden=(5,))
        >>> posterior = SVI(guides.AutoNormal, num_steps=5).run(model, (x, x[:, 0]), progress=False)
        >>> posterior.predict(x).mean.shape
        torch.Size([20, 1])
    """

    def run(
        self,
        model: Model,
        data: Data,
        *,
        init: Init = None,
        seed: int = 0,
        progress: bool = True,
        checkpoint: str | Path | None = None,
        resume: bool = False,
    ) -> Posterior:
        """Fit the guide.

        Args:
            model: Pyro model ``model(x, y=None)``.
            data: A ``Dataset``, a pair (x, y), or a ``DataLoader``.
            init: Where to start: a posterior (its mean and standard deviations, or all that a
                guide of the same form has), a trained module, or values of sites.
            seed: Seed, >= 0, of the start, the noise and the order of the data.
            progress: Whether to show a progress bar with the smoothed ELBO.
            checkpoint: Folder in which the state of the run is saved, at its start, every half
                minute and at its end.
            resume: Whether to go on from the checkpoint, with the same model, data and options.
                The fit is then, bit for bit, that of a run which was never stopped, on the same
                machine with the same number of threads and versions, except with a ``DataLoader``;
                a line says where it is not. Without a checkpoint there, the run starts anew.
                ``init`` is not compared, but at frozen parameters of the model: the run goes on
                from where it was.

        Returns:
            The fitted posterior; the model's point parameters are trained in it, not in ``model``.

        Raises:
            CaptureError: If ``compile=True`` and the step cannot be compiled.
            DataError, OptionError, SiteError: If the checkpoint is of another run; names what
                differs.
            DivergenceError: If the loss becomes NaN or infinite; names the step and the sites, and
                holds the posterior at the last good state.
            FileFormatError: If the checkpoint is damaged, foreign or newer.
            Interrupted: If Ctrl-C came; holds the posterior at the step that was reached.
            ModelError: If the model breaks the contract.
            OptionError: If the seed is negative, an option has no effect or does not serve the
                guide or the model, or there is a checkpoint in the folder already and ``resume``
                is False.
            OutputError: If the checkpoint cannot be written.
            SiteError: If the guide does not cover a site of the model, or the estimator does not
                serve one.
        """
        check_positive_int("seed", seed, minimum=0)
        if self.batch_size is not None and isinstance(data, DataLoader):
            raise OptionError(
                f"batch_size={self.batch_size} would have no effect, as a DataLoader makes its own "
                "batches: set it there, or pass the data set"
            )
        start = time.perf_counter()
        with isolated(seed):
            dataset = as_dataset(data)  # a DataLoader draws from the global random state
        with isolated(seed), unchanged(model):
            frozen = _frozen(model)  # Pyro's parameter store thaws them
            with isolated():
                guide = make_guide(self.guide, model)
            if not isinstance(guide, Guide):
                if self.compile is True:
                    raise OptionError(
                        "compile=True is not built for guides of stock Pyro: leave it at "
                        '"auto", or use a guide of pyro_bnn.guides'
                    )
                if self.estimator != WEIGHT_SAMPLING:
                    raise OptionError(
                        f'estimator="{self.estimator}" is not built for guides of stock Pyro: take '
                        "guides.AutoNormal of this package"
                    )
                if init is not None or self.patience is not None or self.per_example_draws:
                    raise OptionError(
                        "init, patience and per_example_draws are not built for guides of stock "
                        "Pyro: leave them at their defaults, and start the guide with its own "
                        "init_loc_fn"
                    )
                self.warmup_of(guide)
                own = model if module_of(model) is None else copy.deepcopy(model)
                guide = make_guide(self.guide, own)
                return run_stock_guide(
                    self,
                    own,
                    guide,
                    data,
                    dataset,
                    frozen=frozen,
                    seed=seed,
                    progress=progress,
                    checkpoint=checkpoint,
                    resume=resume,
                )
            program = program_of(model, dataset)
            for name in frozen:
                program.params[name].requires_grad = False
            batch = program.batch(dataset.x, dataset.y)
            is_new = next(guide.parameters(), None) is None
            guide.setup(batch.x[:1])
            guide.to(device=program.device, dtype=program.dtype)
            guide.check_covers(program.sites)
            self.check_rows(guide, data)
            program.prepare(guide)
            start_guide(guide, program, init, seed)
            saved = self.open_checkpoint(
                checkpoint,
                guide,
                program,
                data,
                dataset,
                seed=seed,
                resume=resume,
                start=start,
            )
            run = Training(
                self,
                program,
                guide,
                seed,
                batches=batches_of(data, program, batch, self.batch_size, seed),
                loc_warmup=self.warmup_of(guide, is_new=is_new and init is None),
                compile_path=saved.compile_path,
            )

            def posterior() -> GuidePosterior:
                provenance = Provenance(
                    method=type(guide).__name__,
                    engine="SVI",
                    options=self.describe(
                        guide,
                        run.descent.learning_rate,
                        run.loc_warmup,
                        is_compiled=run.is_compiled,
                    ),
                    seed=seed,
                    wall_time=saved.wall_time,
                    num_parameters=sum(p.numel() for p in run.parameters),
                    losses=np.asarray(run.losses),
                    **of_data(dataset),
                    threads=saved.threads,
                )
                return GuidePosterior(program, copy.deepcopy(guide), provenance)

            try:
                saved.restore(run)
                run.train(saved, progress=progress)
            except (DivergenceError, Interrupted) as error:
                error.posterior = posterior()
                raise
            return posterior()


def make_guide(spec: GuideSpec, model: Model) -> Any:
    """The guide that a specification names, for one model.

    Raises:
        OptionError: If it is neither a guide nor makes one.
    """
    if isinstance(spec, Guide):
        if spec.model is not model:
            raise OptionError(
                f"the {type(spec).__name__} instance belongs to another model; pass the class, and "
                "every fit makes its own"
            )
        return spec
    if isinstance(spec, nn.Module):
        return spec  # a guide of stock Pyro
    if not callable(spec):
        raise OptionError(f"guide is a guide class such as guides.AutoNormal, not {spec!r}")
    makes_instances = isinstance(spec.func if isinstance(spec, functools.partial) else spec, type)
    if not makes_instances and _num_positional(spec) > 1:
        return spec  # a guide written as a function of (x, y)
    guide = spec(model)
    if not callable(guide):
        raise OptionError(f"the callable {name_of(spec)} returned {guide!r}, which is not a guide")
    return guide


def _frozen(model: Model) -> list[str]:
    module = module_of(model)
    named = () if module is None else module.named_parameters()
    return [name for name, parameter in named if not parameter.requires_grad]


def _num_positional(fn: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in inspect.signature(fn).parameters.values())
