"""Is the inference right? Posteriors of data simulated from the prior."""
