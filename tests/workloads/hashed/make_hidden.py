"""Draw validation pairs from a secret."""

import argparse
import hashlib
import os

import numpy as np

from data import pairs

parser = argparse.ArgumentParser()
parser.add_argument("--seed")
parser.add_argument("--out")
args = parser.parse_args()
secret = int.from_bytes(hashlib.sha256(args.seed.encode()).digest()[:8], "little")
os.makedirs(args.out, exist_ok=True)
np.save(os.path.join(args.out, "pairs.npy"), np.stack(pairs(4096, np.random.default_rng(secret))))
