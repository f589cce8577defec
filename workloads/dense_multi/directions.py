"""Parts of the gradient that belong to a subset of the tokens or of the rows, at a saved state.

    python directions.py --load out/final.pt --seed 1 --out parts

writes parts/directions.pt: for each part a dict of float32 tensors under the names and in the shapes of
the state's weights. All parts are of the raw gradient, in fp32 and without clipping, of the batch that
`train.py --load out/final.pt --seed 1` would take next. A step that leaves work out loses one of them:

    all_tokens        the whole gradient
    low_loss_tokens   from the quarter of the tokens whose loss is smallest
    rare_targets      from the tokens whose target is in the rarer half of the vocabulary
    rare_rows         the whole gradient, on that half's rows of the two tables
"""

import argparse
import os

import torch
from torch.nn import functional as F

from data import VOCAB_SIZE, Batches, load_tokens
from model import GPT, GPTConfig
from train import batch_size

LOW_LOSS_SHARE = 0.25
RARE_FROM = VOCAB_SIZE // 2  # ids are ordered by frequency
TABLES = ("tok_emb.weight", "head.weight")


def token_losses(model, x, y):
    """Cross-entropy of each token, (batch, block)."""
    logits, _ = model(x)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)


def subset_gradients(model, x, y, subsets):
    """Gradient of the mean loss from each subset's tokens alone; subsets are masks of (batch, block) by name.

    Masks that add up to one everywhere give gradients that add up to the whole one.
    """
    named = dict(model.named_parameters())
    total = {subset: {name: torch.zeros_like(p) for name, p in named.items()} for subset in subsets}
    for i in range(len(x)):
        losses = token_losses(model, x[i : i + 1], y[i : i + 1])
        for subset, mask in subsets.items():
            part = (losses * mask[i : i + 1]).sum() / y.numel()
            gradients = torch.autograd.grad(part, list(named.values()), retain_graph=True)
            for name, gradient in zip(named, gradients):
                total[subset][name] += gradient
    return total


@torch.no_grad()
def low_loss_mask(model, x, y):
    losses = torch.cat([token_losses(model, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    count = max(1, int(LOW_LOSS_SHARE * losses.numel()))
    return losses <= losses.flatten().kthvalue(count).values


def rare_rows(gradient):
    """The rows of rare tokens in the tables that have one row for each token."""
    rows = {name: gradient[name].clone() for name in TABLES}
    for table in rows.values():
        table[:RARE_FROM] = 0.0
    return rows


def directions(model, x, y):
    subsets = {
        "all_tokens": torch.ones_like(y, dtype=torch.bool),
        "low_loss_tokens": low_loss_mask(model, x, y),
        "rare_targets": y >= RARE_FROM,
    }
    parts = subset_gradients(model, x, y, subsets)
    return {**parts, "rare_rows": rare_rows(parts["all_tokens"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", required=True, help="a final.pt of train.py")
    parser.add_argument("--seed", type=int, required=True, help="decides the order of the data, as in train.py")
    parser.add_argument("--out", required=True, help="folder that directions.pt is written to")
    args = parser.parse_args()

    config = GPTConfig(vocab_size=VOCAB_SIZE)
    model = GPT(config)
    state = torch.load(args.load, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    model.train()
    tokens, _ = load_tokens()
    x, y = Batches(tokens, batch_size, config.block_size, args.seed)[state["step"]]

    os.makedirs(args.out, exist_ok=True)
    parts = directions(model, x, y)
    torch.save(parts, os.path.join(args.out, "directions.pt"))
    print(f"directions of step {state['step'] + 1}: {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
