"""Torch's Inductor: all that the room takes of torch's private modules stands here."""
