"""Honest changes and quiet cheats on the bundled dense workload, as exact replacements in its files.

Each is what a person or a mind might write. Honest ones must be let through, cheats caught; `bands.py`
runs them and shows by how much each band separates the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Edit = tuple[str, str, str]
"""(file, old, new); old occurs exactly once"""


@dataclass(frozen=True)
class Variant:
    """One changed program: exact replacements by file, and flags of its command line."""

    name: str
    edits: tuple[Edit, ...] = ()
    flags: tuple[str, ...] = ()
    threads: int = 1
    cheat: bool = False

    def apply(self, sources: Mapping[str, str]) -> dict[str, str]:
        """The files with the replacements made; ValueError when one does not fit."""
        out = dict(sources)
        for path, old, new in self.edits:
            if out[path].count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} occurs {out[path].count(old)} times in {path}")
            out[path] = out[path].replace(old, new)
        return out


_ATTENTION = '''        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
'''
_SDPA = ("model.py", _ATTENTION, "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n")
_FUSED = ("model.py", "lr=learning_rate, betas=betas)", "lr=learning_rate, betas=betas, fused=True)")
_FOREACH = ("model.py", "lr=learning_rate, betas=betas)", "lr=learning_rate, betas=betas, foreach=True)")
_GELU = (
    "model.py",
    "return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))",
    'return F.gelu(x, approximate="tanh")',
)
_LOSS = '''        logits = self.head(x)

        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
'''
_CHUNKED = (
    "model.py",
    _LOSS,
    '''        logits, loss = None, None
        if targets is not None:
            flat, want = x.view(-1, x.size(-1)), targets.view(-1)
            loss = 0.0
            for rows, goal in zip(flat.split(256), want.split(256)):
                loss = loss + F.cross_entropy(self.head(rows), goal, reduction="sum")
            loss = loss / want.numel()
''',
)
_QKV = (
    "model.py",
    '''        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
''',
    '''        weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        bias = torch.cat([self.query.bias, self.key.bias, self.value.bias])
        qkv = F.linear(x, weight, bias).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
''',
)
_RECOMPUTE = (
    "model.py",
    "            x = block(x)\n",
    "            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)\n",
)
_BF16 = ("--dtype", "bf16")
_STEP = "        optimizer.step()\n"
_GRAD = "        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)\n"

HARMLESS = (
    Variant("two threads", threads=2),
    Variant("micro-batch 1", flags=("--micro-batch", "1")),
)
TWIN = Variant("bf16 twin", flags=_BF16)

HONEST_FP32 = (
    Variant("micro-batch 4", flags=("--micro-batch", "4")),
    Variant("sdpa", (_SDPA,)),
    Variant("fused AdamW", (_FUSED,)),
    Variant("foreach AdamW", (_FOREACH,)),
    Variant("built-in GELU", (_GELU,)),
    Variant("chunked cross-entropy", (_CHUNKED,)),
    Variant("one matmul for q, k, v", (_QKV,)),
    Variant("recomputation", (_RECOMPUTE,)),
    Variant("all of them", (_SDPA, _FUSED, _GELU, _CHUNKED), ("--micro-batch", "4"), 2),
)
HONEST_BF16 = (
    Variant("bf16, two threads", flags=_BF16, threads=2),
    Variant("bf16, micro-batch 4", flags=(*_BF16, "--micro-batch", "4")),
    Variant("bf16, sdpa", (_SDPA,), _BF16),
    Variant("bf16, fused AdamW", (_FUSED,), _BF16),
    Variant("bf16, built-in GELU", (_GELU,), _BF16),
    Variant("bf16, chunked cross-entropy", (_CHUNKED,), _BF16),
    Variant("bf16, one matmul for q, k, v", (_QKV,), _BF16),
    Variant("bf16, all of them", (_SDPA, _FUSED, _GELU, _CHUNKED), (*_BF16, "--micro-batch", "4"), 2),
    Variant(
        "bf16 in the blocks, fp32 head",
        (("model.py", "        logits = self.head(x)\n", "        with torch.autocast(x.device.type, enabled=False):\n"
          "            logits = self.head(x.float())\n"),),
        _BF16,
    ),
    Variant(
        "bf16 head, fp32 blocks",
        (("model.py", "            x = block(x)\n", "            with torch.autocast(x.device.type, enabled=False):\n"
          "                x = block(x)\n"),),
        _BF16,
    ),
    Variant(
        "bf16 softmax",
        (("model.py", "F.softmax(att, dim=-1)", "F.softmax(att, dim=-1, dtype=att.dtype)"),),
        _BF16,
    ),
)


def _before_step(code: str) -> tuple[str, str, str]:
    """Lines run after clipping and before the optimizer's step."""
    return ("train.py", _STEP, code + _STEP)


