"""Honest changes and quiet cheats on the bundled Mixture-of-Experts workload, as exact replacements in its files.

Like `variants.py` for the dense one: honest ones must be let through, cheats caught. Routing is discrete, so
that rounding can send a token to another expert; what that moves is in the bands, and some cheats hide behind it.
"""

from __future__ import annotations

from scripts.bench.variants import Edit, Variant

_SDPA: Edit = (
    "model.py",
    '''        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(self.head_size)
        scores = scores + self.mask[:T, :T]
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
        out = torch.matmul(weights, value)
''',
    "        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)\n",
)
_FUSED: Edit = ("model.py", "lr=learning_rate, betas=betas)", "lr=learning_rate, betas=betas, fused=True)")
_FOREACH: Edit = ("model.py", "lr=learning_rate, betas=betas)", "lr=learning_rate, betas=betas, foreach=True)")
_RMS: Edit = (
    "model.py",
    '''        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)
''',
    "        return F.rms_norm(x, (x.size(-1),), self.weight, self.eps)\n",
)
_LOOP = '''        out = torch.zeros_like(x)
        expert_mask = F.one_hot(chosen, num_classes=self.n_expert).permute(2, 1, 0)
        # an expert that nobody chose runs on no tokens, so that its gradient is zero and never missing
        for i, expert in enumerate(self.experts):
            slot, token = torch.where(expert_mask[i])
            expert_out = expert(x[token]) * weights[token, slot, None]
            out.index_add_(0, token, expert_out.to(out.dtype))
        return out.view(B, T, C), probs, chosen
'''
_SORTED: Edit = (
    "model.py",
    _LOOP,
    '''        order = torch.argsort(chosen.view(-1), stable=True)
        counts = torch.bincount(chosen.view(-1), minlength=self.n_expert).tolist()
        token = torch.div(order, self.top_k, rounding_mode="floor")
        parts = [expert(part) for expert, part in zip(self.experts, x[token].split(counts))]
        mixed = torch.cat(parts) * weights.view(-1)[order][:, None]
        out = torch.zeros_like(x).index_add(0, token, mixed.to(x.dtype))
        return out.view(B, T, C), probs, chosen
''',
)
_COMPARED: Edit = (
    "model.py",
    _LOOP,
    '''        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, slot = torch.nonzero(chosen == i, as_tuple=True)
            out = out.index_add(0, token, (expert(x[token]) * weights[token, slot, None]).to(out.dtype))
        return out.view(B, T, C), probs, chosen
''',
)
_GATE_UP: Edit = (
    "model.py",
    "        return self.w2(F.silu(self.w1(x)) * self.w3(x))\n",
    '''        gate, up = F.linear(x, torch.cat([self.w1.weight, self.w3.weight])).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)
''',
)
_QKV: Edit = (
    "model.py",
    '''        query = self.q_proj(x).view(B, T, self.n_head, self.head_size).transpose(1, 2)
        key = self.k_proj(x).view(B, T, self.n_head, self.head_size).transpose(1, 2)
        value = self.v_proj(x).view(B, T, self.n_head, self.head_size).transpose(1, 2)
''',
    '''        joined = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        query, key, value = F.linear(x, joined).view(B, T, 3, self.n_head, self.head_size).permute(2, 0, 3, 1, 4)
''',
)
_RECOMPUTE: Edit = (
    "model.py",
    "            x, probs, chosen = layer(x)\n",
    "            x, probs, chosen = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)\n",
)
_CHUNKED: Edit = (
    "train.py",
    "                loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y[rows].view(-1))\n",
    '''                flat, want = logits.view(-1, logits.size(-1)), y[rows].view(-1)
                parts = [F.cross_entropy(a, b, reduction="sum") for a, b in zip(flat.split(128), want.split(128))]
                loss = torch.stack(parts).sum() / want.numel()
''',
)
_BF16 = ("--dtype", "bf16")

HARMLESS = (Variant("two threads", threads=2), Variant("micro-batch 1", flags=("--micro-batch", "1")))
TWIN = Variant("bf16 twin", flags=_BF16)
HONEST: tuple[tuple[str, tuple[Edit, ...], tuple[str, ...], int], ...] = (
    ("micro-batch 4", (), ("--micro-batch", "4"), 1),
    ("micro-batch 8, two threads", (), ("--micro-batch", "8"), 2),
    ("sdpa", (_SDPA,), (), 1),
    ("fused AdamW", (_FUSED,), (), 1),
    ("foreach AdamW", (_FOREACH,), (), 1),
    ("built-in RMSNorm", (_RMS,), (), 1),
    ("tokens sorted by expert", (_SORTED,), (), 1),
    ("comparison instead of one-hot", (_COMPARED,), (), 1),
    ("gate and up in one matmul", (_GATE_UP,), (), 1),
    ("one matmul for q, k, v", (_QKV,), (), 1),
    ("recomputation", (_RECOMPUTE,), (), 1),
    ("chunked cross-entropy", (_CHUNKED,), (), 1),
    ("all of them", (_SDPA, _FUSED, _SORTED, _GATE_UP, _QKV), ("--micro-batch", "8"), 2),
)
HONEST_FP32 = tuple(Variant(name, edits, flags, threads) for name, edits, flags, threads in HONEST)
HONEST_BF16 = tuple(Variant(f"bf16, {name}", edits, (*_BF16, *flags), threads) for name, edits, flags, threads in HONEST)

