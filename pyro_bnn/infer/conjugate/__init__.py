"""Posteriors in closed form: exact, and by coordinate ascent."""
