"""Compares learned updates, tensor by tensor, in a process of its own: JSON lines in, JSON lines out.

Self-contained (standard library and torch), so that this one file can be mounted alone into a sandbox
and started as `python -P compare_worker.py` or `python -P -m rsi_tui.evaluator.compare_worker`.
Checkpoints are untrusted: they are loaded with `weights_only=True` and reduced to plain dense tensors
before anything looks at them. All arithmetic is in float64 on one thread.

Says {"ready": true} once torch is imported. Then for each request

    {"initial": PATH, "reference": PATH, "candidate": PATH, "key": "model", "gradients": false, "parts": ""}

one line: {"report": {...}}, with the fields of `compare.UpdateReport`, or {"error": "one sentence"}
when the initial or reference checkpoint, or the file of parts, can't be used. A candidate that can't be
read or that does not match is not an error: its report names the problems.

With W0 the initial weights, U_r and U_c the updates of reference and candidate, D = U_c - U_r, a row
holds for each tensor:
    error         |D| / |U_r|
    row_error     largest |D_row| / max(|U_r,row|, rms over rows of |U_r,row|); rows of dimension 0
    along_update  <D, U_r> / <U_r, U_r>: 0 = same size, -0.02 = two per cent short
    along_weights <D, W0> / <W0, W0>: 0 = same decay
    update_norm, difference_norm, weight_norm   |U_r|, |D|, |W0|

With "gradients", the initial checkpoint is a state that both runs started from, and the same statistics are
also made of the optimizer's first moment, by parameter: an update moves it by the gradient alone, which the
weights show only after the optimizer has scaled it. Differences of one unit in the last place of what was
stored then count as none: a short run at a small learning rate moves weights by few such units. With "parts", a file of {name: {parameter: tensor}}, each
part of the gradient is laid beside the difference of the first moments (of the weights, turned round, where
the optimizer keeps none), on the elements where the part is not zero:
    along                                     <difference, part>
    part_norm, difference_norm, change_norm   |part|, |difference|, |what the reference's update changed|
A torch.distributed.checkpoint folder is refused: its index is a pickle, which only code can read.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

Json = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Kept = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""of one tensor: at the state, after the reference's update, after the candidate's"""
TINY = 1e-30
CACHED = 3
COUNTERS = ("step", "steps", "iteration", "iterations", "iter", "global_step", "count")
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum")
FIRST = ("exp_avg", "momentum_buffer")
"""the optimizer's running mean of gradients, by what optimizers call it"""
RESEMBLANCE = 0.2
"""cosine with a parameter's update from which on a first moment is taken to be that parameter's"""
SAMPLED = 4096
"""elements of a tensor that are looked at to recognise it"""


class Unusable(Exception):
    """A checkpoint that can't be compared; the message is one sentence."""


class Checkpoint:
    """Weights, optimizer tensors and counters of one file, as plain CPU tensors."""

    def __init__(self, weights: Tensors, state: Tensors, counters: tuple[float, ...]) -> None:
        self.weights = weights
        self.state = state
        self.counters = counters


COMPILED = "_orig_mod."
"""what torch.compile(model) puts before the names of the same tensors"""


def load(path: str, key: str) -> Checkpoint:
    """The checkpoint in a file. Raises Unusable."""
    if Path(path).is_dir():
        raise Unusable("is a folder (torch.distributed.checkpoint has a pickled index, which is not read); save one file")
    if not Path(path).is_file():
        raise Unusable("was not written")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever an untrusted file makes torch raise
        raise Unusable(f"can't be loaded with weights_only=True ({type(error).__name__})") from None
    weights: object = loaded
    for part in key.split(".") if key else ():
        if not isinstance(weights, Mapping) or part not in weights:
            raise Unusable(f"has no entry '{key}'")
        weights = weights[part]
    if not isinstance(weights, Mapping) or not weights:
        raise Unusable("holds no state dict")
    named = {}
    for name, value in weights.items():
        if not isinstance(value, torch.Tensor):
            raise Unusable(f"holds something else than a tensor at '{name}'")
        named[str(name).replace(COMPILED, "")] = plain(value, str(name))
    rest = {k: v for k, v in loaded.items() if k != key.split(".")[0]} if key and isinstance(loaded, Mapping) else {}
    leaves = list(flatten(rest))
    state = {name: plain(v, name) for name, v in leaves if isinstance(v, torch.Tensor) and v.numel() > 1}
    return Checkpoint(named, state, tuple(sorted({number for leaf in leaves if (number := counter(*leaf)) is not None})))


