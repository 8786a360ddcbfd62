"""Gaussians around a mode: curvature, evidence, and predictions of the linearised network."""
