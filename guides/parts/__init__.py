"""Parts that guides are made of: blocks, matrices, units, layers of flows."""