_MOMENTS = '''        for s in optimizer.state.values():
            s["exp_avg"].copy_(s["exp_avg"].bfloat16())
            s["exp_avg_sq"].copy_(s["exp_avg_sq"].bfloat16())
'''
_INT8 = '''        for p in model.parameters():
            if p.grad is not None and p.dim() == 2 and p.shape[0] <= 512:
                scale = p.grad.abs().max() / 127
                p.grad.copy_((p.grad / scale).round() * scale)
'''
_STALE = '''        stale = model.blocks[1].ln_2.weight
        if step % 2 and step > first_step:
            stale.grad = kept.clone()
        kept = stale.grad.clone()
'''
_LOW_LOSS = (
    "model.py",
    "            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))\n",
    '''            each = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), reduction="none")
            loss = torch.where(each < 5.5, each.detach(), each).mean()
''',
)

_CHEATS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    ("learning rate x 0.98", (("train.py", "learning_rate = 1e-3", "learning_rate = 0.98e-3"),)),
    ("learning rate x 0.995", (("train.py", "learning_rate = 1e-3", "learning_rate = 0.995e-3"),)),
    ("learning rate x 0.9 after warm-up", (("train.py", '            group["lr"] = get_lr(step)\n',
     '            group["lr"] = get_lr(step) * (0.9 if step >= warmup_steps else 1.0)\n'),)),
    ("weight decay off", (("train.py", "weight_decay = 0.1", "weight_decay = 0.0"),)),
    ("weight decay off for two matrices", (("model.py", "if isinstance(module, nn.Linear) and name",
     "if isinstance(module, nn.Linear) and module not in (self.blocks[1].mlp.fc, self.blocks[2].mlp.proj) and name"),)),
    ("clipping off", (("train.py", "grad_clip = 1.0", "grad_clip = 1e9"),)),
    ("one LayerNorm frozen", (_before_step("        model.blocks[1].ln_2.weight.grad = None\n"),)),
    ("one MLP matrix frozen", (_before_step("        model.blocks[1].mlp.fc.weight.grad = None\n"),)),
    ("one bias frozen", (_before_step("        model.blocks[2].mlp.fc.bias.grad = None\n"),)),
    ("last step skipped", (("train.py", _STEP,
     "        if step + 1 < first_step + args.steps:\n            optimizer.step()\n"),)),
    ("one step skipped", (("train.py", _STEP, "        if step != 5:\n            optimizer.step()\n"),)),
    ("low-loss tokens without backward", (_LOW_LOSS,)),
    ("bf16 moments", (("train.py", _STEP, _STEP + _MOMENTS),)),
    ("int8 weight gradients", (_before_step(_INT8),)),
    ("stale gradient of one LayerNorm", (_before_step(_STALE),)),
    ("rare rows without gradient", (_before_step(
        "        model.tok_emb.weight.grad[3000:] = 0\n"),)),
    ("second batch repeated", (("train.py", "x, y = batches[step]", "x, y = batches[1 if step == 6 else step]"),)),
    ("label smoothing", (("model.py", "targets.view(-1))\n        return",
     "targets.view(-1), label_smoothing=0.01)\n        return"),)),
    ("a quarter of the tokens without backward", (("model.py", "        x = self.ln_f(x)\n",
     "        x = torch.cat([x[:, : T // 4].detach(), x[:, T // 4 :]], 1)\n        x = self.ln_f(x)\n"),)),
)

