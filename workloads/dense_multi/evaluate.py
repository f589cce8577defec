"""Validation loss of saved weights on a file of tokens that make_hidden.py wrote.

    python evaluate.py --checkpoint out/final.pt --data hidden

prints `val_loss 6.1234`: mean cross-entropy a token in nats, computed in fp32.
"""

import argparse
import os

import numpy as np
import torch

from data import VOCAB_SIZE
from model import GPT, GPTConfig

SEQUENCES_AT_ONCE = 8


@torch.no_grad()
def validation_loss(model, tokens, block_size):
    windows = torch.from_numpy(tokens.astype(np.int64)).view(-1, block_size + 1)
    losses = [model(part[:, :-1].contiguous(), part[:, 1:].contiguous())[1].double() * len(part) for part in windows.split(SEQUENCES_AT_ONCE)]
    return (sum(losses) / len(windows)).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", required=True, help="folder with tokens.npy")
    args = parser.parse_args()

    config = GPTConfig(vocab_size=VOCAB_SIZE)
    model = GPT(config)
    state = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    model.eval()
    tokens = np.load(os.path.join(args.data, "tokens.npy"), allow_pickle=False)
    print(f"val_loss {validation_loss(model, tokens, config.block_size):.6f}", flush=True)


if __name__ == "__main__":
    main()
