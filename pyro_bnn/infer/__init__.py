"""Inference engines: one file each, one contract."""
