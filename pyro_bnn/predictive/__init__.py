"""What many draws say at many rows: f, densities and the distribution of y, a chunk at a time."""
