"""Hamiltonian samplers: many chains in lockstep, adapted in windows."""
