"""Sequences to learn: each counts up by a step of its own, modulo the vocabulary, with a few slips."""

import numpy as np
import torch

VOCAB_SIZE = 512
BLOCK_SIZE = 256


def sequences(count, rng):
    """(count, BLOCK_SIZE + 1) token ids."""
    start = rng.integers(VOCAB_SIZE, size=(count, 1))
    stride = rng.integers(1, 8, size=(count, 1))
    tokens = (start + stride * np.arange(BLOCK_SIZE + 1)) % VOCAB_SIZE
    slips = rng.random(tokens.shape) < 0.05
    return np.where(slips, rng.integers(VOCAB_SIZE, size=tokens.shape), tokens)


def batch(seed, step, size):
    """Inputs and targets of one step, each (size, BLOCK_SIZE); they depend on seed and step alone."""
    tokens = torch.from_numpy(sequences(size, np.random.default_rng([seed, step])))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
