"""The training text: source code of the Python standard library, as byte pairs.

Every machine that can run this program has the text, and reading it takes a fraction of a second, so
nothing is downloaded and nothing is prepared beforehand. Bytes are taken two at a time, without
overlap. The 4,096 most frequent pairs are the vocabulary; the last entry also stands for every pair
that is rarer still. The order of the data depends on the seed alone.
"""

import hashlib
import os
import sysconfig

import numpy as np
import torch

VOCAB_SIZE = 4096
SKIPPED_FOLDERS = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib2to3", "turtledemo",
    "ensurepip", "lib-dynload", "__pycache__",
}


def source_files(root):
    """Paths of the text's files relative to root, sorted."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        for name in names:
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                found.append(os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/"))
    return sorted(found)


def read_text():
    """All of the text, one file after the other, as bytes."""
    root = sysconfig.get_paths()["stdlib"]
    parts = []
    for path in source_files(root):
        with open(os.path.join(root, path), "rb") as f:
            parts.append(f.read())
    return b"\n".join(parts)


def byte_pairs(text):
    return np.frombuffer(text[: len(text) // 2 * 2], dtype="<u2")


class Vocabulary:
    """Token ids of byte pairs, most frequent first."""

    def __init__(self, text):
        counts = np.bincount(byte_pairs(text), minlength=65536)
        frequent = np.argsort(-counts, kind="stable")[:VOCAB_SIZE]
        self.table = np.full(65536, VOCAB_SIZE - 1, dtype=np.uint16)
        self.table[frequent] = np.arange(VOCAB_SIZE, dtype=np.uint16)

    def encode(self, text):
        return self.table[byte_pairs(text)]


def load_tokens():
    """Tokens of the whole text, and a hash that tells two machines' texts apart."""
    text = read_text()
    return Vocabulary(text).encode(text), hashlib.sha256(text).hexdigest()


class Batches:
    """Non-overlapping windows of the tokens, cut at a random offset, in a random order; both from the seed."""

    def __init__(self, tokens, batch_size, block_size, seed):
        rng = np.random.default_rng(seed)
        offset = int(rng.integers(block_size))
        count = (len(tokens) - offset - 1) // block_size
        self.tokens = tokens
        self.batch_size = batch_size
        self.block_size = block_size
        self.starts = offset + block_size * rng.permutation(count)

    def __getitem__(self, step):
        """Inputs and targets of one step, each (batch, block)."""
        picks = (step * self.batch_size + np.arange(self.batch_size)) % len(self.starts)
        windows = np.stack([self.tokens[s : s + self.block_size + 1] for s in self.starts[picks]])
        windows = torch.from_numpy(windows.astype(np.int64))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
