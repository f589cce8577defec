"""Data-parallel programs in many hands' styles. Each defines run() -> list of tensors that must not change.

The default process group is there already; every process draws data of its own.
"""

from __future__ import annotations

HEAD = """\
import os

import torch
import torch.distributed as dist
import torch.nn as nn

odd  =  ( 1 ,2 )   # spacing that must survive


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(6, 20), nn.Linear(20, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        x = x + self.narrow(torch.tanh(self.wide(self.norm(x))))
        return x


class Rows:
    def __init__(self, turns=6):
        pull = torch.Generator().manual_seed(11 + dist.get_rank())
        self.rows = [torch.randn(5, 6, generator=pull) for _ in range(turns)]

    def __iter__(self):
        return iter(self.rows)

    def __getitem__(self, i):
        return self.rows[i]
"""

INLINE = HEAD + """

def run():
    torch.manual_seed(3)
    net, rows, told = Net(), Rows(), []
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
    world = dist.get_world_size()
    parts = 2
    for step in range(3):
        opt.zero_grad()
        total = 0.0
        for i in range(parts):
            x = rows[step * parts + i]
            loss = (net(x) - x.flip(1)).pow(2).mean() / parts
            loss.backward()
            # every process gets the mean
            for p in net.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
                p.grad /= world
            total += loss.item()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        told.append(total)
    return [torch.tensor(told), *net.parameters()]
"""

FUNCTION = HEAD.replace("import torch.distributed as dist\n", "import torch.distributed as dist\nfrom torch.distributed import all_reduce\n") + """

def average_gradients(model):
    \"\"\" Gradient averaging. \"\"\"
    size = float(dist.get_world_size())
    for param in model.parameters():
        if param.grad is None:
            continue
        all_reduce(param.grad.data, dist.ReduceOp.SUM)
        param.grad.data /= size


def train(network, data, optimizer, accumulate=3):
    network.train()
    for first in range(0, 6, accumulate):
        optimizer.zero_grad()
        for k in range(accumulate):
            batch = data[first + k]
            out = network(batch)
            loss = nn.functional.mse_loss(out, batch.roll(1, 1))
            (loss / accumulate).backward()
            average_gradients(network)
        optimizer.step()


def run():
    torch.manual_seed(4)
    network = Net()
    network.unused = nn.Parameter(torch.ones(3))
    train(network, Rows(), torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01))
    return list(network.parameters())
"""

IN_A_BRANCH = HEAD + """

def sync(params, ranks):
    for q in params:
        if q.requires_grad and q.grad is not None:
            g = q.grad
            g.mul_(1.0 / ranks)
            dist.all_reduce(g)


def run():
    torch.manual_seed(5)
    net, every = Net(), 2
    net.norm.bias.requires_grad = False
    ranks = int(os.environ["WORLD_SIZE"]) if "WORLD_SIZE" in os.environ else 1
    weights = list(net.parameters())
    opt = torch.optim.AdamW([w for w in weights if w.requires_grad], lr=1e-2)
    for n, x in enumerate(Rows()):
        loss = (net(x) - 2 * x).abs().mean()
        loss.backward()
        sync(weights, ranks)
        if (n + 1) % every == 0:
            opt.step()
            opt.zero_grad(set_to_none=True)
    return weights
"""

GUARDED = HEAD + """

class Loop:
    def __init__(self, model):
        self.model = model
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.adam = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def share(self):
        if self.count == 1:
            return
        for _, weight in self.model.named_parameters():
            dist.all_reduce(weight.grad, group=None, async_op=False)
            weight.grad = weight.grad / self.count

    def turn(self, rows, n):
        self.adam.zero_grad()
        for micro in range(n):
            with torch.enable_grad():
                loss = self.model(rows[micro]).square().mean()
                loss.backward()
            if dist.is_initialized():
                self.share()
        self.adam.step()


def run():
    torch.manual_seed(6)
    loop = Loop(Net())
    for _ in range(2):
        loop.turn(Rows(), 3)
    return list(loop.model.parameters())
"""

ALONE = HEAD + """

def run():
    torch.manual_seed(7)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=2e-3)
    for x in Rows(3):
        opt.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        for group in opt.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    dist.all_reduce(p.grad)
                    p.grad.div_(dist.get_world_size())
        opt.step()
    return list(net.parameters())
"""

SUMMED = ALONE.replace("                    p.grad.div_(dist.get_world_size())\n", "")

