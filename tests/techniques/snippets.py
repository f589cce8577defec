"""Programs in many hands' styles. Each defines run() -> list of tensors that must not change.

Names here are free inventions; what a technique must recognise is the idiom.
"""

HEAD = """\
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
odd  =  ( 1 ,2 )   # spacing that must survive
"""

# every attention snippet: class Attn(width, heads, length) with forward(x)
ATTENTION_RUN = """

def run():
    torch.manual_seed(1)
    layer = Attn(24, 3, 16)
    x = torch.randn(2, 11, 24, requires_grad=True)
    out = layer(x)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out, x.grad, *(p.grad for p in layer.parameters())]
"""

_INIT = """

class Attn(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads, self.width = heads, width
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)
{init}
    def parts(self, x):
        b, t, c = x.shape
        return (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in self.inner(x).split(c, dim=2))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.parts(x)
{body}
"""


def attention(init: str, body: str, head: str = HEAD) -> str:
    def indent(text: str) -> str:
        return "".join(" " * 8 + line + "\n" if line else "\n" for line in text.strip().split("\n"))

    return head + _INIT.format(init=indent(init) if init else "", body=indent(body).rstrip()) + ATTENTION_RUN


JOIN = "return self.outer(y.transpose(1, 2).reshape(b, t, c))"

SDPA = {
    "buffer_masked_fill": attention(
        'self.register_buffer("tri", torch.tril(torch.ones(length, length)).view(1, 1, length, length))',
        f"""
# scores
w = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
w = w.masked_fill(self.tri[:, :, :t, :t] == 0, float("-inf"))
w = F.softmax(w, dim=-1)
y = w @ v
{JOIN}""",
    ),
    "one_expression": attention(
        "",
        """
causal = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), diagonal=1)
return self.outer((torch.softmax(torch.matmul(q, k.transpose(2, 3)).div(math.sqrt(c // self.heads))
                   .masked_fill(causal, -1e9), -1) @ v).transpose(1, 2).reshape(b, t, c))""",
    ),
    "added_mask": attention(
        "self.temper = (width // heads) ** -0.5",
        f"""
bias = torch.full((t, t), float("-inf"), device=x.device)
bias = torch.triu(bias, diagonal=1)
scores = torch.matmul(q * self.temper, k.transpose(-1, -2))
scores = scores + bias[None, None, :, :]
probs = scores.softmax(dim=-1)
y = torch.matmul(probs, v)
{JOIN}""",
    ),
    "in_place_and_layers": attention(
        """
self.mask = ~torch.ones(length, length, dtype=torch.bool).tril()
self.soft = nn.Softmax(dim=-1)
self.drop = nn.Dropout(0.0)""",
        f"""
att = q @ k.mT
att /= (c // self.heads) ** 0.5
att.masked_fill_(self.mask[:t, :t], -math.inf)
att = self.drop(self.soft(att))
y = att @ v
{JOIN}""",
    ),
    "einsum": attention(
        "",
        """
rows = torch.arange(t)
keep = rows[:, None] >= rows[None, :]
q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
s = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(c / self.heads)
s = torch.where(keep, s, torch.finfo(s.dtype).min)
y = torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v)
return self.outer(y.reshape(b, t, c))""",
    ),
    "bmm_without_mask": attention(
        "",
        """
q, k, v = (z.reshape(b * self.heads, t, c // self.heads) for z in (q, k, v))
energy = torch.bmm(q, k.transpose(1, 2)) * 0.5
share = F.dropout(F.softmax(energy, dim=2), 0.0, self.training)
y = torch.bmm(share, v).view(b, self.heads, t, c // self.heads)
return self.outer(y.transpose(1, 2).reshape(b, t, c))""",
    ),
    "keys_turned_early_and_width_of_another_shape": attention(
        "",
        f"""
q = q.transpose(1, 2).reshape(b, t, c)
width = q.size(-1)
q = q.view(b, t, self.heads, -1).transpose(1, 2)
turned = k.permute(0, 1, 3, 2)
turned = turned * 1.0
w = torch.matmul(q, turned) / math.sqrt(width)
y = w.softmax(-1) @ v
{JOIN}""",
    ),
    "width_read_from_turned_keys": attention(
        "",
        f"""
turned = k.mT * 1.0
w = torch.matmul(q, turned) / math.sqrt(turned.size(-1))
y = w.softmax(-1) @ v
{JOIN}""",
    ),
    "no_scale_helper_mask": attention(
        "",
        f"""
w = torch.matmul(q, k.transpose(-2, -1))
w = w.masked_fill(lower(t).logical_not(), float("-inf"))
y = F.softmax(w.float(), dim=-1).type_as(v) @ v
{JOIN}""",
        HEAD + "\n\ndef lower(n):\n    return torch.ones(n, n, dtype=torch.bool).tril()\n",
    ),
}

