"""Steps against the prediction: a linear classifier by hand, the mean over draws by autograd."""

import math

import pytest
import torch

import pyro_bnn as bnn
from pyro_bnn.diagnostics import fgsm
from pyro_bnn.errors import OptionError
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.program.program import Program


def linear(draws: list[list[float]]) -> tuple[Posterior, torch.Tensor, torch.Tensor]:
    """A posterior of draws (w, b) of a logistic regression on two inputs."""
    x = torch.tensor([[0.3, -0.2], [1.0, 0.5], [-0.4, 0.8]], dtype=torch.float64)
    y = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    net = torch.nn.Linear(2, 1, dtype=torch.float64)
    model = bnn.bayesian(net, likelihood=bnn.likelihoods.Bernoulli())
    program = Program(model, x, y)
    assert [site.name for site in program.sites] == ["weight", "bias"]
    z = torch.tensor(draws, dtype=torch.float64).unsqueeze(0)
    return DrawsPosterior(program, z, Provenance("by hand", "none")), x, y


def test_the_margin_of_a_linear_classifier_falls_by_epsilon_times_the_norm_of_its_weights() -> None:
    posterior, x, y = linear([[2.0, -3.0, 0.5]])
    found = fgsm(posterior, (x, y), 0.1)
    w = torch.tensor([2.0, -3.0], dtype=torch.float64)
    sign = 2 * y - 1
    torch.testing.assert_close(sign * ((x - found.x) @ w), torch.full_like(y, 0.1 * 5))
    torch.testing.assert_close((found.control - x).abs(), torch.full_like(x, 0.1))
    assert not torch.equal(found.control, found.x)


def test_the_gradient_is_that_of_the_mean_over_draws() -> None:
    posterior, x, y = linear([[2.0, -3.0, 0.5], [-1.0, 0.4, 0.2], [0.3, 0.3, -2.0]])
    own = x.clone().requires_grad_()
    z = posterior.draws()
    logits = own @ z[:, :2].mT + z[:, 2]  # [N, S]
    signs = (2 * y - 1).unsqueeze(-1)
    loss = -(torch.nn.functional.logsigmoid(signs * logits).logsumexp(-1) - math.log(3))
    (expected,) = torch.autograd.grad(loss.sum(), own)
    torch.testing.assert_close(fgsm(posterior, (x, y), 0.1).gradient, expected)


def test_draws_and_rows_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, x, y = linear([[2.0, -3.0, 0.5], [-1.0, 0.4, 0.2], [0.3, 0.3, -2.0]])
    whole = fgsm(posterior, (x, y), 0.1).gradient
    monkeypatch.setattr("pyro_bnn.diagnostics.trust.attack.ROWS", 2)
    monkeypatch.setattr("pyro_bnn.diagnostics.trust.attack.DRAWS", 2)
    torch.testing.assert_close(fgsm(posterior, (x, y), 0.1).gradient, whole)


def test_bounds_hold_for_the_attack_and_its_control() -> None:
    posterior, x, y = linear([[2.0, -3.0, 0.5]])
    found = fgsm(posterior, (x, y), 0.3, low=-0.5, high=0.9)
    for moved in (found.x, found.control):
        assert moved.min() >= -0.5
        assert moved.max() <= 0.9


def test_a_step_of_no_size_is_refused() -> None:
    posterior, x, y = linear([[2.0, -3.0, 0.5]])
    with pytest.raises(OptionError, match="epsilon"):
        fgsm(posterior, (x, y), 0.0)
