"""Matplotlib without pyplot: colours and canvases; numbers as text."""
