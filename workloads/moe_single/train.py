"""Train a small Mixture-of-Experts language model on the source code of the Python standard library.

    python train.py --steps 200 --seed 1 --out out

prints one line a step and writes the weights and the optimizer's state to out/final.pt.
"""

import argparse
import contextlib
import math
import os

import torch
from torch.nn import functional as F

from data import VOCAB_SIZE, Batches, load_tokens
from model import MoEConfig, MoETransformer, load_balancing_loss

batch_size = 8  # sequences an update
learning_rate = 1e-3
min_lr = 1e-4
warmup_steps = 8
decay_steps = 20000  # the learning rate reaches min_lr here, however long this run is
weight_decay = 0.1
betas = (0.9, 0.95)
grad_clip = 1.0
aux_loss_coef = 0.02


def get_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="updates that this run makes; 0 writes the state at once")
    parser.add_argument("--seed", type=int, default=1, help="decides the initial weights and the order of the data")
    parser.add_argument("--out", default="out", help="folder that final.pt is written to")
    parser.add_argument("--micro-batch", type=int, default=2, choices=[1, 2, 4, 8], help="sequences a backward pass")
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"], help="bf16: forward pass under autocast")
    parser.add_argument("--load", default="", help="a final.pt to go on from")
    return parser.parse_args()


def get_lr(step):
    """Linear warm-up, then a cosine."""
    if step < warmup_steps:
        return learning_rate * (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / (decay_steps - warmup_steps))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * progress)) * (learning_rate - min_lr)


@torch.no_grad()
def routing_statistics(routing):
    """Mean entropy of the router's probabilities, and the tokens that each expert got, (layers, experts)."""
    entropy = torch.stack([torch.special.entr(probs).sum(dim=-1).mean() for probs, _ in routing]).mean()
    load = torch.stack([torch.bincount(chosen.flatten(), minlength=probs.size(-1)) for probs, chosen in routing])
    return entropy, load


def save(path, model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    args = get_args()
    os.makedirs(args.out, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)

    tokens, text_hash = load_tokens()
    print(f"text {len(tokens)} tokens, sha256 {text_hash[:16]}", flush=True)
    config = MoEConfig(vocab_size=VOCAB_SIZE)
    batches = Batches(tokens, batch_size, config.block_size, args.seed)

    model = MoETransformer(config).to(device)
    optimizer = model.configure_optimizer(learning_rate, betas, weight_decay)
    print(f"model {sum(p.numel() for p in model.parameters())} parameters on {device}", flush=True)

    first_step = 0
    if args.load:
        state = torch.load(args.load, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["step"]

    autocast = contextlib.nullcontext()
    if args.dtype == "bf16":
        autocast = torch.autocast(device_type=device, dtype=torch.bfloat16)
    accumulation = batch_size // args.micro_batch
    routed = batch_size * config.block_size * config.top_k * config.n_layer  # choices of an expert in one step

    model.train()
    for step in range(first_step, first_step + args.steps):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)

        x, y = batches[step]
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        step_loss, step_aux, entropy, load = 0.0, 0.0, 0.0, 0
        for i in range(accumulation):
            rows = slice(i * args.micro_batch, (i + 1) * args.micro_batch)
            with autocast:
                logits, routing = model(x[rows])
                loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y[rows].view(-1))
                aux_loss = load_balancing_loss(routing, args.micro_batch)
            ((loss + aux_loss_coef * aux_loss) / accumulation).backward()
            step_loss += loss.item() / accumulation
            step_aux += aux_loss.item() / accumulation
            part_entropy, part_load = routing_statistics(routing)
            entropy += part_entropy.item() / accumulation
            load += part_load

        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        max_load = (load / load.sum(dim=1, keepdim=True)).max().item()
        print(
            f"step {step + 1} loss {step_loss:.4f} aux_loss {step_aux:.4f} grad_norm {grad_norm.item():.3f} "
            f"router_entropy {entropy:.4f} max_load {max_load:.4f} dropped {routed - load.sum().item()}",
            flush=True,
        )

    save(os.path.join(args.out, "final.pt"), model, optimizer, first_step + args.steps)


if __name__ == "__main__":
    main()
