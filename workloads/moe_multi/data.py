"""The training text: source code of the Python standard library, as byte pairs.

The text comes with the interpreter, so nothing is downloaded and nothing is prepared beforehand. Two
bytes make a token, without overlap; the 2,048 most frequent pairs are the vocabulary, and its last
entry also stands for all rarer ones. The order of the batches depends on the seed alone.
"""

import hashlib
import os
import pathlib
import sysconfig

import numpy as np
import torch

VOCAB_SIZE = 2048
SKIPPED_FOLDERS = {
    "__pycache__", "dist-packages", "ensurepip", "idle_test", "idlelib", "lib-dynload", "lib2to3",
    "site-packages", "test", "tests", "turtledemo",
}


def source_files():
    """Folder of the text, and the paths of its files relative to it, sorted."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = set(subfolders) - SKIPPED_FOLDERS
        paths += [pathlib.Path(folder, name) for name in names if name.endswith(".py")]
    kept = [path for path in paths if not path.name.startswith("_sysconfigdata")]
    return root, sorted(path.relative_to(root).as_posix() for path in kept)


def read_text():
    """All of the text, one file after the other, as bytes."""
    root, paths = source_files()
    return b"\n".join((root / path).read_bytes() for path in paths)


def byte_pairs(text):
    return np.frombuffer(text[: len(text) // 2 * 2], dtype="<u2")


class Vocabulary:
    """Token ids of byte pairs, most frequent first."""

    def __init__(self, text):
        counts = np.bincount(byte_pairs(text), minlength=1 << 16)
        ranking = np.argsort(-counts, kind="stable")
        self.ids = np.full(1 << 16, VOCAB_SIZE - 1, dtype=np.uint16)
        self.ids[ranking[:VOCAB_SIZE]] = np.arange(VOCAB_SIZE, dtype=np.uint16)

    def encode(self, text):
        return self.ids[byte_pairs(text)]


def load_tokens():
    """Tokens of the whole text, and a hash that tells two machines' texts apart."""
    text = read_text()
    return Vocabulary(text).encode(text), hashlib.sha256(text).hexdigest()


class Batches:
    """Windows of the tokens, laid end to end from a random offset and taken in a random order; both from the seed."""

    def __init__(self, tokens, batch_size, block_size, seed):
        rng = np.random.default_rng(seed)
        offset = int(rng.integers(block_size))
        windows = (len(tokens) - offset - 1) // block_size
        self.tokens = tokens
        self.batch_size = batch_size
        self.block_size = block_size
        self.starts = offset + block_size * rng.permutation(windows)

    def __getitem__(self, step):
        """Inputs and targets of one step, each (batch, block)."""
        picks = np.arange(step * self.batch_size, (step + 1) * self.batch_size) % len(self.starts)
        windows = [self.tokens[start : start + self.block_size + 1] for start in self.starts[picks]]
        windows = torch.from_numpy(np.stack(windows).astype(np.int64))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
