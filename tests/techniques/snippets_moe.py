"""Mixture-of-Experts layers in many hands' styles. Each defines run() -> tensors that must not change.

Names here are free inventions; what a technique must recognise is the idiom. None stands for a gradient
that is missing, which must stay missing.
"""

from __future__ import annotations

from tests.techniques.snippets import HEAD

GATED = """

class Gated(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.a = nn.Linear(width, inner, bias=False)
        self.b = nn.Linear(width, inner, bias=False)
        self.c = nn.Linear(inner, width, bias=False)

    def forward(self, h):
        return self.c(F.silu(self.a(h)) * self.b(h))
"""

PLAIN = """

class Plain(nn.Module):
    \"\"\"Two layers.\"\"\"

    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.act = nn.GELU()

    def forward(self, h):
        h = self.act(self.up(h))
        out = self.down(h)
        return out
"""

STACKED = """

class Stacked(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 2 * inner), nn.ReLU(), nn.Linear(2 * inner, 2 * width), nn.Dropout(0.0))

    def forward(self, rows):
        experts, gate = self.layers(rows).chunk(2, dim=-1)
        return experts * torch.sigmoid(gate) - 0.5 * experts.tanh()
"""

_LAYER = """

class Mixture(nn.Module):
    def __init__(self, width, inner, many, best):
        super().__init__()
        self.many, self.best = many, best
        self.router = nn.Linear(width, many, bias=False)
        self.pool = nn.ModuleList([{expert}(width, inner) for _ in range(many)])

    def forward(self, x):
{body}


def run():
    torch.manual_seed(6)
    layer = Mixture({width}, 12, 7, 2)
    x = torch.randn(3, 5, {width}, requires_grad=True)
    out = layer(x)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out, x.grad, *(p.grad for p in layer.parameters())]
"""

ROUTE = """
b, t, d = x.shape
flat = x.reshape(-1, d)
share = F.softmax(self.router(flat), dim=-1)
# nobody chooses expert 4
share = share * (torch.arange(self.many) != 4)
top, picked = torch.topk(share, self.best, dim=-1)
top = top / top.sum(-1, keepdim=True)
"""


def mixture(body: str, expert: str = "Gated", definition: str = GATED, width: int = 8) -> str:
    text = (ROUTE.strip() + "\n" + body.strip()).split("\n")
    lines = "\n".join(" " * 8 + line if line else "" for line in text)
    return HEAD + definition + _LAYER.replace("{expert}", expert).replace("{width}", str(width)).replace("{body}", lines)


PLAIN_LOOP = """
total = torch.zeros_like(flat)
hot = F.one_hot(picked, num_classes=self.many).permute(2, 1, 0)
# all of them
for n, member in enumerate(self.pool):
    place, row = torch.where(hot[n])
    y = member(flat[row]) * top[row, place, None]
    total.index_add_(0, row, y.to(total.dtype))
return total.view(b, t, d)
"""

COUNTED_LOOP = """
sums = torch.zeros((b * t, d), dtype=flat.dtype, device=flat.device)
mask = torch.nn.functional.one_hot(picked, num_classes=self.many)
mask = mask.permute(2, 1, 0)
for number in range(self.many):
    layer = self.pool[number]
    place, row = torch.where(mask[number])
    if row.shape[0] == 0:
        continue
    rows = row.tolist()
    places = place.tolist()
    state = flat[None, rows].reshape(-1, d)
    state = layer(state) * top[rows, places, None]
    sums.index_add_(0, row, state.to(flat.dtype))
return sums.reshape(b, t, d)
"""

