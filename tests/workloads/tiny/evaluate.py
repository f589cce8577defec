"""Print the loss of saved weights on the sequences that make_hidden.py wrote."""

import argparse
import os

import numpy as np
import torch

from data import BLOCK_SIZE, VOCAB_SIZE
from model import Model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", required=True)
    args = parser.parse_args()

    model = Model(VOCAB_SIZE, BLOCK_SIZE)
    model.load_state_dict(torch.load(args.checkpoint, weights_only=True)["model"])
    tokens = torch.from_numpy(np.load(os.path.join(args.data, "tokens.npy"), allow_pickle=False))
    with torch.no_grad():
        loss = model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    print(f"val_loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
