"""Train the model of model.py on the sequences of data.py; prints one line a step."""

import argparse
import os

import torch

from data import BLOCK_SIZE, VOCAB_SIZE, batch
from model import Model

batch_size = 4


class Adam:
    """Adam with decoupled weight decay, one parameter after the other."""

    def __init__(self, named_parameters, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
        self.params = dict(named_parameters)
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.exp_avg = {name: torch.zeros_like(p) for name, p in self.params.items()}
        self.exp_avg_sq = {name: torch.zeros_like(p) for name, p in self.params.items()}
        self.count = 0

    @torch.no_grad()
    def step(self):
        self.count += 1
        beta1, beta2 = self.betas
        for name, p in self.params.items():
            m, v = self.exp_avg[name], self.exp_avg_sq[name]
            m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
            corrected = m / (1 - beta1**self.count)
            scale = (v / (1 - beta2**self.count)).sqrt() + self.eps
            p.mul_(1 - self.lr * self.weight_decay)
            p.sub_(self.lr * corrected / scale)

    def state_dict(self):
        return {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq, "count": self.count}

    def load_state_dict(self, state):
        self.exp_avg, self.exp_avg_sq, self.count = state["exp_avg"], state["exp_avg_sq"], state["count"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--micro-batch", type=int, default=2, choices=[1, 2, 4])
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--load", default="", help="a final.pt to go on from")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = Model(VOCAB_SIZE, BLOCK_SIZE)
    optimizer = Adam(model.named_parameters())
    first_step = 0
    if args.load:
        state = torch.load(args.load, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["step"]

    accumulation = batch_size // args.micro_batch
    for step in range(first_step, first_step + args.steps):
        x, y = batch(args.seed, step, batch_size)
        model.zero_grad()
        total = 0.0
        for i in range(accumulation):
            rows = slice(i * args.micro_batch, (i + 1) * args.micro_batch)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
                loss = model(x[rows], y[rows])
            (loss / accumulation).backward()
            total += loss.item() / accumulation
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step + 1} loss {total:.4f}", flush=True)

    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "final.pt")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": first_step + args.steps}
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


if __name__ == "__main__":
    main()
