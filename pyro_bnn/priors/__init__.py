"""Priors over weights."""