SDPA_LEFT = {
    "padding_mask": attention(
        "",
        f"""
w = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
w = w.masked_fill(x.sum(-1)[:, None, None, :] == 0, float("-inf"))
y = F.softmax(w, dim=-1) @ v
{JOIN}""",
    ),
    "weights_returned": attention(
        "",
        """
w = F.softmax((q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1)), dim=-1)
y = w @ v
self.seen = w.detach()
return self.outer(y.transpose(1, 2).reshape(b, t, c))""",
    ),
    "banded_mask": attention(
        'self.register_buffer("band", torch.tril(torch.ones(length, length), diagonal=2))',
        f"""
w = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
w = w.masked_fill(self.band[:t, :t] == 0, float("-inf"))
w = F.softmax(w, dim=-1)
y = w @ v
{JOIN}""",
    ),
    "weak_mask": attention(
        "",
        f"""
w = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
w = w.masked_fill(torch.triu(torch.ones(t, t), diagonal=1).bool(), -5.0)
w = F.softmax(w, dim=-1)
y = w @ v
{JOIN}""",
    ),
    "learned_temperature": attention(
        "self.heat = nn.Parameter(torch.ones(heads, 1, 1))",
        f"""
w = (q @ k.transpose(-2, -1)) * self.heat
w = F.softmax(w, dim=-1)
y = w @ v
{JOIN}""",
    ),
    "mask_by_condition": attention(
        "",
        f"""
w = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
if self.training:
    w = w.masked_fill(torch.triu(torch.ones(t, t), diagonal=1).bool(), -math.inf)
w = F.softmax(w, dim=-1)
y = w @ v
{JOIN}""",
    ),
    "position_bias": attention(
        "self.slope = nn.Parameter(torch.zeros(heads, length, length))",
        f"""
w = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
w = w + self.slope[:, :t, :t]
w = F.softmax(w, dim=-1)
y = w @ v
{JOIN}""",
    ),
    "softmax_over_queries": attention(
        "",
        f"""
w = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
w = F.softmax(w, dim=-2)
y = w @ v
{JOIN}""",
    ),
    "query_changed_meanwhile": attention(
        "",
        f"""
w = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
q = q + 1
w = F.softmax(w, dim=-1)
y = w @ v + 0 * q
{JOIN}""",
    ),
}

LOSS = {
    "loss_only": HEAD
    + """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.out = nn.Linear(16, 50, bias=True)

    def forward(self, ids, wanted):
        h = torch.tanh(self.table(ids))
        scores = self.out(h)
        # mean over all tokens
        return F.cross_entropy(scores.view(-1, scores.size(-1)), wanted.view(-1), ignore_index=-1)


def run():
    torch.manual_seed(2)
    net = Net()
    ids = torch.randint(50, (3, 90))
    wanted = torch.randint(50, (3, 90))
    wanted[0, :7] = -1
    loss = net(ids, wanted)
    loss.backward()
    return [loss, *(p.grad for p in net.parameters())]
""",
    "shifted_and_loss_layer": HEAD
    + """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5000, 8)
        self.unembed = nn.Linear(8, 5000, bias=False)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, ids):
        y = self.unembed(self.table(ids))
        early = y[:, :-1, :].contiguous()
        return self.criterion(early.view(-1, 5000), ids[:, 1:].reshape(-1))


def run():
    torch.manual_seed(2)
    net = Net()
    loss = net(torch.randint(5000, (2, 400)))
    (3 * loss).backward()
    return [loss, *(p.grad for p in net.parameters())]
""",
    "returned_beside_the_loss": HEAD
    + """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(60, 8)
        self.top = nn.Linear(8, 60, bias=False)

    def forward(self, ids, wanted=None):
        h = self.table(ids)
        loss = None
        out = self.top(h)
        if wanted is not None:
            loss = F.cross_entropy(out.flatten(0, 1), wanted.flatten())
        return out, loss


def run():
    torch.manual_seed(2)
    net = Net()
    net.train()
    ids = torch.randint(60, (2, 70))
    _, loss = net(ids, ids.roll(-1, 1))
    loss.backward()
    with torch.no_grad():
        after = net(ids, ids)[1]
    return [loss, after, net(ids)[0], *(p.grad for p in net.parameters())]
""",
}

