"""Train the model of model.py on the sequences of data.py; prints one line a step. Starts in a tenth of a second: no torch."""

import argparse
import os

from checkpoint import save
from data import batch
from model import initial, loss_and_gradients

batch_size = 1024  # tokens an update
learning_rate = 0.5
momentum = 0.9


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--micro-batch", type=int, default=128, choices=[64, 128, 256], help="tokens a backward pass")
    args = parser.parse_args()

    weights = initial(args.seed)
    speed = {name: 0 * value for name, value in weights.items()}
    accumulation = batch_size // args.micro_batch
    for step in range(args.steps):
        tokens, targets = batch(args.seed, step, batch_size)
        total, mean = 0.0, {name: 0 * value for name, value in weights.items()}
        for i in range(accumulation):
            rows = slice(i * args.micro_batch, (i + 1) * args.micro_batch)
            loss, grads = loss_and_gradients(weights, tokens[rows], targets[rows])
            total += loss / accumulation
            for name, grad in grads.items():
                mean[name] += grad / accumulation
        for name, grad in mean.items():
            speed[name] = momentum * speed[name] + grad
            weights[name] -= learning_rate * speed[name]
        print(f"step {step + 1} loss {total:.4f}", flush=True)

    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "final.pt")
    save(path + ".tmp", {"model": weights, "optimizer": {"momentum": speed, "count": args.steps}, "step": args.steps})
    os.replace(path + ".tmp", path)


if __name__ == "__main__":
    main()
