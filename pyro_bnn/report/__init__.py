"""Comparison, verdicts, figures, HTML."""