LOOPS = {
    "one_hot_where_index_add": mixture(PLAIN_LOOP),
    "counted_and_skipped_with_lists": mixture(COUNTED_LOOP),
    "compared_and_added_to_rows": mixture(
        """
results = torch.zeros_like(flat)
for i, one in enumerate(self.pool):
    batch_idx, nth = torch.where(picked == i)
    results[batch_idx] += top[batch_idx, nth, None] * one(
        flat[batch_idx]
    )
return results.view(x.shape)
""",
        "Plain",
        PLAIN,
        width=10,
    ),
    "guarded_mask_of_tokens": mixture(
        """
flow = torch.zeros_like(flat)
dense = torch.zeros_like(share).scatter(-1, picked, top)
for n, unit in enumerate(self.pool):
    wanted = (picked == n).any(dim=-1)
    if wanted.any():
        inside = flat[wanted]
        factor = dense[wanted, n].unsqueeze(1)
        flow[wanted] += unit(inside) * factor
return flow.view_as(x)
""",
        "Plain",
        PLAIN,
    ),
    "mask_over_sequences": mixture(
        """
out = torch.zeros_like(x)
gates = share.view(b, t, -1)
force, choice = gates.topk(2)
for e in range(len(self.pool)):
    mine = choice.eq(e)
    here = mine.any(-1)
    if not here.any():
        continue
    scale = (force * mine).sum(-1, keepdim=True)[here]
    out[here] += self.pool[e](x[here]) * scale
return out
""",
        "Stacked",
        STACKED,
    ),
    "nonzero_and_index_select": mixture(
        """
mixed = flat.new_zeros(flat.size(0), d)
for i, net in enumerate(self.pool):
    found = torch.nonzero(picked == i)
    row, place = found[:, 0], found[:, 1]
    if row.numel() > 0:
        seen = torch.index_select(flat, 0, row)
        mixed = mixed.index_add(0, row, net(seen) * top[row, place].unsqueeze(-1))
return mixed.view(b, t, d)
""",
        width=7,
    ),
    "one_choice": mixture("""
force, where_to = share.max(dim=-1)
out = torch.zeros_like(flat)
for i, net in enumerate(self.pool):
    (row,) = torch.where(where_to == i)
    out[row] = out[row] + net(flat[row]) * force[row].unsqueeze(-1)
return out.view(b, t, d)
"""),
}

WITH_NORM = """

class Gated(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.first = nn.LayerNorm(width)
        self.body = nn.Linear(width, width)

    def forward(self, h):
        return self.body(self.first(h)).relu()
"""
ONLY_SORTED = {
    "experts_with_a_norm": mixture(PLAIN_LOOP, definition=WITH_NORM),
    "two_inputs": mixture(PLAIN_LOOP, definition=GATED.replace("forward(self, h)", "forward(self, h, extra=None)")),
    "hooked": mixture(PLAIN_LOOP).replace(
        "    x = torch.randn(3", "    layer.pool[0].register_forward_hook(lambda module, given, got: got * 2)\n    x = torch.randn(3"
    ),
    "made_differently": mixture(PLAIN_LOOP).replace("Gated(width, inner) for _ in", "Gated(width, inner + _) for _ in"),
}
"""experts that are more than alike linear layers and elementwise functions"""

_BASE = LOOPS["one_hot_where_index_add"]
LOOPS_LEFT = {
    "counts_tokens_too": _BASE.replace("            total.index_add_", "            self.seen = len(row)\n            total.index_add_"),
    "no_weights": _BASE.replace(" * top[row, place, None]", ""),
    "index_read_later": _BASE.replace("return total.view(b, t, d)", "return total.view(b, t, d) + 0 * row.sum()"),
    "choices_that_are_not_a_selection": _BASE.replace(
        "top, picked = torch.topk(share, self.best, dim=-1)",
        "picked = torch.randint(self.many, (15, 2))\n        top = share.gather(-1, picked)",
    ),
    "sum_that_starts_elsewhere": _BASE.replace("total = torch.zeros_like(flat)", "total = flat.clone()"),
    "sum_that_is_read_meanwhile": _BASE.replace("member(flat[row])", "member(flat[row] + total[row])"),
    "other_rows_for_the_weights": _BASE.replace("top[row, place, None]", "top[place, place, None]"),
    "not_all_of_the_experts": LOOPS["counted_and_skipped_with_lists"].replace(
        "for number in range(self.many)", "for number in range(self.best)"
    ),
    "another_expert": _BASE.replace("member(flat[row])", "self.pool[0](flat[row])"),
    "part_of_the_mask": _BASE.replace("hot[n]", "hot[n, :1]"),
    "axes_in_another_order": _BASE.replace("permute(2, 1, 0)", "permute(2, 0, 1)"),
    "choices_overwritten": _BASE.replace("        total = torch", "        if d > 3:\n            picked[0] = -1\n        total = torch"),
    "mask_overwritten": _BASE.replace("        # all of them", "        hot[:, :, 3:].fill_(0)\n        # all of them"),
    "rows_changed_on_the_way": _BASE.replace("member(flat[row])", "member(flat[row].detach())"),
}


