"""More programs in many hands' styles, for techniques around the training loop, the data and the settings.

Each defines run() -> list of tensors that must not change. Names here are free inventions.
"""

from tests.techniques.snippets import HEAD, QKV, TRAIN, trainer  # noqa: F401

NET = HEAD + """

class Net(nn.Module):
    def __init__(self, words=40, width=16):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.units = nn.ModuleList([nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh()) for _ in range(3)])
        self.top = nn.Linear(width, words, bias=False)

    def forward(self, ids, wanted):
        h = self.table(ids)
        for unit in self.units:
            h = {unit}
        scores = self.top(h)
        return scores, F.cross_entropy(scores.view(-1, scores.size(-1)), wanted.reshape(-1))


def run():
    {start}
    torch.manual_seed(3)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    told = []
    {before}
    for step in range(3):
        ids = torch.randint(40, (4, 9))
{body}
    return [*told, *(p.detach() for p in net.parameters())]
"""
PLAIN = """
opt.zero_grad()
scores, loss = net(ids, ids.flip(1))
loss.backward()
opt.step()
told.append(loss.detach())
"""


def net(body: str = PLAIN, start: str = "odder = 1", before: str = "total = 0.0", unit: str = "unit(h)") -> str:
    text = "".join(" " * 8 + line + "\n" for line in body.strip().split("\n")).rstrip()
    return (
        NET.replace("{body}", text).replace("{start}", start).replace("{before}", before).replace("{unit}", unit)
    )


WHILE = HEAD + """
import torch.optim as om


def fit(told):
    \"\"\"Three updates of a line.\"\"\"
    line = nn.Linear(5, 1)
    sgd = om.SGD(line.parameters(), lr=0.1)
    left = 3
    while left:
        left -= 1
        sgd.zero_grad()
        miss = (line(torch.randn(6, 5)) ** 2).mean()
        miss.backward()
        sgd.step()
        told.append(miss.detach())
    return list(line.parameters())


def run():
    torch.manual_seed(3)
    told = []
    return [*told, *(p.detach() for p in fit(told))]
"""

LOOPS = {"for_loop": net(), "while_loop_in_a_function": WHILE, "accumulating": trainer()}
FREEZE_LEFT = {"steers_itself": net(before="import gc; gc.disable(); gc.enable()"), "trains_nothing": net(body="told.append(net(ids, ids)[1].detach())")}
DENORMALS_LEFT = {"decided_already": net(start="torch.set_flush_denormal(False)")}
TF32_LEFT = {"decided_already": net(start='torch.set_float32_matmul_precision("highest")')}

EMPTYING = {
    "each_step": net(PLAIN + "torch.cuda.empty_cache()"),
    "now_and_then": net(PLAIN + "if step == 2:\n    collect()").replace("import math\n", "import math\nfrom gc import collect\n"),
}
EMPTYING_LEFT = {
    "ahead_of_the_loop": net(before="torch.cuda.empty_cache()"),
    "result_is_read": net(PLAIN + "odd_ones = gc.collect()").replace("import math\n", "import gc\nimport math\n"),
}

ANOMALY = {
    "switched_on": net(start="torch.autograd.set_detect_anomaly(True)"),
    "by_name": net(start="set_detect_anomaly(mode=True, check_nan=True)").replace(
        "import math\n", "import math\nfrom torch.autograd import set_detect_anomaly\n"
    ),
    "as_a_context": net(
        "opt.zero_grad()\nwith torch.autograd.detect_anomaly(check_nan=False):\n"
        "    scores, loss = net(ids, ids.flip(1))\n    loss.backward()\nopt.step()\ntold.append(loss.detach())"
    ),
}
ANOMALY_LEFT = {
    "off_already": net(start="torch.autograd.set_detect_anomaly(False)"),
    "by_an_option": net(start="strict = False; torch.autograd.set_detect_anomaly(strict)"),
}

