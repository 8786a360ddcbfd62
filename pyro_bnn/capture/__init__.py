"""Pure tensor functions recorded as one graph: simplified, compiled, replayed."""

from __future__ import annotations

from pyro_bnn.capture.captured import Captured, value_and_grad

__all__ = ["Captured", "value_and_grad"]