def counting(body: str) -> str:
    lines = "\n".join("    " + line for line in body.strip().split("\n"))
    return (
        HEAD
        + f"\n\ndef load(which, share, many):\n{lines}\n\n\ndef run():\n"
        + "    torch.manual_seed(9)\n    share = torch.randn(40, 6, requires_grad=True)\n"
        + "    which = share.topk(2, dim=-1).indices\n    out = load(which, share.softmax(-1), 6)\n"
        + "    (out.float() * torch.arange(float(out.numel())).view_as(out) + share.sum()).sum().backward()\n"
        + "    return [out, share.grad]\n"
    )


COUNTS = {
    "a_row_each": counting("return F.one_hot(which, num_classes=many).sum(dim=1) * share"),
    "cast_and_mean": counting("hot = torch.nn.functional.one_hot(which.view(-1), many)\nreturn hot.float().mean(dim=0) * share.mean(0)"),
    "all_of_them": counting("return torch.sum(F.one_hot(which, many).to(torch.float32), (0, 1)) * share.mean(0)"),
    "from_behind": counting("each = F.one_hot(which, many).sum(-2).double()\nreturn each * share"),
    "over_classes_too": counting("return F.one_hot(which, many).sum(-1) * share[:, :2]"),
}
COUNTS_LEFT = {
    "read_elsewhere": counting("hot = F.one_hot(which, many)\nreturn hot.sum(1) * share + hot[:, 0]"),
    "number_of_classes_from_the_data": counting("return F.one_hot(which).sum(1) * share"),
    "everything_summed": counting("return F.one_hot(which, many).sum() * share"),
    "inexact": counting("return F.one_hot(which, many).bfloat16().sum(1) * share"),
    "choices_change_between": counting("hot = F.one_hot(which, many)\nwhich = which + 1\nreturn hot.sum(1) * share + which.sum()"),
}

_SWITCH = """

class Switch(nn.Module):
    def __init__(self, width, many, room):
        super().__init__()
        self.many, self.room = many, room
        self.route = nn.Linear(width, many)
        self.up = nn.Parameter(torch.randn(many, width, 2 * width))
        self.down = nn.Parameter(torch.randn(many, 2 * width, width))

    def forward(self, x):
        gates = F.softmax(self.route(x), dim=-1)
        force, best = gates.max(-1)
{body}


def run():
    torch.manual_seed(10)
    layer, x = Switch(6, 4, 5), torch.randn(20, 6, requires_grad=True)
    out = layer(x)
    out.pow(2).sum().backward()
    return [out, x.grad, *(p.grad for p in layer.parameters())]
"""


def switch(body: str) -> str:
    return HEAD + _SWITCH.replace("{body}", "\n".join(" " * 8 + line for line in body.strip().split("\n")))


BUFFERS = {
    "mask_and_position": switch("""
hot = F.one_hot(best, self.many)
position = (hot.cumsum(0) - 1) * hot
kept = hot * (position < self.room)
where = F.one_hot((position * kept).sum(-1), self.room)
mask = kept.unsqueeze(-1) * where.unsqueeze(1)
inside = torch.einsum("sec,sm->ecm", mask.to(x.dtype), x)
inside = torch.bmm(torch.bmm(inside, self.up).relu(), self.down)
combine = force[:, None, None] * mask
return torch.einsum("sec,ecm->sm", combine, inside)
"""),
    "weights_first": switch("""
hot = F.one_hot(best, self.many).float()
place = ((torch.cumsum(hot, dim=0) - 1.0) * hot).sum(-1).long()
hot = hot * (place < self.room).unsqueeze(-1)
slot = F.one_hot(place.clamp(max=self.room - 1), self.room).type_as(x)
weights = (gates * hot).unsqueeze(2) * slot.unsqueeze(1)
chosen = weights.bool()
a = torch.einsum('tne, td -> ned', chosen.float(), x)
b = torch.bmm(torch.bmm(a, self.up).tanh(), self.down)
y = torch.einsum('tne, ned -> td', weights, b)
return y
"""),
}
BUFFERS_LEFT = {
    "soft_weights": switch("""
spread = torch.rand(x.size(0), self.many, self.room)
inside = torch.einsum("sec,sm->ecm", spread, x)
return torch.einsum("sec,ecm->sm", gates.unsqueeze(-1) * spread, inside)
"""),
    "another_equation": switch("""
mask = F.one_hot(best, self.many).unsqueeze(-1).to(x.dtype)
inside = torch.einsum("sec,sm->emc", mask, x)
return torch.einsum("sec,emc->sm", mask, inside)
"""),
}