AVERAGED_MORE_THAN_ONCE = {
    "inline": INLINE,
    "function": FUNCTION,
    "in_a_branch": IN_A_BRANCH,
    "guarded_method": GUARDED,
}
COMBINED = {name: AVERAGED_MORE_THAN_ONCE[name] for name in ("inline", "guarded_method")}
SYNC_ONCE_LEFT = {
    "once_already": ALONE,
    "summed": INLINE.replace("                p.grad /= world\n", ""),
    "clipped_each_time": INLINE.replace(
        "            total += loss.item()\n", "            total += loss.item()\n            nn.utils.clip_grad_norm_(net.parameters(), 0.5)\n"
    ),
    "gradients_read": INLINE.replace("total += loss.item()", "total += net.norm.bias.grad.sum().item()"),
    "cut_short": INLINE.replace("            x = rows", "            if i > 1:\n                break\n            x = rows"),
    "some_processes": INLINE.replace("op=dist.ReduceOp.SUM", "op=dist.ReduceOp.SUM, group=dist.new_group([0, 1])"),
    "not_waited_for": INLINE.replace("op=dist.ReduceOp.SUM", "async_op=True"),
    "another_divisor": INLINE.replace("p.grad /= world", "p.grad /= parts"),
    "a_divisor_that_is_not_known": INLINE.replace("world = dist.get_world_size()", "world = int(os.environ['PEERS'])"),
    "maximum": INLINE.replace("ReduceOp.SUM", "ReduceOp.MAX"),
    "step_in_the_loop": INLINE.replace("            total += loss.item()\n", "            total += loss.item()\n            opt.step()\n"),
    "updated_by_what_is_not_seen": INLINE.replace("        opt.step()\n", "        schedule.step()\n").replace(
        "            total += loss.item()\n", "            total += loss.item()\n            elsewhere.update(opt)\n"
    ),
    "flushed_after_the_loop": IN_A_BRANCH.replace("    return weights", "    opt.step()\n    return weights"),
}
TWICE = INLINE.replace("            loss.backward()\n", "            loss.backward(retain_graph=True)\n            loss.backward()\n")
REDUCED = {**AVERAGED_MORE_THAN_ONCE, "groups": ALONE, "summed": SUMMED, "two_backward_passes": TWICE}
BUCKETS_LEFT = {
    name: SYNC_ONCE_LEFT[name] for name in ("some_processes", "not_waited_for", "another_divisor", "maximum")
} | {
    "sparse": INLINE.replace("nn.Linear(6, 20)", "nn.Embedding(6, 20, sparse=True)"),
    "more_in_the_loop": INLINE.replace("p.grad /= world", "p.grad /= world\n                p.grad.add_(0.01 * p.data)"),
    "some_parameters": INLINE.replace(
        "                dist.all_reduce", "                if p.dim() < 2:\n                    continue\n                dist.all_reduce"
    ),
    "read_later": INLINE.replace("    return [torch", "    print(p)\n    return [torch"),
}
OVERLAP_LEFT = BUCKETS_LEFT | {
    "gradients_read": INLINE.replace("            # every", "            total += net.norm.bias.grad.sum().item()\n            # every"),
    "another_collective_between": INLINE.replace("            # every", "            dist.all_reduce(loss.detach())\n            # every"),
    "checkpointed": INLINE.replace("net(x) -", "torch.utils.checkpoint.checkpoint(net, x, use_reentrant=True) -"),
}
del OVERLAP_LEFT["read_later"]

DDP_HEAD = HEAD.replace("import torch.nn as nn\n", "import torch.nn as nn\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n")

DDP_RANGE = DDP_HEAD + """

def run():
    torch.manual_seed(8)
    net, rows = DDP(Net()), Rows()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    parts, told = 3, []
    for step in range(2):
        opt.zero_grad()
        for i in range(parts):
            x = rows[step * parts + i]
            # forward and backward
            out = net(x)
            loss = (out - x.flip(1)).pow(2).mean() / parts
            loss.backward()
            told.append(loss.detach())
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    return [*told, *net.parameters()]
"""

DDP_BRANCH = HEAD + """

def one(model, x):
    return model(x).square().mean()


def run():
    torch.manual_seed(9)
    model = Net()
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model, device_ids=None)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wait = 2
    for k, x in enumerate(Rows()):
        loss = one(model, x)
        (loss / wait).backward()
        if (k + 1) % wait == 0:
            sgd.step()
            sgd.zero_grad()
    return list(model.parameters())
"""

