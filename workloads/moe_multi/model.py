"""A small Mixture-of-Experts language model: RMSNorm, rotary positions, two experts a token, untied head."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class MoEConfig:
    vocab_size: int = 2048
    block_size: int = 256
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64
    n_expert: int = 16
    top_k: int = 2
    expert_size: int = 128
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


def rotary_tables(block_size, head_size, theta):
    """Cosines and sines of the rotary positions, (block_size, head_size) each; both halves turn alike."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2).float() / head_size)
    angles = torch.outer(torch.arange(block_size).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.n_head = config.n_head
        self.head_size = config.n_embd // config.n_head
        self.q_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.k_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.v_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.o_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        cos, sin = rotary_tables(config.block_size, self.head_size, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        mask = torch.full((config.block_size, config.block_size), float("-inf"))
        self.register_buffer("mask", torch.triu(mask, diagonal=1), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        # (B, n_head, T, head_size)
        query = self.q_proj(x).view(B, T, self.n_head, self.head_size).transpose(1, 2)
        key = self.k_proj(x).view(B, T, self.n_head, self.head_size).transpose(1, 2)
        value = self.v_proj(x).view(B, T, self.n_head, self.head_size).transpose(1, 2)
        query = rotate(query, self.cos[:T], self.sin[:T])
        key = rotate(key, self.cos[:T], self.sin[:T])

        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(self.head_size)
        scores = scores + self.mask[:T, :T]
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
        out = torch.matmul(weights, value)
        return self.o_proj(out.transpose(1, 2).contiguous().view(B, T, C))


class Expert(nn.Module):
    """A gated feed-forward network (SwiGLU)."""

    def __init__(self, config):
        super().__init__()
        self.w1 = nn.Linear(config.n_embd, config.expert_size, bias=False)
        self.w2 = nn.Linear(config.expert_size, config.n_embd, bias=False)
        self.w3 = nn.Linear(config.n_embd, config.expert_size, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class SparseMoE(nn.Module):
    """Each token goes to its top_k experts. However many tokens choose an expert, none is dropped."""

    def __init__(self, config):
        super().__init__()
        self.n_expert = config.n_expert
        self.top_k = config.top_k
        self.gate = nn.Linear(config.n_embd, config.n_expert, bias=False)
        self.experts = nn.ModuleList([Expert(config) for _ in range(config.n_expert)])

    def forward(self, x):
        B, T, C = x.shape
        x = x.view(-1, C)
        # the router works in fp32 under autocast too
        with torch.autocast(device_type=x.device.type, enabled=False):
            probs = F.softmax(self.gate(x.float()), dim=-1)  # (tokens, n_expert)
        weights, chosen = torch.topk(probs, self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)

        out = torch.zeros_like(x)
        expert_mask = F.one_hot(chosen, num_classes=self.n_expert).permute(2, 1, 0)
        # an expert that nobody chose runs on no tokens, so that its gradient is zero and never missing
        for i, expert in enumerate(self.experts):
            slot, token = torch.where(expert_mask[i])
            expert_out = expert(x[token]) * weights[token, slot, None]
            out.index_add_(0, token, expert_out.to(out.dtype))
        return out.view(B, T, C), probs, chosen


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn_norm = RMSNorm(config.n_embd, config.norm_eps)
        self.attn = Attention(config)
        self.moe_norm = RMSNorm(config.n_embd, config.norm_eps)
        self.moe = SparseMoE(config)

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        out, probs, chosen = self.moe(self.moe_norm(x))
        return x + out, probs, chosen


class MoETransformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.norm = RMSNorm(config.n_embd, config.norm_eps)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "w2.weight")):
                # residual projections are scaled down with depth, per the GPT-2 paper
                nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * config.n_layer))
            elif p.dim() >= 2 and not name.endswith(("embed.weight", "gate.weight")):
                nn.init.normal_(p, mean=0.0, std=0.02)

    def forward(self, idx):
        """Logits (batch, block, vocab) in fp32, and the router's probabilities and choices, one pair a layer."""
        x = self.embed(idx)
        routing = []
        for layer in self.layers:
            x, probs, chosen = layer(x)
            routing.append((probs, chosen))
        logits = self.lm_head(self.norm(x))
        return logits.float(), routing

    def configure_optimizer(self, learning_rate, betas, weight_decay):
        """AdamW with weight decay on every matrix, and none on the norms."""
        params = list(self.parameters())
        groups = [
            {"params": [p for p in params if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)


def load_balancing_loss(routing, batch_size):
    """How unevenly the router loads the experts: top_k when even, n_expert at worst.

    Each sequence is judged by itself and the mean is taken over sequences and layers, so that the loss
    of a batch does not depend on how it is cut into micro-batches.
    """
    losses = []
    for probs, chosen in routing:
        n_expert = probs.size(-1)
        load = F.one_hot(chosen, num_classes=n_expert).sum(dim=1).float().view(batch_size, -1, n_expert).mean(dim=1)
        share = probs.view(batch_size, -1, n_expert).mean(dim=1)
        losses.append(n_expert * (load * share).sum(dim=-1).mean())
    return torch.stack(losses).mean()
