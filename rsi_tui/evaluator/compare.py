"""Learned updates compared outside the training process, by a worker that is kept warm.

Promises: a checkpoint is only ever opened by the worker, which the caller starts in a sandbox of its
choosing (`open_worker`); whatever that worker says is validated before it is believed. A worker that
dies, hangs or talks nonsense raises CompareError, which means that nothing was measured: it is never
held against the candidate. Whether a difference is too large is decided in `bands`, not here.
"""

from __future__ import annotations

import contextlib
import json
import math
import selectors
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from rsi_tui.errors import RsiError

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
PATIENCE = 10
"""times as long for a comparison of gradients, which looks at every named part of them"""


class CompareError(RsiError):
    """No comparison could be made; says nothing about the candidate."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TensorUpdate(_Value):
    """How one tensor's learned update differs; formulas in `compare_worker`."""

    name: str
    shape: tuple[int, ...]
    numel: int
    error: float
    """norm of the difference over norm of the reference's update"""
    row_error: float
    """the largest such ratio of one row; equal to `error` for tensors without rows"""
    along_update: float
    """difference projected on the reference's update: -0.02 learned two per cent less"""
    along_weights: float
    """difference projected on the initial weights: 1e-3 decayed less by a thousandth"""
    update_norm: float
    difference_norm: float
    weight_norm: float

    @property
    def weights_noise(self) -> float:
        """What `along_weights` would be, root mean square, if the difference pointed nowhere in particular."""
        if self.weight_norm <= 0.0:
            return 0.0
        return self.difference_norm / (self.weight_norm * math.sqrt(max(self.numel, 1)))


class MomentError(_Value):
    """Relative error of one kind of optimizer state, over all tensors."""

    kind: str
    """exp_avg, exp_avg_sq, momentum_buffer, ..."""
    error: float
    coarser: float = 0.0
    """share of its float32 values that fit in 16 bits, beyond the reference's share: 1 = it was rounded to bf16"""


class PartRow(_Value):
    """A named part of the gradient beside the difference of a candidate's first moment, for one tensor."""

    name: str
    numel: int
    """elements where the part is not zero; only these are looked at"""
    along: float
    """inner product of difference and part"""
    part_norm: float
    difference_norm: float
    change_norm: float
    """of what the reference's update changed"""


class Part(_Value):
    """A named part of the gradient beside the difference of a candidate's first moments."""

    name: str
    rows: tuple[PartRow, ...] = ()
    """empty: the part is zero in this batch, or none of its tensors has a first moment"""


class UpdateReport(_Value):
    """A candidate's learned update against the reference's."""

    problems: tuple[str, ...] = ()
    """what keeps the checkpoint from being the same parameters in the same layout, one sentence each"""
    error: float | None
    """over all tensors; None when the checkpoints can't be compared"""
    rows: tuple[TensorUpdate, ...] = ()
    moments: tuple[MomentError, ...] = ()
    gradients: tuple[TensorUpdate, ...] = ()
    """of first moments, by parameter, where asked for: what the updates' gradients changed in them"""
    parts: tuple[Part, ...] = ()
    """named parts of the gradient, where asked for"""
    coarser: float = 0.0
    """share of the weights that fit in 16 bits, beyond the reference's share"""
    counters: tuple[float, ...] = ()
    """distinct values of step counters in the candidate's checkpoint"""
    reference_counters: tuple[float, ...] = ()

    @property
    def comparable(self) -> bool:
        return self.error is not None and bool(self.rows)


OpenWorker = Callable[[], "subprocess.Popen[bytes]"]


class UpdateComparer:
    """Compares checkpoints through one warm worker; a context manager. Not thread-safe."""

    def __init__(self, open_worker: OpenWorker, checkpoint_key: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._open = open_worker
        self._key = checkpoint_key
        self._timeout_s = timeout_s
        self._worker: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def warm(self) -> None:
        """Start the worker without waiting for it, so that the first comparison does not pay for its start."""
        if self._worker is None or self._worker.poll() is not None:
            self.close()
            self._worker = self._open()

    def compare(
        self, initial: Path, reference: Path, candidate: Path, *, gradients: bool = False, parts: Path | None = None
    ) -> UpdateReport:
        """The report on one candidate; paths as the worker sees them. Raises CompareError.

        `gradients`: both runs started from `initial`, a saved state, and first moments are compared too;
        `parts`: a file of named parts of the gradient that the differences are laid beside.

        A worker that fails is replaced and asked once more, since its death may be the machine's doing.
        """
        request: dict[str, Any] = {
            "initial": str(initial),
            "reference": str(reference),
            "candidate": str(candidate),
            "key": self._key,
            "gradients": gradients,
            "parts": str(parts) if parts is not None else "",
        }
        timeout_s = self._timeout_s * (PATIENCE if gradients else 1)
        try:
            answer = self._ask(request, timeout_s)
        except CompareError:
            self.close()
            answer = self._ask(request, timeout_s)
        if "error" in answer:
            raise CompareError(f"learned updates can't be compared: {answer['error']}.")
        try:
            return UpdateReport.model_validate(answer.get("report"))
        except ValidationError as error:
            self.close()
            raise CompareError(f"the comparison worker gave no valid report ({error.error_count()} faults).") from None

    def close(self) -> None:
        """End the worker; the next comparison starts a new one."""
        worker, self._worker, self._buffer, self._ready = self._worker, None, b"", False
        if worker is None:
            return
        worker.kill()
        with contextlib.suppress(BrokenPipeError), worker:  # it may have died with a request unread
            pass

    def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.warm()
        if not self._ready:
            if self._line(START_TIMEOUT_S) != {"ready": True}:
                raise self._failed("did not start properly")
            self._ready = True
        worker = self._worker
        assert worker is not None and worker.stdin is not None
        try:
            worker.stdin.write(json.dumps(request).encode() + b"\n")
            worker.stdin.flush()
        except OSError:
            raise self._failed("has ended") from None
        return self._line(timeout_s)

    def _line(self, timeout_s: float) -> dict[str, Any]:
        """The next JSON line of the worker. Raises CompareError."""
        worker = self._worker
        assert worker is not None and worker.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(worker.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise self._failed(f"gave no answer in {timeout_s:.0f} s")
                chunk = worker.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not chunk:
                    raise self._failed("has ended")
                self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._failed("answered with something else than JSON") from None
        if not isinstance(answer, dict):
            raise self._failed("answered with something else than an object")
        return answer

    def _failed(self, how: str) -> CompareError:
        self.close()
        return CompareError(f"the comparison worker {how}; the trial counts as not measured.")