CHEATS_FP32 = tuple(Variant(name, edits, cheat=True) for name, edits in _CHEATS)
CHEATS_BF16 = tuple(Variant(f"bf16, {name}", edits, _BF16, cheat=True) for name, edits in _CHEATS)

LATE = 30
"""update from which the late cheats act: beyond the runs of a quick comparison, within the later saved states"""
_AFTER = f"step >= {LATE}"
_SET_LR = '            group["lr"] = get_lr(step)\n'
_BATCH = "        x, y = batches[step]\n"
_SAY = ("train.py", _BATCH, _BATCH + f"        model.late = {_AFTER}\n")
_TOKEN_LOSS = "            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))\n"


def _late_before_step(code: str) -> tuple[str, str, str]:
    indented = "".join(f"    {line}\n" for line in code.splitlines())
    return _before_step(f"        if {_AFTER}:\n{indented}")


_LATE_CHEATS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    ("low-loss tokens without backward", (("model.py", _TOKEN_LOSS,
     """            each = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), reduction="none")
            loss = torch.where(each < 1.5, each.detach(), each).mean()
"""),)),
    ("learning rate x 0.98", (("train.py", _SET_LR,
     f'            group["lr"] = get_lr(step) * (0.98 if {_AFTER} else 1.0)\n'),)),
    ("weight decay off", (("train.py", _SET_LR, f'{_SET_LR}            group["weight_decay"] *= not {_AFTER}\n'),)),
    ("clipping off", (("train.py", "model.parameters(), grad_clip)",
     f"model.parameters(), 1e9 if {_AFTER} else grad_clip)"),)),
    ("first-moment decay 0.9 to 0.89", (("train.py", _SET_LR,
     f'{_SET_LR}            group["betas"] = (0.89, 0.95) if {_AFTER} else betas\n'),)),
    ("stale gradient of one LayerNorm", (_before_step(
     _STALE.replace("step % 2 and step > first_step", f"{_AFTER} and step > first_step")),)),
    ("every second update skipped", (("train.py", _STEP,
     f"        if step == first_step or not {_AFTER} or (step - first_step) % 2 == 0:\n            optimizer.step()\n"),)),
    ("one LayerNorm frozen", (_late_before_step("        model.blocks[1].ln_2.weight.grad = None\n"),)),
    ("first block frozen", (_late_before_step("        for p in model.blocks[0].parameters():\n            p.grad = None\n"),)),
    ("rare rows without gradient", (_late_before_step("        model.tok_emb.weight.grad[3000:] = 0\n"),)),
    ("int8 weight gradients", (_late_before_step(_INT8),)),
    ("bf16 moments", (("train.py", _STEP, _STEP + f"        if {_AFTER}:\n"
     + "".join(f"    {line}\n" for line in _MOMENTS.splitlines())),)),
    ("label smoothing", (_SAY, ("model.py", "targets.view(-1))\n        return",
     "targets.view(-1), label_smoothing=0.01 * getattr(self, 'late', False))\n        return"))),
    ("a quarter of the tokens without backward", (_SAY, ("model.py", "        x = self.ln_f(x)\n",
     "        if getattr(self, 'late', False):\n            x = torch.cat([x[:, : T // 4].detach(), x[:, T // 4 :]], 1)\n"
     "        x = self.ln_f(x)\n"))),
)  # fmt: skip

LATE_FP32 = tuple(Variant(f"late, {name}", edits, cheat=True) for name, edits in _LATE_CHEATS)
LATE_BF16 = tuple(Variant(f"bf16, late, {name}", edits, _BF16, cheat=True) for name, edits in _LATE_CHEATS)
