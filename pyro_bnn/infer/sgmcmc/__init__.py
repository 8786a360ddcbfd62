"""Stochastic-gradient MCMC: one shared run, and one file of its own maths a method."""