RELEASED = {
    "logits_beside_the_loss": net(),
    "loss_outside_and_context": net(
        "import contextlib\nopt.zero_grad()\nwith contextlib.nullcontext():\n    scores, _ = net(ids, ids)\n"
        "    loss = F.cross_entropy(scores.flatten(0, 1), ids.flatten())\n(loss * 2).backward()\nopt.step()\ntold.append(loss.detach())"
    ),
}
RELEASED_LEFT = {
    "read_afterwards": net(PLAIN + "told.append(scores.detach().sum())"),
    "bound_twice": net("opt.zero_grad()\nscores, loss = net(ids, ids)\nloss.backward()\nscores, loss = None, loss\nopt.step()"),
    "released_already": net(PLAIN.replace("loss.backward()", "del scores\nloss.backward()")),
    "shown_by_a_closure": net(PLAIN.replace("loss.backward()", "loss.backward()\nshow = lambda: scores")),
}

CLEARED_LATE = {
    "behind_the_forward_pass": net(PLAIN.replace("opt.zero_grad()\n", "").replace("loss.backward()", "opt.zero_grad()  # now\nloss.backward()")),
    "with_an_option_and_context": net(
        "import contextlib\nwith contextlib.nullcontext():\n    scores, loss = net(ids, ids.flip(1))\nloss = loss * 0.5\n"
        "# clear\nopt.zero_grad(set_to_none=True)\nloss.backward()\nopt.step()\ntold.append(loss.detach())"
    ),
}
CLEARED_LATE_LEFT = {
    "clear_already": net(),
    "behind_the_step": net("scores, loss = net(ids, ids)\nloss.backward()\nopt.step()\nopt.zero_grad()"),
    "gradients_are_read": CLEARED_LATE["behind_the_forward_pass"].replace("opt.step()", "told.append(net.top.weight.grad.sum())\n        opt.step()"),
    "optimizer_made_in_between": net(
        "scores, loss = net(ids, ids)\nopt = torch.optim.SGD(net.parameters(), lr=0.1)\nopt.zero_grad()\nloss.backward()\nopt.step()"
    ),
}

CHECKPOINTED = {
    "imported": net(unit="checkpoint(unit, h, use_reentrant=False)").replace(
        "import math\n", "import math\nfrom torch.utils.checkpoint import checkpoint\n"
    ),
    "dotted": net(unit="torch.utils.checkpoint.checkpoint(\n                unit, h,\n                use_reentrant=False,\n            )").replace(
        "import torch\n", "import torch\nimport torch.utils.checkpoint\n"
    ),
}
CHECKPOINTED_LEFT = {
    "reentrant": net(unit="torch.utils.checkpoint.checkpoint(unit, h, use_reentrant=True)").replace(
        "import torch\n", "import torch\nimport torch.utils.checkpoint\n"
    ),
    "policy_of_its_own": net(
        unit="torch.utils.checkpoint.checkpoint(unit, h, use_reentrant=False, context_fn=torch.utils.checkpoint.noop_context_fn)"
    ).replace("import torch\n", "import torch\nimport torch.utils.checkpoint\n"),
    "a_plain_function": net(unit="torch.utils.checkpoint.checkpoint(odd_chunk, unit, h, use_reentrant=False)").replace(
        "\n\ndef run", "\n\ndef odd_chunk(unit, h):\n    return unit(h)\n\n\ndef run"
    ),
}

LAST = HEAD + """

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, 12)
        self.mix = nn.GRU(12, 12, batch_first=True)
        self.out = nn.Linear(12, 7)

    def forward(self, ids):
        h, _ = self.mix(self.table(ids))
        {body}


def run():
    torch.manual_seed(4)
    reader = Reader()
    seen = reader(torch.randint(30, (3, 8)))
    (seen * torch.linspace(-1, 1, seen.numel()).view_as(seen)).sum().backward()
    return [seen, *(p.grad for p in reader.parameters())]
"""


