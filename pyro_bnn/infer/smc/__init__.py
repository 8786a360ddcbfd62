"""Sequential Monte Carlo from the prior to the posterior, and the log evidence on the way."""
