"""Compares learned updates, tensor by tensor, in a process of its own: JSON lines in, JSON lines out.

Self-contained (standard library and torch), so that this one file can be mounted alone into a sandbox
and started as `python -P compare_worker.py` or `python -P -m rsi_tui.evaluator.compare_worker`.
Checkpoints are untrusted: they are loaded with `weights_only=True` and reduced to plain dense tensors
before anything looks at them. All arithmetic is in float64 on one thread.

Says {"ready": true} once torch is imported. Then for each request

    {"initial": PATH, "reference": PATH, "candidate": PATH, "key": "model"}

one line: {"report": {...}}, with the fields of `compare.UpdateReport`, or {"error": "one sentence"}
when the initial or reference checkpoint can't be used. A candidate that can't be read or that does
not match is not an error: its report names the problems.

With W0 the initial weights, U_r and U_c the updates of reference and candidate, D = U_c - U_r, a row
holds for each tensor:
    error         |D| / |U_r|
    row_error     largest |D_row| / max(|U_r,row|, rms over rows of |U_r,row|); rows of dimension 0
    along_update  <D, U_r> / <U_r, U_r>: 0 = same size, -0.02 = two per cent short
    along_weights <D, W0> / <W0, W0>: 0 = same decay
    update_norm, difference_norm, weight_norm   |U_r|, |D|, |W0|
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
TINY = 1e-30
CACHED = 3
COUNTERS = ("step", "steps", "iteration", "iterations", "iter", "global_step", "count")
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum")


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


def tensor_row(name: str, initial: torch.Tensor, reference: torch.Tensor, candidate: torch.Tensor) -> Json:
    """The statistics of one tensor, see the module's docstring."""
    start = initial.double()
    update = reference.double() - start
    difference = candidate.double() - reference.double()
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


def report(initial: Checkpoint, reference: Checkpoint, candidate: Checkpoint) -> Json:
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
    rows = [tensor_row(n, initial.weights[n], names[n], candidate.weights[n]) for n in names]
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
        return {"report": report(initial, reference, candidate)}


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
