r"""Stochastic variational inference: maximise the ELBO of a guide by stochastic gradients.

.. math:: \mathcal L = \tfrac NB \sum_b E_q \log p(y_b \mid x_b, z)
          - \beta_t\, \mathrm{KL}\bigl(q(z) \,\|\, p(z)\bigr)

with the KL weight :math:`\beta_t = \min(1, t / \text{kl\_warmup})`. Kingma & Welling, ICLR 2014,
arXiv:1312.6114; Blundell et al., ICML 2015, arXiv:1505.05424.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from pyro_bnn.errors import BNNError, OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.handled import module_of, parameters_of
from pyro_bnn.infer.call_problem import CallProblem
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.inputs import set_up
from pyro_bnn.infer.own_weights import OwnWeights
from pyro_bnn.infer.problem import Facts, Problem
from pyro_bnn.infer.steps.rounds import advice_on_length
from pyro_bnn.infer.svi.estimators.by_name import AUTO, FOR_ALL
from pyro_bnn.infer.svi.options import GuideSpec, SVIOptions, name_of
from pyro_bnn.infer.svi.stock import start_stock
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.infer.warm_start import start_guide
from pyro_bnn.posterior.nature import Fault
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.random_state import derived_seed, isolated

START = 301  # and following, streams of the seeds of starts


@dataclass(frozen=True)
class SVI(SVIOptions, Engine[Posterior]):
    """Stochastic variational inference with any guide.

    Args:
        guide: A guide class, a ``functools.partial`` of one, a callable of the model that returns
            a guide, an instance (trained in place; the posterior holds a copy, and beside it the
            model's point estimates, which start at the model's values in every run), or a guide
            from stock Pyro, which runs through Pyro's own ``Trace_ELBO``.
        num_steps: Gradient steps. ``"auto"`` goes on in rounds, each as long as all before, until
            the last one gained less than half a nat, or 2 errors, by the ELBO of all rows at the
            same noise (:mod:`pyro_bnn.posterior.doubling`). A round that lost as much is taken
            back, and the steps go on at half their size. A guide of up to 10,000 parameters then
            has four starts, of which after each of the first rounds the better half goes on. Either
            way the posterior's ``doubling`` tells what the second half of the steps gained.
        max_steps: Most steps from one start with ``num_steps="auto"``; default 64,000, of a guide
            with more than 100,000 parameters 16,000.
        learning_rate: Step size of the optimiser at the start.
        optimizer: A ``torch.optim`` class or a partial of one, called with the parameters and
            ``lr``, or a callable of the parameters, which sets its own step size. Default: Adam.
        batch_size: Rows a step; default all up to 1,024, of more rows 256. Each batch's likelihood
            is scaled by N/B. A ``DataLoader`` has its own.
        num_particles: Draws of z a step.
        per_example_draws: Whether each row of a step has draws of its own, which lowers the
            variance of the likelihood's gradient at the cost of one network a row; the KL is as
            without. Noise takes ``num_particles`` times B times M numbers.
        estimator: How the likelihood's expectation is estimated; the KL is the same in all, and so
            is the expectation of the gradient. ``"weight_sampling"`` draws the weights, for every
            guide. Others have a lower variance, for ``guides.AutoNormal``:
            ``"local_reparameterization"`` draws the outputs of linear layers, independent over
            rows; ``"flipout"`` gives the draw of the weights signs of its own in each row, in
            linear layers and convolutions; both also serve ``AutoLowRankMultivariateNormal``, whose
            shared noise they draw once for all rows. ``"analytic"`` draws nothing, for an ``MLP``
            with one hidden ReLU layer and Gaussian noise. ``"last_layer"`` is in closed form over
            the last layer (VBLL), for ``guides.AutoComposite`` whose part there is Gaussian, and
            draws the other sites: for Gaussian noise; by quadrature for noise whose sd is an
            output, two classes, and other likelihoods that give each target an output; of more
            classes it is a lower bound, and the posterior's ``bound_gap`` tells by how much.
            ``"last_layer_draws"`` draws the outputs in place of that layer, without a bound, under
            any likelihood. ``"auto"``: the first of these where guide and model let it, else draws.
        kl_warmup: Steps over which the KL weight grows linearly to 1; 0 for none.
        loc_warmup: Steps at the start in which the scales of the guide are held at their initial
            values while its means, and the model's point estimates, are trained. Without them
            scales may grow before hidden units have found a use, and the KL switches these off for
            good; with them the fit may end in another optimum, of a higher or a lower ELBO: try 0
            as well. Default: half of the first round, at most a tenth of the run, where a new guide
            has one vector of means ``loc [P]`` (an ``AutoNormalMixture`` one a component) beside
            other parameters, and neither ``init`` nor ``patience`` is given; else 0.
        patience: Steps without a better smoothed ELBO after which to stop, counted from the end
            of ``kl_warmup`` and ``loc_warmup``; default never.
        schedule: ``"rounds"`` keeps the step size within a round, and lets it fall to 0 at the end
            of each; ``"cosine"`` decays it to 0 over ``num_steps``, so that no half of the run can
            be compared with the whole; ``"constant"``.
        clip_norm: Largest norm of the gradient, in nats per unit of the parameters; default none.
        compile: Whether the step is compiled: ``"auto"`` where the run is long enough to gain from
            it, True always, an error where that cannot be, False never. The step of a small
            network is written in C, which half a second or two compile; what is not, for many
            numbers or rarer operations, is Inductor's, for about ten seconds the first time and a
            second or two once it is cached. Uncompiled the step is replayed as a graph of
            operations.

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

    trains_params: ClassVar[bool] = True

    @property
    def is_repeatable(self) -> bool:
        """Whether the guide is made anew by each run; an instance is trained in place."""
        return not isinstance(self.guide, nn.Module)

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        longer = advice_on_length(options)
        if options.get("patience") is not None:
            longer = "raise patience and num_steps"
        has_rate = options.get("optimizer") in (None, "Adam")  # others may set their own
        optimum = f"{longer}, or lower learning_rate" if has_rate else longer
        return {"unfinished": longer, "optimum": optimum}

    def start(self, problem: Problem) -> Start:
        """Make the guide, and start it; see the base class."""
        frozen = _frozen(problem.model)
        with isolated():
            guide = make_guide(self.guide, problem.model)
        if isinstance(guide, Guide):
            return self._start_guide(guide, problem, frozen)
        self._check_stock(guide, problem)
        model = problem.model
        if module_of(model) is not None:
            model = copy.deepcopy(model)
        guide = make_guide(self.guide, model)
        return start_stock(self, dataclasses.replace(problem, model=model), guide, frozen)

    def start_call(self, problem: CallProblem) -> Start:
        """The same of any model; see the base class.

        Raises:
            OptionError: If an option or the guide needs rows.
        """
        self._check_call()
        frozen = _frozen(problem.model)
        problem.check_batches(self.batch_size)
        with isolated():
            guide = _guide_of_call(self.guide, problem.model)
        return self._start_guide(guide, problem, frozen)

    def _check_call(self) -> None:
        """Refuse what needs rows.

        Raises:
            OptionError: If an option does.
        """
        rows = "needs rows of inputs, and a Call has none: leave it at"
        if self.per_example_draws:
            raise OptionError(f"per_example_draws=True {rows} False")
        if self.estimator not in FOR_ALL:
            raise OptionError(f'estimator="{self.estimator}" {rows} "{AUTO}"')

    def _start_guide(self, guide: Guide, problem: Facts, frozen: list[str]) -> Start:
        """Start a guide of this package.

        Args:
            guide: The guide.
            problem: Model and data.
            frozen: Names of the model's parameters that stay as they are.
        """
        program = problem.joint
        for name in frozen:
            program.params[name].requires_grad = False
        is_new = next(guide.parameters(), None) is None
        set_up(guide, program)
        self.check_rows(guide, problem)
        program.prepare(guide)
        if is_new or problem.is_led:
            start_guide(guide, program, problem.init, problem.seed)

        is_fresh = is_new and not problem.is_led
        has_start = isinstance(problem.init, OwnWeights)  # the others would not be at the weights
        anew = is_fresh and guide is not self.guide and not has_start

        def start_values(number: int) -> dict[str, Tensor]:
            """Of the guide's parameters at another start."""
            with isolated(derived_seed(problem.seed, START + number)):
                other = make_guide(self.guide, problem.model)
                if other is guide:  # of a callable that gives one guide again and again
                    return {}
                set_up(other, program)
            return {f"guide.{k}": v.detach() for k, v in other.named_parameters()}

        svi = dataclasses.replace(self, max_steps=self.most_steps(guide))

        def make(saves: Checkpoint) -> Training:
            return Training(
                svi,
                program,
                guide,
                problem.seed,
                batches=problem.batches(svi.rows_a_step(guide, problem)),
                loc_warmup=svi.warmup_of(guide, is_new=is_fresh),
                compile_path=saves.compile_path,
                num_starts=svi.starts_of(guide, is_new=anew),
                start_values=start_values,
            )

        return Start(problem, self.identity(guide), make)

    def _check_stock(self, guide: object, problem: Problem) -> None:
        """Refuse what is not built for a guide of stock Pyro."""
        if self.compile is True:
            raise OptionError(
                'compile=True is not built for guides of stock Pyro: leave it at "auto", or use a '
                "guide of pyro_bnn.guides"
            )
        if self.estimator not in FOR_ALL:
            raise OptionError(
                f'estimator="{self.estimator}" is not built for guides of stock Pyro: take '
                "guides.AutoNormal of this package"
            )
        if problem.is_led or self.patience is not None or self.per_example_draws:
            raise OptionError(
                "init, patience and per_example_draws are not built for guides of stock Pyro: "
                "leave them at their defaults, and start the guide with its own init_loc_fn"
            )
        self.warmup_of(guide)


def _frozen(model: Model) -> list[str]:
    """Names of the parameters that stay as they are; to be asked before Pyro's store thaws them."""
    return [name for name, value in parameters_of(model).items() if not value.requires_grad]


def _guide_of_call(spec: GuideSpec, model: Model) -> Guide:
    """The guide that a specification names, for a model on a ``Call``.

    Raises:
        OptionError: If it is a guide of stock Pyro, or a function that Pyro would take for one.
    """
    made: Any = spec
    try:
        made = make_guide(spec, model)
    except Exception as error:
        # a guide function of one argument was called with the model in its place
        is_ours = isinstance(error, BNNError) and "which is not a guide" not in str(error)
        if is_ours or not inspect.isfunction(spec):
            raise
    if not isinstance(made, Guide):
        raise OptionError(
            f"{name_of(made)} is a guide of stock Pyro, which on a Call is not trained here: take "
            "one of pyro_bnn.guides, such as AutoMultivariateNormal, or train it by "
            "pyro.infer.SVI(...).step and pass it to bnn.from_guide(guide, model, call)"
        )
    return made


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


def _num_positional(fn: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in inspect.signature(fn).parameters.values())
