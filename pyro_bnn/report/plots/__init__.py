"""Figures of the report and their captions."""