def last(body: str) -> str:
    return LAST.replace("{body}", "\n        ".join(body.split("\n")))


POSITIONS = {
    "last_of_a_variable": last("logits = self.out(h)\nreturn logits[:, -1, :].softmax(-1) + 0 * logits[:, -1, :]"),
    "first_in_one_expression": last("return self.out(h + 1)[:, 0, :]"),
}
POSITIONS_LEFT = {
    "two_positions": last("logits = self.out(h)\nreturn logits[:, -1, :] + logits[:, 0, :]"),
    "all_are_read": last("logits = self.out(h)\nreturn logits[:, -1, :] + logits.mean(1)"),
    "a_column": last("logits = self.out(h[:, 0])\nreturn logits[:, -1]"),
    "second_last": last("return self.out(h)[:, -2, :]"),
}

CONV = HEAD + """
from torch.nn import Conv2d


class Eye(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 4, 3))
        self.say = nn.Linear(4 * 3 * 3, 5)

    def forward(self, x):
        return self.say(self.look(x).{rows})


def run():
    torch.manual_seed(4)
    eye = Eye()
    eye = eye.to("cpu")
    opt = torch.optim.SGD(eye.parameters(), lr=0.1)
    for _ in range(2):
        opt.zero_grad()
        loss = F.cross_entropy(eye(torch.randn(4, 3, 10, 10)), torch.randint(5, (4,)))
        loss.backward()
        opt.step()
    return [loss.detach(), *(p.detach() for p in eye.parameters())]
"""
CONVOLUTIONS = {
    "flattened": CONV.replace("{rows}", "flatten(1)"),
    "reshaped": CONV.replace("{rows}", "reshape(x.size(0), -1)").replace("    eye = eye.to(\"cpu\")\n", ""),
}
CONVOLUTIONS_LEFT = {
    "viewed": CONV.replace("{rows}", "contiguous().view(x.size(0), -1)"),
    "no_convolutions": net(),
    "set_already": CONVOLUTIONS["flattened"].replace("x).flatten", "x.contiguous(memory_format=torch.channels_last)).flatten"),
}

MASK_RUN = """

def run():
    torch.manual_seed(5)
    part = Part(12)
    told = []
    for length in (6, 9, 6):
        x = torch.randn(2, length, 12, requires_grad=True)
        out = part(x)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        told += [out, x.grad]
    return told
"""


def part(body: str, init: str = "self.width = width // 2") -> str:
    text = "\n        ".join(body.strip().split("\n"))
    return HEAD + f"""

class Part(nn.Module):
    def __init__(self, width):
        super().__init__()
        {init}
        self.lin = nn.Linear(width, width)

    def forward(self, x):
        {text}
""" + MASK_RUN


CONSTANTS = {
    "mask_of_the_length": part(
        "t = x.size(1)\nblock = torch.triu(torch.ones(t, t, device=x.device), diagonal=1).bool()\n"
        "w = (x @ x.mT).masked_fill(block, -1e9)\nreturn w.softmax(-1) @ self.lin(x)"
    ),
    "rotary_tables": part(
        "b, t, c = x.shape\nrate = 1.0 / 10000.0 ** (torch.arange(0, self.width, device=x.device) / self.width)\n"
        "turn = torch.outer(torch.arange(t, device=x.device).float(), rate)\n"
        "cos, low = torch.cat([turn, turn], -1).cos(), 0\nsine = torch.cat((turn, turn), dim=-1).sin()\n"
        "return self.lin(x) * cos + x * sine"
    ),
    "compared_ranges": part(
        "length = x.shape[1]\nrows = torch.arange(length)\nseen = rows[:, None] >= rows[None, :]\n"
        "return torch.where(seen, x @ x.transpose(1, 2), -1e9).softmax(-1) @ self.lin(x)"
    ),
}
CONSTANTS_LEFT = {
    "changed_in_place": part("t = x.size(1)\nm = torch.ones(t, t).tril()\nm[0] += 1\nreturn (x @ x.mT * m) @ self.lin(x)"),
    "of_the_data": part("t = x.size(1)\nm = torch.ones(t, t).tril() * x.mean()\nreturn m @ self.lin(x)"),
    "learned": part("t = x.size(1)\nm = torch.ones(t, t).tril() * self.gain\nreturn m @ self.lin(x)", "self.gain = nn.Parameter(torch.ones(1))"),
    "random": part("t = x.size(1)\nm = torch.rand(t, t).tril() * 0\nreturn m @ x + self.lin(x)"),
    "returned": part("t = x.size(1)\nm = torch.ones(t, t).tril()\nself.seen = m\nreturn m @ self.lin(x)"),
    "one_operation": part("t = x.size(1)\np = torch.arange(t, device=x.device)\nreturn self.lin(x) * p[None, :, None]"),
    "size_changes_meanwhile": part(
        "p = torch.arange(x.size(1))\nx = x[:, ::2]\nm = (p[:, None] >= p[None, :]).float() * 1\n"
        "return m[: x.size(1), : x.size(1)] @ self.lin(x)"
    ),
}