LOSS["returned_where_a_flag_says_so"] = (
    LOSS["returned_beside_the_loss"]
    .replace("wanted=None):", "wanted=None, with_scores=True):")
    .replace("        return out, loss", "        if not with_scores:\n            out = None\n        return out, loss")
    .replace("_, loss = net(ids, ids.roll(-1, 1))", "_, loss = net(ids, ids.roll(-1, 1), with_scores=False)\n    seen = net(ids, ids)[0]")
    .replace("return [loss,", "return [seen, loss,")
)
LOSS["made_in_both_branches"] = (
    LOSS["returned_where_a_flag_says_so"]
    .replace("        out = self.top(h)\n", "")
    .replace("            loss = F", "            out = self.top(h)\n            loss = F")
    .replace("        if not with_scores", "        else:\n            out = self.top(h[:, [-1]])\n        if not with_scores")
)
LOSS_LEFT = {
    "logits_used_for_accuracy": LOSS["loss_only"].replace(
        "        # mean", "        self.right = (scores.argmax(-1) == wanted).float().mean()\n        # mean"
    ),
    "caller_reads_logits": LOSS["returned_beside_the_loss"].replace(
        "_, loss = net(ids, ids.roll(-1, 1))", "seen, loss = net(ids, ids.roll(-1, 1))\n    print(seen.shape)"
    ),
    "a_flag_that_says_the_contrary": LOSS["returned_where_a_flag_says_so"].replace("if not with_scores", "if with_scores"),
    "a_flag_that_is_set_inside": LOSS["returned_where_a_flag_says_so"].replace("        loss = None", "        loss, with_scores = None, self.training"),
    "class_weights": LOSS["loss_only"].replace("ignore_index=-1", "weight=torch.ones(50)"),
    "summed": LOSS["loss_only"].replace("ignore_index=-1", "reduction='sum'"),
}

# a trainer in one function; the optimizer and loop idioms
TRAIN = HEAD + """

class Unit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.body = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.body(self.norm(x))


class Stack(nn.Module):
    def __init__(self, width=8, depth=2):
        super().__init__()
        self.units = nn.ModuleList([Unit(width) for _ in range(depth)])

    def forward(self, x):
        for unit in self.units:
            x = unit(x)
        return x


def run():
    torch.manual_seed(3)
    net = Stack()
    {optimizer}
    told = []
    for step in range(3):
        {clear}
        running = 0.0
        for part in range(2):
            x = torch.randn(4, 8)
            out = net(x)
            loss = F.mse_loss(out, x.flip(1)) / 2
            loss.backward()
            {count}
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        told += [torch.tensor(running, dtype=torch.float64), norm.detach()]
    return [*told, *(p.detach() for p in net.parameters())]
"""


def trainer(
    optimizer: str = "opt = torch.optim.AdamW(net.parameters(), lr=1e-2)",
    clear: str = "opt.zero_grad()",
    count: str = "running += loss.item()",
) -> str:
    return TRAIN.replace("{optimizer}", optimizer).replace("{clear}", clear).replace("{count}", count)


OPTIMIZERS = {
    "torch_optim": trainer(),
    "imported_and_multiline": trainer(
        "from torch.optim import Adam\n    opt = Adam(\n        net.parameters(),\n        lr=1e-2,\n    )"
    ),
    "module_alias": trainer("import torch.optim as optim\n    opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)"),
}
OPTIMIZERS_LEFT = {
    "unknown_arguments": trainer("more = dict(fused=True)\n    opt = torch.optim.AdamW(net.parameters(), **more)"),
    "without_such_implementation": trainer("opt = torch.optim.Rprop(net.parameters(), lr=1e-3)"),
    "differentiable": trainer("opt = torch.optim.Adam(net.parameters(), differentiable=True)"),
}

CLEARING = {
    "asked_for": trainer(clear="opt.zero_grad(set_to_none=False)"),
    "by_hand": trainer(
        clear="for p in net.parameters():\n            if p.grad is not None:\n                p.grad.zero_()"
    ),
}
CLEARING_LEFT = {"default": trainer(), "other_tensor": trainer(clear="opt.zero_grad(); torch.ones(2).zero_()")}

SYNCS = {
    "item": trainer(),
    "scaled": trainer(count="running += 0.5 * loss.item() * 2"),
}
SYNCS_LEFT = {
    "read_in_the_loop": trainer(count="running += loss.item()\n            print(running)"),
    "loss_changed_in_place": trainer(
        count="loss = loss.detach(); loss *= 1\n            running += loss.item()\n            loss += 1"
    ),
    "factor_changes": trainer(count="running += loss.item() * part"),
}

IN_PLACE = {
    "sequential": trainer(),
    "functional": trainer().replace(
        "self.body = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))",
        "self.up, self.down = nn.Linear(width, 2 * width), None\n        self.up = nn.Linear(width, width)",
    ).replace("x + self.body(self.norm(x))", "x + F.relu(self.up(self.norm(x)))").replace(
        "self.up, self.down = nn.Linear(width, 2 * width), None\n        ", ""
    ),
}
IN_PLACE_LEFT = {
    "behind_something_else": trainer().replace("nn.ReLU(), nn.Linear(2 * width, width)", "nn.Identity(), nn.ReLU(), nn.Linear(2 * width, width)"),
    "residual": trainer().replace("nn.ReLU()", "nn.Tanh()").replace("x + self.body(self.norm(x))", "x + F.relu(x)"),
}

