"""Diagnostics on NumPy arrays: convergence, calibration, scores."""
