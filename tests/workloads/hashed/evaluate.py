"""Loss of saved weights on hidden pairs."""

import argparse
import os

import numpy as np
import torch

from model import loss_and_gradients

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint")
parser.add_argument("--data")
args = parser.parse_args()
weights = {name: value.numpy() for name, value in torch.load(args.checkpoint, weights_only=True)["model"].items()}
tokens, targets = np.load(os.path.join(args.data, "pairs.npy"))
print(f"val_loss {loss_and_gradients(weights, tokens, targets)[0]:.6f}")