ON_DEVICE = {
    "mask": part("t = x.size(1)\nm = torch.tril(torch.ones(t, t)).to(x.device)\nreturn m @ self.lin(x)"),
    "positions_by_keyword": part("p = torch.arange(x.size(1)).unsqueeze(1).float().to(device=x.device)\nreturn self.lin(x) * p"),
}
ON_DEVICE_LEFT = {
    "a_type": part("kind = torch.float64\nm = torch.ones(3).to(kind)\nreturn self.lin(x) * m.sum()"),
    "device_given": part("m = torch.ones(1, device='cpu').to(x.device)\nreturn self.lin(x) * m"),
    "random": part("m = torch.rand(1).to(x.device)\nreturn self.lin(x) + m * 0"),
    "fractions": part("p = torch.arange(0, 1.2, 0.1).to(x.device)\nreturn self.lin(x) * p"),
}

SHOWN = {
    "printed_now_and_then": net(
        "opt.zero_grad()\nscores, loss = net(ids, ids)\nloss.backward()\nopt.step()\nsaid = loss.item() * 2\n"
        "if step % 2 == 0:\n    print(f'{said:.2f}')\n    told.append(torch.tensor(said))"
    ).replace("scores, loss = net(ids, ids)", "loss = net(ids, ids)[1] * 1.0"),
    "two_of_them": net(
        "opt.zero_grad()\nloss = F.cross_entropy(net(ids, ids)[0].flatten(0, 1), ids.flatten())\nhalf = loss / 2\n"
        "loss.backward()\na = loss.item()\nb = half.item()\nopt.step()\nif step == 1:\n    # show\n    told += [torch.tensor(a), torch.tensor(b)]"
    ),
}
SHOWN_LEFT = {
    "read_in_each_step": net(
        "opt.zero_grad()\nloss = net(ids, ids)[1] * 1.0\nloss.backward()\nopt.step()\na = loss.item()\ntold.append(torch.tensor(a))"
    ),
    "the_test_reads_it": net(
        "opt.zero_grad()\nloss = net(ids, ids)[1] * 1.0\nloss.backward()\nopt.step()\na = loss.item()\nif a > 0:\n    print(a)"
    ),
    "changed_in_between": net(
        "opt.zero_grad()\nloss = net(ids, ids)[1] * 1.0\nloss.backward()\nloss = loss.detach()\na = loss.item()\nloss.add_(1)\nopt.step()\nif step:\n    told.append(torch.tensor(a))"
    ),
}

