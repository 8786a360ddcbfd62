"""Rates of the report's verdicts in simulated cases: false alarms and power, a module a subject."""
