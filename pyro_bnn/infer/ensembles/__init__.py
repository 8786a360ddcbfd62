"""Ensembles: several networks fitted at once, what keeps them apart, and what they are draws of."""
