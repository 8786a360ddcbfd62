"""Stochastic variational inference: a guide's parameters descend the negative ELBO."""
