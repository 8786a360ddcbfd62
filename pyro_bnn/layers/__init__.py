"""Layers whose weights are Pyro sample sites."""
