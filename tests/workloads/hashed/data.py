"""Sequences to learn: each token is a fixed permutation of the one before, with a few slips."""

import numpy as np

from model import VOCAB_SIZE

FOLLOWS = np.random.default_rng(7).permutation(VOCAB_SIZE)


def pairs(count, rng):
    """(tokens, targets), each (count,) ids."""
    tokens = rng.integers(VOCAB_SIZE, size=count)
    slips = rng.random(count) < 0.05
    return tokens, np.where(slips, rng.integers(VOCAB_SIZE, size=count), FOLLOWS[tokens])


def batch(seed, step, size):
    """One step's tokens and targets; they depend on seed and step alone."""
    return pairs(size, np.random.default_rng([seed, step]))
