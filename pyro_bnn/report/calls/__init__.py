"""A comparison of posteriors of any Pyro models, which have neither rows nor f."""
