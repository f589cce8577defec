"""A whole trainer in two files, in yet another style, for techniques that are combined."""

MODEL = '''\
"""A decoder."""
import math

import torch
from torch import nn


class Heads(nn.Module):
    def __init__(self, dim, count, context):
        super().__init__()
        self.count = count
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("past", torch.tril(torch.ones(context, context)).bool(), persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q = self.wq(x).view(b, n, self.count, -1).transpose(1, 2)
        k = self.wk(x).view(b, n, self.count, -1).transpose(1, 2)
        v = self.wv(x).view(b, n, self.count, -1).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~self.past[:n, :n], float("-inf"))
        mixed = scores.softmax(dim=-1) @ v
        return self.wo(mixed.transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, dim, count, context):
        super().__init__()
        self.before, self.heads = nn.LayerNorm(dim), Heads(dim, count, context)
        self.wide, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gate = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, x):
        x = x + self.heads(self.before(x))
        wide = self.wide(x)
        act = 0.5 * wide * (1 + torch.erf(wide / math.sqrt(2)))
        return x + self.narrow(act) + self.gate(x)


class Decoder(nn.Module):
    def __init__(self, words=97, dim=24, count=3, depth=2, context=16):
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.layers = nn.ModuleList(Layer(dim, count, context) for _ in range(depth))
        self.last = nn.Linear(dim, words, bias=False)

    def forward(self, ids, labels):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.last(x)
        return nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))
'''

TRAIN = '''\
import torch
from torch import optim

from decoder import Decoder


def fit(steps=3, passes=2, rows=2):
    torch.manual_seed(5)
    decoder = Decoder()
    adam = optim.AdamW(decoder.parameters(), lr=1e-3)
    told = []
    for step in range(steps):
        adam.zero_grad(set_to_none=False)
        total = 0.0
        for i in range(passes):
            ids = torch.randint(97, (rows, 17))
            loss = decoder(ids[:, :-1], ids[:, 1:]) / passes
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        adam.step()
        told.append(total)
    return [torch.tensor(told, dtype=torch.float64), *(p.detach() for p in decoder.parameters())]
'''

SOURCES = {"decoder.py": MODEL, "fit.py": TRAIN}
EDITS_CODE = {
    "sdpa", "causal-blocks", "fused-qkv", "fused-activation", "inplace-activation", "linear-cross-entropy", "chunked-cross-entropy",
    "fused-optimizer", "foreach-optimizer", "clip-foreach", "zero-grad-to-none", "activation-checkpointing",
    "defer-host-sync", "torch-compile", "bf16-autocast",
}  # fmt: skip
"""techniques that find their idiom there"""
EXACT = sorted(EDITS_CODE - {"torch-compile", "bf16-autocast"})
"""those that can be run in a moment and keep the numbers"""


def run(sources: dict[str, str]) -> list[object]:
    """What training with these files tells, and its weights."""
    import sys
    import types

    module = types.ModuleType("decoder")
    saved = sys.modules.get("decoder")
    sys.modules["decoder"] = module
    try:
        exec(compile(sources["decoder.py"], "decoder.py", "exec"), module.__dict__)
        space: dict[str, object] = {}
        exec(compile(sources["fit.py"], "fit.py", "exec"), space)
        return space["fit"]()  # type: ignore[operator, no-any-return]
    finally:
        if saved is None:
            del sys.modules["decoder"]
        else:
            sys.modules["decoder"] = saved