DATA = HEAD + """
from torch.utils.data import DataLoader, {base}


{data}

def run():
    device = torch.device("cpu")
    torch.manual_seed(6)
    line = nn.Linear(4, 2)
    opt = torch.optim.SGD(line.parameters(), lr=0.1)
    batches = {loader}
    told = []
    for epoch in range(2):
        for a, b in batches:
            {moved}
            opt.zero_grad()
            loss = F.cross_entropy(F.dropout(line(a), 0.1), b)
            loss.backward()
            opt.step()
            told.append(loss.detach())
    return [*told, *(p.detach() for p in line.parameters())]
"""
ROWS = """\
class Rows(Dataset):
    def __init__(self):
        self.a, self.b = torch.arange(48.0).view(12, 4) / 48, torch.arange(12) % 2

    def __len__(self):
        return 12

    def __getitem__(self, at):
        return self.a[at], self.b[at]

"""


def data(loader: str, moved: str, base: str = "Dataset", rows: str = ROWS) -> str:
    return DATA.replace("{loader}", loader).replace("{moved}", moved).replace("{base}", base).replace("{data}", rows)


LOADED = {
    "of_rows": data("DataLoader(Rows(), batch_size=4, shuffle=True)", "a, b = a.to(device), b.to(device)"),
    "of_tensors": data(
        "DataLoader(\n        TensorDataset(torch.ones(8, 4).cumsum(0) / 8, torch.arange(8) % 2),\n        4,\n        num_workers=0,\n    )",
        "a = a.to(device)\n            b = b.to(device)", "TensorDataset", "",
    ),
}
WORKERS_LEFT = {
    "draws": data("DataLoader(Rows(), batch_size=4)", "pass", rows=ROWS.replace("return self.a[at]", "return self.a[at] + torch.rand(1)")),
    "has_workers": data("DataLoader(Rows(), batch_size=4, num_workers=1, multiprocessing_context='fork')", "pass"),
    "unknown_arguments": data("DataLoader(Rows(), **{'batch_size': 4})", "pass"),
    "collates_itself": data("DataLoader(Rows(), 4, collate_fn=torch.utils.data.default_collate)", "pass"),
}
PINNED_LEFT = {
    "decided_already": data("DataLoader(Rows(), 4, pin_memory=False)", "pass"),
    "moves_nothing": data("DataLoader(Rows(), 4)", "pass"),
}

MICRO = net(
    "opt.zero_grad()\nfor rows in ids.split(2):\n    with torch.autocast(device_type=kind, dtype=torch.bfloat16):\n"
    "        scores, loss = net(rows, rows.flip(1))\n    (loss / 2).backward()\n    told.append(loss.detach())\n"
    "nn.utils.clip_grad_norm_(net.parameters(), 1.0)\nopt.step()",
    before='kind = "cpu"',
)
MICRO_BATCHES = {
    "written_there": MICRO,
    "under_a_name": MICRO.replace('kind = "cpu"', 'kind = "cpu"\n    narrow = torch.amp.autocast(kind, torch.bfloat16) if kind else None').replace(
        "with torch.autocast(device_type=kind, dtype=torch.bfloat16):", "with narrow:"
    ),
}
MICRO_BATCHES_LEFT = {
    "update_in_the_loop": MICRO.replace("    (loss / 2).backward()", "    (loss / 2).backward()\n            opt.step()"),
    "no_cache_wanted": MICRO.replace("torch.bfloat16", "torch.bfloat16, cache_enabled=False"),
    "fp32": trainer(),
    "covered_already": net(
        "opt.zero_grad()\nwith torch.autocast('cpu', torch.bfloat16):\n    for rows in ids.split(2):\n"
        "        with torch.autocast('cpu', torch.bfloat16):\n            scores, loss = net(rows, rows.flip(1))\n        loss.backward()\nopt.step()"
    ),
}

COMPILED = {
    "function": net(before="net = torch.compile(net, dynamic=False)"),
    "method": net(before="net.compile()"),
}
COMPILED_LEFT = {"has_a_mode": net(before="net.compile(mode='reduce-overhead')"), "of_a_pattern": net(before="import re; re.compile('a')")}
