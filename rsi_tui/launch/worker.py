"""A long-lived sandboxed process that is spoken to through its stdin and stdout."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from rsi_tui.launch.memory import Group
from rsi_tui.launch.process import confine, gated, with_filter
from rsi_tui.launch.spec import LaunchSpec

_POLITE_S = 1.0


class Worker(subprocess.Popen[bytes]):
    """A Popen with pipes as stdin and stdout; stderr goes to the spec's live log, or nowhere.

    Only the memory, process, file and core limits of the spec hold; timeouts are the caller's.
    """

    def __init__(
        self, command: list[str], spec: LaunchSpec, group: Group, env: dict[str, str], cwd: Path | None
    ) -> None:
        self._group = group
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(spec.live_log.open("wb")) if spec.live_log else subprocess.DEVNULL
            command, passed = with_filter(command, group)
            for fd in passed:
                stack.callback(os.close, fd)
            super().__init__(
                gated(command, keep_input=True), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=env, cwd=cwd, start_new_session=True, pass_fds=passed,
            )  # fmt: skip
        try:
            confine(self.pid, spec, group)
            if self.stdin:
                self.stdin.write(b"\n")
                self.stdin.flush()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it: its input is closed, a second later it and all its children are killed; may be called twice."""
        if self.stdin and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(_POLITE_S)
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()
        self._group.remove()
        if self.stdout:
            self.stdout.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self
