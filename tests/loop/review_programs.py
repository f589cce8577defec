"""Two small GPT trainers in different styles, as texts that the review's tests change."""

from __future__ import annotations

MODULES = {
    "train.py": '''
"""Train a small GPT."""
import argparse
import math
import os

import torch

from data import Batches
from model import GPT, GPTConfig

batch_size = 4
learning_rate = 1e-3
weight_decay = 0.1
betas = (0.9, 0.95)
grad_clip = 1.0
warmup_steps = 8


def get_lr(step):
    if step < warmup_steps:
        return learning_rate * (step + 1) / warmup_steps
    return learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / 20000)))


def save(path, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--micro-batch", type=int, default=2)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    model = GPT(GPTConfig()).to(device)
    optimizer = model.configure_optimizer(learning_rate, betas, weight_decay)
    batches = Batches(batch_size, args.seed)
    accumulation = batch_size // args.micro_batch

    model.train()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        x, y = batches[step]
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        step_loss = 0.0
        for i in range(accumulation):
            rows = slice(i * args.micro_batch, (i + 1) * args.micro_batch)
            _, loss = model(x[rows], y[rows])
            loss = loss / accumulation
            loss.backward()
            step_loss += loss.item()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        print(f"step {step + 1} loss {step_loss:.4f} grad_norm {grad_norm.item():.3f}", flush=True)

    save(os.path.join(args.out, "final.pt"), model, optimizer, args.steps)


if __name__ == "__main__":
    main()
''',
    "model.py": '''
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    vocab_size: int = 4096
    block_size: int = 512
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.query = nn.Linear(config.n_embd, config.n_embd)
        self.key = nn.Linear(config.n_embd, config.n_embd)
        self.value = nn.Linear(config.n_embd, config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("mask", mask.view(1, 1, config.block_size, config.block_size), persistent=False)
        self.n_head = config.n_head

    def forward(self, x):
        B, T, C = x.size()
        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.proj(y)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.out = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tok_emb = nn.Embedding(config.vocab_size, config.n_embd)
        self.pos_emb = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, targets=None):
        B, T = idx.size()
        pos = torch.arange(0, T, device=idx.device)
        x = self.tok_emb(idx) + self.pos_emb(pos)
        for block in self.blocks:
            x = block(x)
        x = self.ln_f(x)
        logits = self.head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

    def configure_optimizer(self, learning_rate, betas, weight_decay):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        no_decay = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)
''',
}
"""modules of nn, one script with a main(), gradient accumulation, a hand-made schedule"""

TRAINER = {
    "run.py": '''
import json, sys, time
import numpy as np
import torch, torch.nn.functional as fn
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

CFG = dict(width=128, depth=4, heads=4, vocab_size=4096, seq_len=256, batch_size=8, lr=3e-4, weight_decay=0.01, eps=1e-8)


def load(path, seed):
    stream = torch.from_numpy(np.fromfile(path, dtype=np.int32).astype(np.int64))
    n = CFG["seq_len"]
    windows = stream[: len(stream) // n * n].view(-1, n)
    generator = torch.Generator()
    generator.manual_seed(seed)
    return DataLoader(TensorDataset(windows), batch_size=CFG["batch_size"], shuffle=True, generator=generator)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h, mask):
        n = self.norm1(h)
        h = h + self.attend(n, n, n, attn_mask=mask, need_weights=False)[0]
        return h + self.mlp(self.norm2(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CFG["vocab_size"], CFG["width"])
        self.layers = nn.ModuleList(Layer(CFG["width"], CFG["heads"]) for _ in range(CFG["depth"]))
        self.head = nn.Linear(CFG["width"], CFG["vocab_size"])

    def forward(self, tokens):
        h = self.embed(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=tokens.device)
        for layer in self.layers:
            h = layer(h, mask)
        return self.head(h)


class Trainer:
    def __init__(self, argv):
        self.total, self.seed, self.target = int(argv[1]), int(argv[2]), argv[3]
        torch.manual_seed(self.seed)
        self.net = Net()
        self.opt = optim.AdamW(self.net.parameters(), lr=CFG["lr"], weight_decay=CFG["weight_decay"], eps=CFG["eps"])
        self.sched = optim.lr_scheduler.CosineAnnealingLR(self.opt, T_max=10000)
        self.loader = load("data/tokens.bin", self.seed)

    def objective(self, batch):
        logits = self.net(batch[:, :-1])
        return fn.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def train_step(self, batch):
        self.opt.zero_grad(set_to_none=True)
        loss = self.objective(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        self.sched.step()
        return loss

    def fit(self):
        done = 0
        while done < self.total:
            for (batch,) in self.loader:
                loss = self.train_step(batch)
                done += 1
                print("step %d loss %.5f" % (done, loss.item()))
                if done >= self.total:
                    break
        torch.save(self.net.state_dict(), self.target)


if __name__ == "__main__":
    Trainer(sys.argv).fit()
''',
}
"""a Trainer class over a DataLoader, a dict of settings, a scheduler object, terse imports"""
