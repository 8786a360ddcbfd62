"""Data sets: load, split, standardise; the units are remembered."""