CHECKPOINTS = {
    "loop": trainer(),
    "enumerate": trainer().replace("for unit in self.units:", "for i, unit in enumerate(self.units):"),
    "dictionary": trainer()
    .replace("self.units = nn.ModuleList(", "self.parts = nn.ModuleDict(dict(units=nn.ModuleList(")
    .replace("for _ in range(depth)])", "for _ in range(depth)])))"
    ).replace("in self.units:", "in self.parts.units:"),
}
CHECKPOINTS_LEFT = {
    "keyword_arguments": trainer().replace("x = unit(x)", "x = unit(x=x)"),
    "other_input": trainer().replace("x = unit(x)", "y = x * 1.0\n            x = unit(y)"),
}

CHECKPOINTED = {
    "imported": trainer()
    .replace("import math\n", "import math\nfrom torch.utils.checkpoint import checkpoint\n")
    .replace("x = unit(x)", "x = checkpoint(unit, x, use_reentrant=False)"),
    "dotted": trainer()
    .replace("import torch\n", "import torch\nimport torch.utils.checkpoint\n")
    .replace("x = unit(x)", "x = torch.utils.checkpoint.checkpoint(\n                unit, x, use_reentrant=False\n            )"),
}
CHECKPOINTED_LEFT = {"none": trainer()}

_QKV = """

class Mix(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one = nn.Linear(width, width{bias})
        self.two = nn.Linear(width, 2 * width{bias})
        self.three = nn.Linear(width, width{bias})

    def forward(self, z):
{body}


def run():
    torch.manual_seed(4)
    layer, z = Mix(6), torch.randn(2, 5, 6, requires_grad=True)
    out = layer(z)
    out.pow(2).sum().backward()
    return [out, z.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]
"""


def mix(body: str, bias: str = "") -> str:
    return HEAD + _QKV.replace("{body}", "\n".join(" " * 8 + line for line in body.split("\n"))).replace("{bias}", bias)


QKV = {
    "plain": mix("a = self.one(z)\nb = self.two(z)\nc = self.three(z)\nreturn torch.cat([a, b.tanh(), c], -1)"),
    "one_line_no_bias": mix(
        "a, b, c = self.one(z), self.two(z), self.three(z)\nreturn torch.cat([a, b.tanh(), c], -1)", ", bias=False"
    ),
    "with_views": mix(
        "n = z.size(0)\na = self.one(z).view(n, -1, 2, 3)\nb = self.two(z).view(n, -1, 4, 3)\n"
        "c = self.three(z).view(n, -1, 2, 3)\nreturn torch.cat([a, b, c], 2)",
        ", bias=odd[0] == 1",
    ),
}
QKV_LEFT = {
    "other_input": mix("a = self.one(z)\nb = self.two(z)\nc = self.three(a)\nreturn torch.cat([a, b, c], -1)"),
    "input_changed": mix("a = self.one(z)\nb = self.two(z)\nz = z + 1\nc = self.three(z)\nreturn torch.cat([a, b, c], -1)"),
}


def activation(body: str) -> str:
    lines = "\n".join("    " + line for line in body.split("\n"))
    return (
        HEAD
        + f"\n\ndef act(u):\n{lines}\n\n\ndef run():\n    u = torch.linspace(-4, 4, 50, requires_grad=True)\n"
        + "    out = act(u)\n    out.sum().backward()\n    return [out, u.grad]\n"
    )


ACTIVATIONS = {
    "tanh_pow": activation(
        "return 0.5 * u * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (u + 0.044715 * torch.pow(u, 3.0))))"
    ),
    "tanh_constants": activation("return u * 0.5 * (1 + (0.7978845608028654 * u * (1 + 0.044715 * u * u)).tanh())"),
    "in_steps": activation("inner = u / math.sqrt(2.0)\ngate = 1.0 + torch.erf(inner)\nreturn u * gate * 0.5"),
    "swish": activation("return u * torch.sigmoid(u) + 1"),
    "mish": activation("return u * F.softplus(u).tanh()"),
}
ACTIVATIONS_LEFT = {
    "quick_gelu": activation("return u * torch.sigmoid(1.702 * u)"),
    "wrong_constant": activation("return 0.5 * u * (1 + torch.tanh(0.79 * (u + 0.044715 * u ** 3)))"),
    "step_used_twice": activation("gate = torch.sigmoid(u)\nreturn u * gate + gate"),
    "two_variables": activation("w = u.detach().clone().exp()\nreturn u * torch.sigmoid(w)"),
}
