"""Reads a torch profiler's events: what communication costs a step, and how memory rises and falls in it.

Mounted beside `shim.py`, imported by it inside the profiled program; the standard library only, and
pure functions of events (anything with the attributes of torch.autograd.profiler_util.FunctionEvent).
Times are seconds, sizes bytes, both summed over the profiled steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

TRANSFERS = ("gloo:", "nccl:", "mpi:", "ucc:", "ncclDevKernel", "ncclKernel")
"""names of the spans in which a backend moves data, whoever waits for it"""
_CALLS = ("c10d::", "record_param_comms")
_BOOKKEEPING = (*TRANSFERS, *_CALLS, "ProfilerStep", "[")
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution", "aten::conv1d", "aten::conv2d")
_POINTS = 60
"""of a memory timeline"""

Span = tuple[float, float]


def communication(events: Iterable[Any], item_bytes: int) -> dict[str, float]:
    """calls, payload_bytes, exposed_s and overlapped_s of all collectives in the events.

    A transfer is overlapped while the process computes, on whatever thread or device; the rest of it is
    exposed. The payload is what the process hands in, of elements of `item_bytes`.
    """
    transfers: list[Span] = []
    work: list[Span] = []
    calls, payload = 0, 0
    for event in events:
        span = (event.time_range.start * 1e-6, event.time_range.end * 1e-6)
        if event.name.startswith(TRANSFERS):
            transfers.append(span)
        elif event.name.startswith("c10d::"):
            calls += 1
            payload += item_bytes * _elements(event)
        elif not event.name.startswith(_BOOKKEEPING) and not event.is_async:
            work.append(span)
    moving = union(transfers)
    overlapped = shared(moving, union(work))
    return {
        "calls": calls,
        "payload_bytes": payload,
        "exposed_s": total(moving) - overlapped,
        "overlapped_s": overlapped,
    }


def _elements(event: Any) -> int:
    """Elements of the tensors that a collective was given: the first argument that has any."""
    shapes = getattr(event, "structured_input_shapes", None) or event.input_shapes or []
    for shape in shapes:
        if shape and isinstance(shape[0], (list, tuple)):
            return sum(_size(one) for one in shape)
        if shape:
            return _size(shape)
    return 0


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def flops(events: Iterable[Any]) -> int:
    """Floating-point operations of all matrix products, attention's own among them, as if no mask left anything out.

    A causal kernel makes about half of attention's; counting all is the convention (Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B), and small at short sequences.
    """
    found = 0
    for event in events:
        if event.name.startswith("aten::_scaled_dot_product"):
            found += _attention(event)
        elif event.name in _PRODUCTS:
            found += int(event.flops or 0)
    return found


def _attention(event: Any) -> int:
    """Two products of queries, keys and values forward; five backward, which makes the scores again."""
    shapes = [shape for shape in event.input_shapes or [] if len(shape) == 4]
    backward = event.name.endswith("_backward")
    shapes = shapes[1:] if backward else shapes  # the gradient of the output comes first
    if len(shapes) < 3:
        return 0
    batch, heads, length, width = shapes[0]
    one = int(2 * batch * heads * length * shapes[1][2] * width)
    return one * (5 if backward else 2)


def memory(events: Iterable[Any], device: str) -> list[list[float]]:
    """[seconds since the first event, bytes of tensors beyond those alive then], at most 60 points and the highest among them."""
    changes = []
    for event in events:
        change = event.self_device_memory_usage if device == "cuda" else event.self_cpu_memory_usage
        if change:
            changes.append((event.time_range.end * 1e-6, int(change)))
    changes.sort()
    points: list[list[float]] = []
    held = 0
    for at, change in changes:
        held += change
        points.append([at - changes[0][0], held])
    return _thinned(points)


def _thinned(points: list[list[float]]) -> list[list[float]]:
    """The highest point of each of a few equal parts."""
    if len(points) <= _POINTS:
        return points
    size = len(points) / _POINTS
    parts = [points[int(part * size) : int((part + 1) * size)] for part in range(_POINTS)]
    return [max(part, key=lambda point: point[1]) for part in parts if part]


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def shared(left: Sequence[Span], right: Sequence[Span]) -> float:
    """How long two ordered lists of disjoint spans run at once."""
    found, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        found += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def total(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)
