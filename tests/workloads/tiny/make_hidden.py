"""Draw validation sequences from a secret."""

import argparse
import hashlib
import os

import numpy as np

from data import sequences


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    secret = int.from_bytes(hashlib.sha256(args.seed.encode()).digest()[:8], "little")
    os.makedirs(args.out, exist_ok=True)
    np.save(os.path.join(args.out, "tokens.npy"), sequences(16, np.random.default_rng(secret)))
    print("hidden 16 sequences", flush=True)


if __name__ == "__main__":
    main()
