"""Words of the field that a reader of the answer needs, each with its meaning."""

WORDS = {
    "Held-out log score": "log of the density that a method gave to a row it had not seen, in nats "
    "(natural logarithm), mean over such rows; higher is better. 0.01 nats are 1 % of density.",
    "Tied, behind": "a method is behind if another is better by a test over all pairs of methods "
    "at once; if some are as good as the best, the chance that any of these is called behind is "
    "near 5 % at most. All others are tied, which does not show that they are equal.",
    "Epistemic sd": "standard deviation of the network's function over draws of the posterior: "
    "what the data leave open. Noise of single observations is not in it.",
    "Reference": "the posterior that the others' functions are held against. It judges only where "
    "it is exact, or its Markov chains pass every check.",
    "NUTS": "Markov chains over all weights, whose draws are those of the exact posterior if the "
    "chains agree. Guides approximate it by a simpler distribution.",
    "R-hat": "spread between Markov chains over that within them; 1 if they agree.",
    "Effective draws": "independent draws that a chain's draws are worth.",
    "ELBO": "what a guide's fit maximises, a lower bound of the log evidence; a fit whose ELBO "
    "still rises is not finished.",
    "Guide": "a family of distributions of the weights, Auto..., in which the nearest to the "
    "posterior is sought. AutoNormal: independent weights. AutoDelta: one point.",
}
"""Meaning of the words that a reader of the answer needs."""