_STEP = "        optimizer.step()\n"
_AUX = "((loss + aux_loss_coef * aux_loss) / accumulation).backward()"


def _before_step(code: str) -> Edit:
    return ("train.py", _STEP, code + _STEP)


_RAREST_DROPPED: Edit = (
    "model.py",
    "            slot, token = torch.where(expert_mask[i])\n",
    '''            slot, token = torch.where(expert_mask[i])
            if len(token) < 4:
                slot, token = slot[:0], token[:0]
''',
)
_CAPACITY: Edit = (
    "model.py",
    "            slot, token = torch.where(expert_mask[i])\n",
    '''            slot, token = torch.where(expert_mask[i])
            slot, token = slot[:40], token[:40]
''',
)
_LOW_LOSS: Edit = (
    "train.py",
    "                loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y[rows].view(-1))\n",
    '''                each = F.cross_entropy(logits.view(-1, logits.size(-1)), y[rows].view(-1), reduction="none")
                loss = torch.where(each < 5.5, each.detach(), each).mean()
''',
)
_MOMENTS = '''        for s in optimizer.state.values():
            s["exp_avg"].copy_(s["exp_avg"].bfloat16())
            s["exp_avg_sq"].copy_(s["exp_avg_sq"].bfloat16())
'''
_INT8 = '''        for name, p in model.named_parameters():
            if "experts" in name:
                scale = p.grad.abs().max().clamp_min(1e-12) / 127
                p.grad.copy_((p.grad / scale).round() * scale)
'''
_CHEATS: tuple[tuple[str, tuple[Edit, ...]], ...] = (
    ("auxiliary loss off", (("train.py", "aux_loss_coef = 0.02", "aux_loss_coef = 0.0"),)),
    ("auxiliary loss a tenth weaker", (("train.py", "aux_loss_coef = 0.02", "aux_loss_coef = 0.018"),)),
    ("auxiliary loss on the last micro-batch alone", (("train.py", _AUX,
     "((loss + aux_loss_coef * aux_loss * (i == accumulation - 1)) / accumulation).backward()"),)),
    ("auxiliary loss without gradient", (("train.py", _AUX,
     "((loss + aux_loss_coef * aux_loss.detach()) / accumulation).backward()"),)),
    ("one expert a token", (("model.py", "    top_k: int = 2", "    top_k: int = 1"),)),
    ("second expert without gradient", (("model.py", "            expert_out = expert(x[token]) * weights[token, slot, None]\n",
     "            expert_out = expert(x[token]) * weights[token, slot, None]\n"
     "            expert_out = torch.where((slot == 1)[:, None], expert_out.detach(), expert_out)\n"),)),
    ("rare experts' tokens dropped", (_RAREST_DROPPED,)),
    ("tokens over a capacity dropped", (_CAPACITY,)),
    ("router without gradient", (("model.py", "        weights = weights / weights.sum(dim=-1, keepdim=True)\n",
     "        weights = (weights / weights.sum(dim=-1, keepdim=True)).detach()\n"),)),
    ("weights of the two experts not normalised", (("model.py",
     "        weights = weights / weights.sum(dim=-1, keepdim=True)\n", ""),)),
    ("one expert frozen", (_before_step(
        "        for p in model.layers[1].moe.experts[3].parameters():\n            p.grad.zero_()\n"),)),
    ("one matrix of one expert frozen", (_before_step("        model.layers[2].moe.experts[5].w2.weight.grad = None\n"),)),
    ("no weight decay on the experts", (("model.py", "[p for p in params if p.dim() >= 2], \"weight_decay\": weight_decay}",
     "[p for n, p in self.named_parameters() if p.dim() >= 2 and \"experts\" not in n], \"weight_decay\": weight_decay},\n"
     "            {\"params\": [p for n, p in self.named_parameters() if \"experts\" in n], \"weight_decay\": 0.0}"),)),
    ("learning rate x 0.98", (("train.py", "learning_rate = 1e-3", "learning_rate = 0.98e-3"),)),
    ("clipping off", (("train.py", "grad_clip = 1.0", "grad_clip = 1e9"),)),
    ("last step skipped", (("train.py", _STEP,
     "        if step + 1 < first_step + args.steps:\n            optimizer.step()\n"),)),
    ("low-loss tokens without backward", (_LOW_LOSS,)),
    ("bf16 moments", (("train.py", _STEP, _STEP + _MOMENTS),)),
    ("int8 gradients of the experts", (_before_step(_INT8),)),
    ("label smoothing", (("train.py", "y[rows].view(-1))", "y[rows].view(-1), label_smoothing=0.01)"),)),
)  # fmt: skip
CHEATS_FP32 = tuple(Variant(name, edits, cheat=True) for name, edits in _CHEATS)
CHEATS_BF16 = tuple(Variant(f"bf16, {name}", edits, _BF16, cheat=True) for name, edits in _CHEATS)
