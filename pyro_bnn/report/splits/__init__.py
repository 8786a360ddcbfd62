"""One comparison over many splits and seeds."""
