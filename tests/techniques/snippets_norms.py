"""Norms and gated layers in many hands' styles. Each defines run() -> tensors that must not change.

The third of a norm's results is made from bfloat16, and is compared as such.
"""

from __future__ import annotations

from tests.techniques.snippets import HEAD

_NORM = """

class Scale(nn.Module):
    def __init__(self, size, eps=1e-4):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))
        self.shift = nn.Parameter(torch.zeros(size))
        self.size, self.eps = size, eps

{body}


def run():
    torch.manual_seed(7)
    layer = Scale(12)
    with torch.no_grad():
        layer.gain += torch.randn(12) / 4
        layer.shift += torch.randn(12) / 4
    x = (2 * torch.randn(3, 5, 12) + 0.5).requires_grad_()
    out = layer(x)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    half = layer(x.detach().bfloat16())
    return [out, x.grad, half, *(p.grad for p in layer.parameters())]
"""


def norm(body: str) -> str:
    return HEAD + _NORM.replace("{body}", "\n".join("    " + line if line else "" for line in body.strip("\n").split("\n")))


RMS = {
    "cast_and_variance": norm("""
def forward(self, state):
    kind = state.dtype
    state = state.to(torch.float32)
    variance = state.pow(2).mean(-1, keepdim=True)
    # back to what it was
    state = state * torch.rsqrt(variance + self.eps)
    return self.gain * state.to(kind)
"""),
    "helper_method": norm("""
def scaled(self, v):
    return v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + self.eps)

def forward(self, v):
    out = self.scaled(v.float()).type_as(v)
    return out * self.gain
"""),
    "divided_by_the_root": norm("""
def forward(self, v):
    size = torch.sqrt(torch.mean(v * v, dim=-1, keepdim=True) + self.eps)
    return v / size * self.gain
"""),
    "one_expression": norm("""
def forward(self, v):
    return self.gain * (v * (v.square().mean(dim=-1, keepdim=True) + 1e-4) ** -0.5)
"""),
    "gain_from_one": norm("""
def forward(self, v):
    scale = (v ** 2).mean((-1,), keepdim=True).add(self.eps).rsqrt()
    v = v * scale
    return v * (1 + self.gain) + self.shift
"""),
}
RMS_LEFT = {
    "all_but_the_first_dimension": norm("""
def forward(self, v):
    return self.gain * (v * torch.rsqrt(v.pow(2).mean((1, 2), keepdim=True) + self.eps))
"""),
    "eps_behind_the_root": norm("""
def forward(self, v):
    return self.gain * (v / (v.pow(2).mean(-1, keepdim=True).sqrt() + self.eps))
"""),
    "size_read_elsewhere": norm("""
def forward(self, v):
    size = torch.sqrt(v.pow(2).mean(-1, keepdim=True) + self.eps)
    return v / size * self.gain + size
"""),
    "another_tensor_is_scaled": norm("""
def forward(self, v):
    w = v + 1
    return self.gain * (w * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + self.eps))
"""),
    "input_changed_between": norm("""
def forward(self, v):
    size = torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + self.eps)
    v = v + 1
    return self.gain * (v * size)
"""),
    "sum_of_squares": norm("""
def forward(self, v):
    return self.gain * (v * torch.rsqrt(v.pow(2).sum(-1, keepdim=True) + self.eps))
"""),
}

LAYER = {
    "in_steps": norm("""
def forward(self, v):
    mean = v.mean(-1, keepdim=True)
    var = v.var(-1, keepdim=True, unbiased=False)
    v = (v - mean) / torch.sqrt(var + self.eps)
    return self.gain * v + self.shift
"""),
    "one_expression": norm("""
def forward(self, v):
    u = v.mean(dim=-1, keepdim=True)
    s = (v - u).pow(2).mean(dim=-1, keepdim=True)
    return (v - u) * torch.rsqrt(s + self.eps) * self.gain + self.shift
"""),
    "centred_first": norm("""
def forward(self, v):
    centred = v - torch.mean(v, -1, keepdim=True)
    spread = torch.mean(centred ** 2, -1, keepdim=True)
    return centred / (spread + 1e-4).sqrt()
"""),
}
LAYER_LEFT = {
    "unbiased": norm("""
def forward(self, v):
    mean = v.mean(-1, keepdim=True)
    return self.gain * ((v - mean) / torch.sqrt(v.var(-1, keepdim=True) + self.eps)) + self.shift
"""),
    "deviation_plus_eps": norm("""
def forward(self, v):
    mean = v.mean(-1, keepdim=True)
    return self.gain * (v - mean) / (v.std(-1, keepdim=True) + self.eps) + self.shift
"""),
    "batch": norm("""
def forward(self, v):
    mean = v.mean(0, keepdim=True)
    return (v - mean) / torch.sqrt(v.var(0, keepdim=True, unbiased=False) + self.eps)
"""),
    "mean_used_twice": norm("""
def forward(self, v):
    mean = v.mean(-1, keepdim=True)
    return (v - mean) / torch.sqrt(v.var(-1, keepdim=True, unbiased=False) + self.eps) + mean
"""),
}

_GATED = """

class Gate(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.lift = nn.Linear(width, inner{bias})
        self.gate = nn.Linear(width, inner{bias})
        self.drop = nn.Linear(inner, width)

    def forward(self, z):
{body}


def run():
    torch.manual_seed(8)
    layer, z = Gate(6, 10), torch.randn(2, 5, 6, requires_grad=True)
    out = layer(z)
    out.pow(2).sum().backward()
    return [out, z.grad, out.detach(), *(p.grad for p in layer.parameters())]
"""


def gate(body: str, bias: str = "") -> str:
    return HEAD + _GATED.replace("{body}", "\n".join(" " * 8 + line for line in body.split("\n"))).replace("{bias}", bias)


GATE = {
    "one_expression": gate("return self.drop(F.silu(self.gate(z)) * self.lift(z))", ", bias=False"),
    "in_steps": gate("a = self.lift(z)\nb = torch.sigmoid(self.gate(z))\nreturn self.drop(a * b)"),
}
GATE_LEFT = {
    "one_after_the_other": gate("return self.drop(self.gate(z) * self.lift(z + 1))"),
    "changed_between": gate("a = self.lift(z)\nz = z * 2\nreturn self.drop(a * self.gate(z))"),
}
