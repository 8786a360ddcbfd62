"""Runnable comparisons: same network, same data, one run, medians and ratios."""