def plain(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor itself if it is an ordinary dense one whose storage really holds it. Raises Unusable."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise Unusable(f"holds a tensor of a special kind at '{name}'")
    if tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_complex():
        raise Unusable(f"holds a tensor of a special kind at '{name}'")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise Unusable(f"holds a tensor larger than its storage at '{name}'")
    return tensor.detach()


def flatten(value: object, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Leaves of nested dicts and lists with their paths."""
    if isinstance(value, Mapping) and depth < 8:
        for key, item in value.items():
            yield from flatten(item, f"{prefix}/{key}" if prefix else str(key), depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 8:
        for index, item in enumerate(value):
            yield from flatten(item, f"{prefix}/{index}", depth + 1)
    else:
        yield prefix, value


def counter(name: str, value: object) -> float | None:
    """The value of a step counter, None for anything else."""
    if name.rsplit("/", 1)[-1] not in COUNTERS or isinstance(value, bool):
        return None
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, (int, float)) else None


def mismatches(what: str, reference: Tensors, candidate: Tensors) -> list[str]:
    """Why tensors of the candidate can't be compared with the reference's, one sentence each."""
    found = [f"{what} '{name}' is missing" for name in reference if name not in candidate]
    for name in reference.keys() & candidate.keys():
        a, b = reference[name], candidate[name]
        if a.shape != b.shape:
            found.append(f"{what} '{name}' has shape {list(b.shape)} instead of {list(a.shape)}")
        elif a.dtype != b.dtype:
            found.append(f"{what} '{name}' has dtype {b.dtype} instead of {a.dtype}")
        elif not bool(torch.isfinite(b).all()):
            found.append(f"{what} '{name}' holds NaN or inf")
    return sorted(found)


def extras(what: str, reference: Tensors, candidate: Tensors) -> list[str]:
    return [f"{what} '{name}' is not in the reference" for name in sorted(candidate.keys() - reference.keys())]


def rows_norm(tensor: torch.Tensor) -> torch.Tensor:
    """Euclidean norm of each row (dimension 0)."""
    rows: torch.Tensor = tensor.reshape(tensor.shape[0], -1).square().sum(1).sqrt()
    return rows


def tensor_row(
    name: str, initial: torch.Tensor, reference: torch.Tensor, candidate: torch.Tensor, forgiving: bool = False
) -> Json:
    """The statistics of one tensor, see the module's docstring; `forgiving` of one unit in the last place."""
    start = initial.double()
    update = reference.double() - start
    difference = candidate.double() - reference.double()
    if forgiving and reference.dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        difference = torch.where(difference.abs() <= last_place(reference), 0.0, difference)
    update_norm, difference_norm = float(update.norm()), float(difference.norm())
    weight_norm = float(start.norm())
    # A tensor that the reference left alone must be left alone: any difference counts as a large error.
    scale = max(update_norm, 1e-12 * max(weight_norm, 1.0))
    error = difference_norm / scale
    row_error = error
    if difference.dim() >= 2 and difference.numel():
        sizes = rows_norm(update)
        floor = max(float(sizes.square().mean().sqrt()), scale / math.sqrt(len(sizes)))
        row_error = float((rows_norm(difference) / sizes.clamp_min(floor)).max())
    return {
        "name": name,
        "shape": list(initial.shape),
        "numel": initial.numel(),
        "error": error,
        "row_error": row_error,
        "along_update": float((difference * update).sum()) / scale**2,
        "along_weights": float((difference * start).sum()) / weight_norm**2 if weight_norm > TINY else 0.0,
        "update_norm": update_norm,
        "difference_norm": difference_norm,
        "weight_norm": weight_norm,
    }


def last_place(tensor: torch.Tensor) -> torch.Tensor:
    """The distance from each element to the next larger number of its kind; float64."""
    size = tensor.abs()
    following = torch.nextafter(size, torch.full_like(size, math.inf))
    return following.double() - size.double()


def moments(reference: Checkpoint, candidate: Checkpoint) -> list[Json]:
    """Relative error of the optimizer's tensors, by kind, and how coarsely they were stored."""
    kinds: dict[str, list[str]] = {}
    for name in reference.state:
        kinds.setdefault(next((part for part in name.split("/") if part in MOMENTS), "other"), []).append(name)
    found = []
    for kind, names in sorted(kinds.items()):
        ours = [reference.state[name].double() for name in names]
        theirs = [candidate.state[name].double() for name in names]
        difference = sum(float((b - a).square().sum()) for a, b in zip(ours, theirs, strict=True))
        size = sum(float(a.square().sum()) for a in ours)
        coarser = coarse_share(candidate.state, names) - coarse_share(reference.state, names)
        found.append({"kind": kind, "error": math.sqrt(difference / max(size, TINY)), "coarser": coarser})
    return found


def coarse_share(tensors: Tensors, names: Iterable[str]) -> float:
    """Share of the non-zero float32 values whose lower 16 bits are zero: 1 for what was rounded to bf16."""
    coarse = total = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype == torch.float32:
            used = tensor != 0
            low = tensor.contiguous().view(torch.int32) & 0xFFFF
            coarse += int(((low == 0) & used).sum())
            total += int(used.sum())
    return coarse / total if total else 0.0


def first_moments(initial: Checkpoint, reference: Checkpoint) -> dict[str, str]:
    """Parameter -> the entry of the optimizer's state that is its first moment.

    An entry that names the parameter in its path is that parameter's. Others are numbered in an order that
    only the program knows; they are recognised by what they did: a short run moves a parameter within the plane
    of its own first moments before and after (each over the root of the second, where there is one), and other
    parameters otherwise.
    """
    parts = {name: name.split("/") for name in reference.state}
    kind = next((k for k in FIRST if any(k in found for found in parts.values())), "")
    free = [n for n in reference.state if kind in parts[n] and n in initial.state and reference.state[n].is_floating_point()]
    shapes = {parameter: weight.shape for parameter, weight in reference.weights.items()}
    known = {p: n for n in free for p in parts[n] if p in shapes and shapes[p] == reference.state[n].shape}
    found = likenesses(initial, reference, kind, [n for n in free if n not in known.values()])
    for cosine, parameter, name in sorted(found, reverse=True):
        if cosine >= RESEMBLANCE and parameter not in known and name not in known.values():
            known[parameter] = name
    return {parameter: known[parameter] for parameter in reference.weights if parameter in known}


def likenesses(initial: Checkpoint, reference: Checkpoint, kind: str, names: list[str]) -> list[tuple[float, str, str]]:
    """(cosine with the plane, parameter, entry) of each update and each first moment of its shape."""
    found = []
    for shape in {reference.state[name].shape for name in names}:
        moments = [n for n in names if reference.state[n].shape == shape]
        weights = [p for p, weight in reference.weights.items() if weight.shape == shape]
        if weights:
            updates = torch.stack([sample(reference.weights[p].double() - initial.weights[p].double()) for p in weights])
            after = torch.stack([sample(asked_step(reference.state, n, kind)) for n in moments])
            before = torch.stack([sample(asked_step(initial.state, n, kind)) for n in moments])
            across = before - (before * after).sum(1, keepdim=True) * after
            across = across / across.norm(dim=1, keepdim=True).clamp_min(TINY)
            cosines = ((updates @ after.T).square() + (updates @ across.T).square()).sqrt().tolist()
            found += [(c, p, n) for p, row in zip(weights, cosines, strict=True) for n, c in zip(moments, row, strict=True)]
    return found


def asked_step(state: Tensors, name: str, kind: str) -> torch.Tensor:
    """The direction in which a first moment moves its parameter."""
    first = state[name].double()
    second = state.get("/".join("exp_avg_sq" if part == kind else part for part in name.split("/")))
    return first if second is None or second.shape != first.shape else first / (second.double().sqrt() + 1e-12)


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """At most SAMPLED of its elements, evenly spread, as a vector of length one."""
    flat = tensor.flatten()
    flat = flat[:: max(1, math.ceil(flat.numel() / SAMPLED))]
    picked: torch.Tensor = flat / flat.norm().clamp_min(TINY)
    return picked


def load_parts(path: str, weights: Tensors) -> dict[str, Tensors]:
    """Named parts of a gradient, by parameter; read as they are needed. Raises Unusable."""
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # noqa: BLE001 - whatever the file makes torch raise
        raise Unusable(f"can't be loaded with weights_only=True ({type(error).__name__})") from None
    if not isinstance(loaded, Mapping) or not all(isinstance(tensors, Mapping) for tensors in loaded.values()):
        raise Unusable("is no dictionary of parts, each a dictionary of tensors by parameter")
    parts: dict[str, Tensors] = {}
    for part, tensors in loaded.items():
        named = {str(name).replace(COMPILED, ""): value for name, value in tensors.items()}
        for name, value in named.items():
            if name not in weights:
                raise Unusable(f"names '{name}' in '{part}', which is no parameter of the checkpoint")
            if not isinstance(value, torch.Tensor) or plain(value, name).shape != weights[name].shape:
                raise Unusable(f"holds something else than the gradient of '{name}' in '{part}'")
            if not bool(torch.isfinite(value).all()):
                raise Unusable(f"holds NaN or inf for '{name}' in '{part}'")
        parts[str(part)] = named
    return parts


def beside(parts: Mapping[str, Tensors], kept: Mapping[str, Kept]) -> list[Json]:
    """Each part of the gradient beside the differences, tensor by tensor, see the module's docstring."""
    found = []
    for part, tensors in parts.items():
        rows = [part_row(name, gradient.double(), *kept[name]) for name, gradient in tensors.items() if name in kept]
        found.append({"name": part, "rows": [row for row in rows if row["numel"]]})
    return found


def part_row(
    name: str, gradient: torch.Tensor, start: torch.Tensor, reference: torch.Tensor, candidate: torch.Tensor
) -> Json:
    used = gradient != 0
    difference = candidate.double() - reference.double()
    return {
        "name": name,
        "numel": int(used.sum()),
        "along": float((difference * gradient).sum()),
        "part_norm": float(gradient.norm()),
        "difference_norm": float(difference[used].norm()),
        "change_norm": float((reference.double() - start.double())[used].norm()),
    }


def add_gradients(body: Json, initial: Checkpoint, reference: Checkpoint, candidate: Checkpoint, parts: str) -> None:
    """First moments and parts of the gradient, into a report of one update. Raises Unusable."""
    names = first_moments(initial, reference)
    kept: dict[str, Kept] = {p: (initial.state[n], reference.state[n], candidate.state[n]) for p, n in names.items()}
    body["gradients"] = [tensor_row(parameter, *tensors, forgiving=True) for parameter, tensors in kept.items()]
    if not parts:
        return
    if not kept:  # weights move against the gradient
        kept = {n: (-initial.weights[n], -reference.weights[n], -candidate.weights[n]) for n in reference.weights}
    body["parts"] = beside(load_parts(parts, reference.weights), kept)


def report(initial: Checkpoint, reference: Checkpoint, candidate: Checkpoint, forgiving: bool = False) -> Json:
    """The comparison of one candidate that was loaded."""
    weights = mismatches("tensor", reference.weights, candidate.weights)
    state = mismatches("optimizer tensor", reference.state, candidate.state)
    surplus = extras("tensor", reference.weights, candidate.weights)
    surplus += extras("optimizer tensor", reference.state, candidate.state)
    body = empty_report([*weights, *state, *surplus])
    body["counters"] = list(candidate.counters)
    body["reference_counters"] = list(reference.counters)
    if weights:
        return body
    names = reference.weights
    rows = [tensor_row(n, initial.weights[n], names[n], candidate.weights[n], forgiving) for n in names]
    body["rows"] = rows
    difference = sum(row["difference_norm"] ** 2 for row in rows)
    update = sum(row["update_norm"] ** 2 for row in rows)
    body["error"] = math.sqrt(difference / max(update, TINY))
    body["coarser"] = coarse_share(candidate.weights, names) - coarse_share(names, names)
    body["moments"] = [] if state else moments(reference, candidate)
    return body


def empty_report(problems: list[str]) -> Json:
    return {"problems": problems[:50], "error": None}


class Worker:
    """Answers requests; keeps the block's initial and reference checkpoints, which come again and again."""

    def __init__(self) -> None:
        self.cache: dict[tuple[str, str, int, int], Checkpoint] = {}

    def known(self, path: str, key: str) -> Checkpoint:
        if not Path(path).exists():
            raise Unusable("was not written")
        status = Path(path).stat()
        mark = (path, key, status.st_mtime_ns, status.st_size)
        if mark not in self.cache:
            while len(self.cache) >= CACHED:
                self.cache.pop(next(iter(self.cache)))
            self.cache[mark] = load(path, key)
        return self.cache[mark]

    def trusted(self, what: str, path: str, key: str) -> Checkpoint:
        try:
            return self.known(path, key)
        except Unusable as problem:
            raise Unusable(f"the {what} checkpoint {problem}") from None

    def answer(self, request: Json) -> Json:
        key = str(request.get("key", ""))
        try:
            initial = self.trusted("initial", request["initial"], key)
            reference = self.trusted("reference", request["reference"], key)
            mismatch = mismatches("tensor", reference.weights, initial.weights)
            if mismatch:
                raise Unusable(f"the initial checkpoint does not fit the reference: {mismatch[0]}")
            bad = mismatches("tensor", initial.weights, reference.weights)
            if bad:
                raise Unusable(f"the reference checkpoint does not fit the initial one: {bad[0]}")
        except Unusable as problem:
            return {"error": str(problem)}
        try:
            refuse_oversize(request["candidate"], request["reference"])
            candidate = load(request["candidate"], key)
        except Unusable as problem:
            return {"report": empty_report([f"the checkpoint {problem}"])}
        gradients = bool(request.get("gradients"))
        body = report(initial, reference, candidate, forgiving=gradients)
        if gradients and body["error"] is not None and not body["problems"]:
            try:
                add_gradients(body, initial, reference, candidate, str(request.get("parts", "")))
            except Unusable as problem:
                return {"error": f"the file of parts {problem}"}
        return {"report": body}


def refuse_oversize(candidate: str, reference: str) -> None:
    """Raise Unusable for a file that is much larger than the reference's: it could only fill the memory."""
    path = Path(candidate)
    if path.is_file() and path.stat().st_size > 2 * Path(reference).stat().st_size + (1 << 20):
        raise Unusable("is more than twice as large as the reference's")


def serve(lines: Iterator[str], say: Callable[[Json], None]) -> None:
    """Answer until the input ends."""
    worker = Worker()
    say({"ready": True})
    with torch.no_grad():
        for line in lines:
            try:
                say(worker.answer(json.loads(line)))
            except Exception as error:  # noqa: BLE001 - the edge of the process; the caller decides
                say({"error": f"the comparison failed ({type(error).__name__}: {error})"})


def main() -> None:
    torch.set_num_threads(1)
    # Nothing that torch prints may be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    serve(iter(sys.stdin.readline, ""), lambda body: print(json.dumps(body), file=answers, flush=True))


if __name__ == "__main__":
    main()
