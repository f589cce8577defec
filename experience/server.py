"""The process that owns a library's files and answers everybody else over a socket.

    serve(folder, reader)         returns when nobody asked for a while, or at SIGTERM

One a library: who holds the lock on `server.lock` serves, a second one returns at once. The socket belongs to its user
alone (0600); over TCP every call carries a token. What a call acknowledged is on disk. The encoder is loaded in the
background, once `turn` lets it have a core; until then searches are answered by words and say so, but for clients that
would rather wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from experience import wire
from experience.address import Address
from experience.encoder import Encoder, MiniLM
from experience.errors import EncoderError, ExperienceError
from experience.interface import Reader
from experience.library import open_library

IDLE_S = 600.0
BODY_BYTES = 256 * 2**20
"""most that a call may hold"""
QUIET_S = 30.0
"""without a call, after which indices are made where they are wanted"""
NICE = 10
"""timed programs go first"""
_LOG = logging.getLogger("rsi.library")
_HEADERS = [(b"content-type", b"application/json")]


class SharedEncoder:
    """An encoder that one thread loads while others ask; who is not patient is told that it is being loaded."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self._lock = encoder, threading.Lock()
        self._loaded = False
        self.patient = threading.local()
        self.name, self.sha256 = encoder.name, encoder.sha256

    def load(self) -> None:
        """Load, or wait until it is; EncoderError at once for a caller that does not wait."""
        if self._loaded:
            return
        if not getattr(self.patient, "now", True):
            raise EncoderError("the encoder is still being loaded")
        with self._lock:
            self._encoder.load()
            self._loaded = True

    def encode(self, texts: Any) -> Any:
        self.load()
        return self._encoder.encode(texts)


def serve(
    folder: Path,
    reader: Reader,
    address: Address,
    *,
    idle_s: float = IDLE_S,
    encoder: Encoder | None = None,
    turn: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    token: str = "",
) -> bool:
    """Own the library until nobody has asked for `idle_s` seconds; False when another process serves it.

    `turn` is held while the encoder is loaded: where timed work has the machine it waits. `token` is what callers over
    TCP must show. Raises ExperienceError when the library can't be opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder) as alone:
        if not alone:
            return False
        with contextlib.suppress(OSError):
            os.nice(NICE)
        shared = SharedEncoder(encoder or MiniLM())
        library = open_library(folder, reader, shared)
        try:
            _answer_calls(library, shared, address, idle_s, turn, token)
        finally:
            library.close()
    return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether this process is the one that serves; it is until it ends."""
    lock = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield True
    finally:
        os.close(lock)


def _answer_calls(
    library: Any, encoder: SharedEncoder, address: Address, idle_s: float, turn: Callable[[], AbstractContextManager[object]], token: str
) -> None:
    import uvicorn

    listener = address.listen()
    calls = _Calls(library, encoder, token if address.host else "")
    config = uvicorn.Config(
        calls.answer, interface="asgi3", http="h11", ws="none", lifespan="off", proxy_headers=False, log_config=None,
        access_log=False, timeout_keep_alive=60, timeout_graceful_shutdown=10,
    )  # fmt: skip
    server = uvicorn.Server(config)
    ended = threading.Event()
    calls.stop = lambda: setattr(server, "should_exit", True)
    threading.Thread(target=_end_when_idle, args=(server, calls, address, idle_s, ended), daemon=True).start()
    threading.Thread(target=_load, args=(encoder, turn), daemon=True).start()
    threading.Thread(target=_tend, args=(library, calls, turn, ended), daemon=True).start()
    try:
        server.run(sockets=[listener])
    finally:
        ended.set()
        address.forget(listener)


def _end_when_idle(server: Any, calls: _Calls, address: Address, idle_s: float, ended: threading.Event) -> None:
    """End the server when nobody asked for so long, or when nobody can any more since its socket's file is gone."""
    while not ended.wait(min(1.0, idle_s / 4)):
        idle = not calls.running and time.monotonic() - calls.last > idle_s
        if idle or (address.path is not None and not address.path.exists()):
            server.should_exit = True


def _load(encoder: SharedEncoder, turn: Callable[[], AbstractContextManager[object]]) -> None:
    try:
        with turn():
            encoder.load()
    except ExperienceError as error:
        _LOG.warning("%s", error)


def _tend(library: Any, calls: _Calls, turn: Callable[[], AbstractContextManager[object]], ended: threading.Event) -> None:
    """Make the indices that a large library needs while nobody asks."""
    while not ended.wait(QUIET_S):
        if calls.running or time.monotonic() - calls.last < QUIET_S:
            continue
        try:
            if library.wants_tending():
                with turn():
                    library.tend()
        except ExperienceError as error:
            _LOG.warning("%s", error)


class _Calls:
    """The ASGI application: one method a path."""

    def __init__(self, library: Any, encoder: SharedEncoder, token: str) -> None:
        self._library, self._encoder, self._token = library, encoder, token
        self.last = time.monotonic()
        self.running = 0
        self.stop: Callable[[], None] = lambda: None

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.running += 1
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            status, body = await self._status_and_body(scope["path"].strip("/"), headers, receive)
        finally:
            self.running -= 1
            self.last = time.monotonic()
        await send({"type": "http.response.start", "status": status, "headers": [*_HEADERS, (wire.CODE.encode(), f"{wire.code()} {os.getpid()}".encode())]})
        await send({"type": "http.response.body", "body": body})

    async def _status_and_body(self, method: str, headers: dict[str, str], receive: Any) -> tuple[int, bytes]:
        body = await _whole(receive)
        if self._token and not hmac.compare_digest(headers.get("authorization", "").encode(), f"Bearer {self._token}".encode()):
            return 401, wire.pack_error(ExperienceError("the library's server asks for its token ([library] token in config.toml)."))
        if body is None:
            return 413, wire.pack_error(ExperienceError(f"a call to the library holds at most {BODY_BYTES >> 20} MiB."))
        if method == "end":
            self.stop()
            return 200, b'{"result": null}'
        return await asyncio.to_thread(self._call, method, body, headers.get(wire.PATIENT) == "1")

    def _call(self, method: str, body: bytes, patient: bool) -> tuple[int, bytes]:
        self._encoder.patient.now = patient or method not in ("search", "stats", "last_seq")
        try:
            arguments = wire.unpack_call(method, body)
            return 200, wire.pack_result(method, getattr(self._library, method)(**arguments))
        except wire.BadCallError as error:
            return 400, wire.pack_error(error)
        except ExperienceError as error:
            return 409, wire.pack_error(error)
        except Exception as error:  # noqa: BLE001 - the process's edge: one call fails, the others go on
            _LOG.exception("%s failed", method)
            return 500, wire.pack_error(ExperienceError(f"the library's server failed at {method} ({type(error).__name__}: {error}); its log says more."))


async def _whole(receive: Any) -> bytes | None:
    """A request's body; None when it is too large."""
    parts, size = [], 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        parts.append(part if size <= BODY_BYTES else b"")
        if not message.get("more_body"):
            return b"".join(parts) if size <= BODY_BYTES else None