DDP_PLAIN = {"range": DDP_RANGE.replace("net, rows = DDP(Net()), Rows()", "rows = Rows()\n    net = DDP(Net())"), "branch": DDP_BRANCH}
NO_SYNC_LEFT = {
    "used_already": DDP_RANGE.replace("            # forward and backward\n", "            net.require_backward_grad_sync = i == parts - 1\n"),
    "one_pass": DDP_BRANCH.replace("        if (k + 1) % wait == 0:\n            sgd.step()\n            sgd.zero_grad()\n", "        sgd.step()\n        sgd.zero_grad()\n"),
    "gradients_read": DDP_RANGE.replace("told.append(loss.detach())", "told.append(net.module.norm.bias.grad.sum())"),
    "no_ddp": INLINE,
    "flushed_after_the_loop": DDP_BRANCH.replace("    return list", "    sgd.step()\n    return list"),
}
STATIC_LEFT = {
    "branch_on_data": DDP_RANGE.replace("        return x\n", "        if x.sum() > 0:\n            x = x * 2\n        return x\n", 1),
    "set_already": DDP_RANGE.replace("DDP(Net())", "DDP(Net(), static_graph=False)"),
    "skipped": NO_SYNC_LEFT["used_already"],
}
VIEW_LEFT = {
    "set_already": DDP_RANGE.replace("DDP(Net())", "DDP(Net(), gradient_as_bucket_view=False)"),
    "detached": DDP_RANGE.replace("        opt.zero_grad()\n", "        for p in net.parameters():\n            if p.grad is not None:\n                p.grad.detach_()\n        opt.zero_grad()\n"),
}
UNUSED = {
    "keyword": DDP_RANGE.replace("DDP(Net())", "DDP(Net(), find_unused_parameters=True)"),
    "among_others": DDP_BRANCH.replace("device_ids=None", "find_unused_parameters=True, device_ids=None"),
}
UNUSED_LEFT = {
    "not_used": UNUSED["keyword"].replace("        self.norm = nn.LayerNorm(6)\n", "        self.norm = nn.LayerNorm(6)\n        self.spare = nn.Linear(2, 2)\n"),
    "branch": UNUSED["keyword"].replace("        return x\n", "        if self.training:\n            return x\n        return x\n", 1),
    "in_vain": UNUSED["keyword"].replace(
        "        x = x + self.narrow(torch.tanh(self.wide(self.norm(x))))\n",
        "        y = self.narrow(self.norm(x))\n        y = self.wide(x)\n        x = x + y.mean(1, True)\n",
    ),
    "off": DDP_RANGE,
}

SCALARS_RUN = """

def run():
    told, here = [], torch.arange(4.0) + dist.get_rank()
    for turn in range(2):
        told.extend(report(here * (turn + 1), 7 + dist.get_rank()))
    return [t if torch.is_tensor(t) else torch.tensor(t) for t in told]
"""
SCALARS = {
    "one_after_the_other": HEAD + """

def report(values, tokens):
    loss = values.mean()
    aux = values.max().clone()
    count = torch.tensor(tokens)
    dist.all_reduce(loss)
    dist.all_reduce(aux)
    dist.all_reduce(count)
    return [loss / dist.get_world_size(), aux / dist.get_world_size(), count.item()]
""" + SCALARS_RUN,
    "made_in_between": HEAD + """

def report(values, tokens):
    total = torch.tensor([values.sum().item()], dtype=torch.float64)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    seen = torch.tensor([float(tokens)], dtype=torch.float64)
    dist.all_reduce(seen, op=dist.ReduceOp.SUM)
    return [(total / seen).item()]
""" + SCALARS_RUN,
}
SCALARS_LEFT = {
    "read_in_between": SCALARS["one_after_the_other"].replace("    dist.all_reduce(aux)\n", "    aux = aux + loss\n    dist.all_reduce(aux)\n").replace(
        "    dist.all_reduce(count)\n", ""),
    "other_operations": SCALARS["made_in_between"].replace("(seen, op=dist.ReduceOp.SUM)", "(seen, op=dist.ReduceOp.MAX)"),
    "one": SCALARS["made_in_between"].replace("    dist.all_reduce(seen, op=dist.ReduceOp.SUM)\n", ""),
}

_MOE_HEAD = HEAD.replace("import torch.nn as nn\n", "import torch.nn as nn\nimport torch.nn.functional as F\n") + """

class Mix(nn.Module):
    def __init__(self, width=6, count=4):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList([Part(width) for _ in range(count)])

    def forward(self, x):
"""
_PART = """

class Part(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 9), nn.Linear(9, width)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))
"""

