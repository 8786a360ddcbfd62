"""Curvature of a log joint, by rows or by layers, and the Gaussians that are made of it."""
