"""Train a small Mixture-of-Experts language model on the Python standard library, data parallel over several nodes.

    torchrun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29500 train.py --steps 200 --seed 1 --out out

on the first node, and the same with `--node-rank 1` on the second. Every process has all of the experts.
The first one prints one line a step and writes the weights and the optimizer's state to out/final.pt.
"""

import argparse
import contextlib
import math
import os

import torch
import torch.distributed as dist
from torch.nn import functional as F

from data import VOCAB_SIZE, Batches, load_tokens
from model import MoEConfig, MoETransformer, load_balancing_loss

batch_size = 4  # sequences an update, of all processes together
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
    parser.add_argument("--micro-batch", type=int, default=1, choices=[1, 2], help="sequences a backward pass of one process")
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"], help="bf16: forward pass under autocast")
    parser.add_argument("--load", default="", help="a final.pt to go on from, to be found on every node")
    return parser.parse_args()


def get_lr(step):
    """Linear warm-up, then a cosine."""
    if step < warmup_steps:
        return learning_rate * (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / (decay_steps - warmup_steps))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * progress)) * (learning_rate - min_lr)


def average_gradients(model):
    """Every process gets the mean of all processes' gradients; experts that no token chose have one of zero."""
    world_size = dist.get_world_size()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= world_size


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
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = "cpu"
    if device_type == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    is_main_process = rank == 0
    torch.manual_seed(args.seed)  # the same on every process: all start from the same weights

    tokens, text_hash = load_tokens()
    config = MoEConfig(vocab_size=VOCAB_SIZE)
    batches = Batches(tokens, batch_size, config.block_size, args.seed)
    model = MoETransformer(config).to(device)
    optimizer = model.configure_optimizer(learning_rate, betas, weight_decay)
    if is_main_process:
        os.makedirs(args.out, exist_ok=True)
        print(f"text {len(tokens)} tokens, sha256 {text_hash[:16]}", flush=True)
        print(f"model {sum(p.numel() for p in model.parameters())} parameters on {device_type}, {world_size} processes", flush=True)

    first_step = 0
    if args.load:
        state = torch.load(args.load, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["step"]

    autocast = contextlib.nullcontext()
    if args.dtype == "bf16":
        autocast = torch.autocast(device_type=device_type, dtype=torch.bfloat16)
    # each process takes its own rows of every batch
    assert batch_size % (world_size * args.micro_batch) == 0
    local_batch_size = batch_size // world_size
    local_rows = slice(rank * local_batch_size, (rank + 1) * local_batch_size)
    accumulation = local_batch_size // args.micro_batch
    routed = batch_size * config.block_size * config.top_k * config.n_layer  # choices of an expert in one step

    model.train()
    for step in range(first_step, first_step + args.steps):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)

        x, y = batches[step]
        x, y = x[local_rows].to(device), y[local_rows].to(device)
        optimizer.zero_grad()
        step_loss, step_aux, entropy, load = 0.0, 0.0, 0.0, 0
        for i in range(accumulation):
            rows = slice(i * args.micro_batch, (i + 1) * args.micro_batch)
            with autocast:
                logits, routing = model(x[rows])
                loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y[rows].view(-1))
                aux_loss = load_balancing_loss(routing, args.micro_batch)
            ((loss + aux_loss_coef * aux_loss) / accumulation).backward()
            # what earlier micro-batches left is the same on every process, and its mean is itself
            average_gradients(model)
            step_loss += loss.item() / accumulation
            step_aux += aux_loss.item() / accumulation
            part_entropy, part_load = routing_statistics(routing)
            entropy += part_entropy.item() / accumulation
            load += part_load

        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        metrics = torch.tensor([step_loss, step_aux, entropy], device=device)
        dist.all_reduce(metrics, op=dist.ReduceOp.SUM)
        dist.all_reduce(load, op=dist.ReduceOp.SUM)
        if is_main_process:
            step_loss, step_aux, entropy = (metrics / world_size).tolist()
            max_load = (load / load.sum(dim=1, keepdim=True)).max().item()
            print(
                f"step {step + 1} loss {step_loss:.4f} aux_loss {step_aux:.4f} grad_norm {grad_norm.item():.3f} "
                f"router_entropy {entropy:.4f} max_load {max_load:.4f} dropped {routed - load.sum().item()}",
                flush=True,
            )

    if is_main_process:
        save(os.path.join(args.out, "final.pt"), model, optimizer, first_step + args.steps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