MOE_FUNCTION = _MOE_HEAD.replace("\n\nclass Mix", _PART + "\n\nclass Mix") + """
        flat = x.view(-1, x.size(-1))
        share, chosen = torch.topk(F.softmax(self.gate(flat), dim=-1), 2, dim=-1)
        out = torch.zeros_like(flat)
        mask = F.one_hot(chosen, num_classes=len(self.experts)).permute(2, 1, 0)
        for i, expert in enumerate(self.experts):
            slot, token = torch.where(mask[i])
            out.index_add_(0, token, expert(flat[token]) * share[token, slot, None])
        return out.view_as(x)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mix, self.last = nn.Linear(6, 6), Mix(), nn.Linear(6, 6)

    def forward(self, x):
        return self.last(x + self.mix(self.first(x)))


def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def write(kept, model, optimizer):
    kept.append({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def run():
    torch.manual_seed(12)
    rank, kept, told, parts = dist.get_rank(), [], [], 2
    is_first = rank == 0
    model = Whole()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    rows = Rows(8)
    for step in range(3):
        optimizer.zero_grad()
        for i in range(parts):
            x = rows[step * parts + i]
            loss = (model(x) - x.flip(1)).pow(2).mean() / parts
            loss.backward()
            average(model)
            told.append(loss.detach())
        told.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
    if is_first:
        write(kept, model, optimizer)
    for state in kept:
        told += list(state["model"].values())
        told += [v[k] for v in state["optimizer"]["state"].values() for k in sorted(v)]
        told.append(torch.tensor(list(state["optimizer"]["state"])))
    return told
"""

MOE_INLINE = _MOE_HEAD.replace("Part(width)", "nn.Sequential(nn.Linear(width, 9), nn.Tanh(), nn.Linear(9, width))") + """
        w, sel = torch.topk(self.gate(x).softmax(-1), k=2)
        w = w / w.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for j, e in enumerate(self.experts):
            rows, which = torch.where(sel == j)
            if rows.numel() == 0:
                continue
            y[rows] += w[rows, which].unsqueeze(-1) * e(x[rows])
        return x + y


def run():
    torch.manual_seed(13)
    net, told, data = Mix(), [], Rows(4)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    peers = dist.get_world_size()
    for n, x in enumerate(data):
        sgd.zero_grad(set_to_none=True)
        loss = net(torch.cat([x, -x, 2 * x, x.flip(0), x.flip(1)])).square().mean()
        loss.backward()
        for w in net.parameters():
            if w.grad is not None:
                dist.all_reduce(w.grad.data, op=dist.ReduceOp.SUM)
                w.grad.data.div_(peers)
        sgd.step()
        told.append(loss.detach())
        if n == 1:
            if dist.get_rank() == 0:
                told += [t.clone() for t in net.state_dict().values()]
    if dist.get_rank() == 0:
        told += net.state_dict().values()
        told += [s["momentum_buffer"] for s in sgd.state_dict()["state"].values()]
    return told
"""

EXPERTS = {"function": MOE_FUNCTION, "inline": MOE_INLINE}
EXPERTS_LEFT = {
    "weights_read_elsewhere": MOE_FUNCTION.replace("told.append(loss.detach())", "told.append(sum(p.norm() for p in model.parameters()))"),
    "run_by_one_process": MOE_FUNCTION.replace("    if is_first:\n", "    if is_first:\n        told.append(model(rows[7]).mean())\n"),
    "evaluated": MOE_FUNCTION.replace("    if is_first:\n", "    told.append(model(rows[7]).mean())\n    if is_first:\n"),
    "saved_by_all": MOE_FUNCTION.replace("    if is_first:\n        write(kept, model, optimizer)\n", "    write(kept, model, optimizer)\n"),
    "saved_by_another": MOE_FUNCTION.replace("is_first = rank == 0", "is_first = rank == 1"),
    "saved_now_and_then": MOE_INLINE.replace(
        "        if n == 1:\n            if dist.get_rank() == 0:\n                told", "        if n == 1 and dist.get_rank() == 0:\n                told"
    ),
    "gradients_read": MOE_FUNCTION.replace("told.append(loss.detach())", "told.append(model.last.bias.grad.sum())"),
    "another_norm": MOE_FUNCTION.replace("model.parameters(), 0.5", "model.parameters(), 0.5, norm_type=1.0"),
    "a_copy": MOE_FUNCTION.replace("    rows = Rows(8)\n", "    rows = Rows(8)\n    same = model\n"),
    "handed_on": MOE_FUNCTION.replace("    if is_first:\n", "    print(vars(model))\n    if is_first:\n"),
    "never_saved": MOE_FUNCTION.replace("        write(kept, model, optimizer)\n", "        pass\n"),
    "dense": INLINE,
}
