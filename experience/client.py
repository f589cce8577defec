"""The library in another process: the same interface over a socket. Loads neither tables, vectors nor encoder.

A call whose server is gone or dies in the middle is made again, with a server started anew, for up to `RETRY_S` seconds;
every method bears being called twice. Calls from several threads use a connection each.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experience import wire
from experience.address import Address
from experience.conditions import Conditions
from experience.errors import ExperienceError
from experience.interface import Calibration, Filters, Hit, KnobValues, PastCandidate, Record, Repeat, Stats
from experience.records import Batch, CampaignRow, Entry, EntryKind, RetrievalRow

RETRY_S = 15.0
"""how long a call looks for a server that answers"""
ANSWER_S = 60.0
LONG_S = 3600.0
"""for what reads all journals or encodes many texts"""
LONG = ("rebuild", "ingest", "sync", "add_knowledge", "fingerprint", "compact", "catch_up", "export")
_PAUSE_S = 0.05
_GONE = (OSError, http.client.HTTPException)


class _Connection(http.client.HTTPConnection):
    """HTTP over an address of ours."""

    def __init__(self, address: Address) -> None:
        super().__init__("library", timeout=ANSWER_S)
        self._address = address

    def connect(self) -> None:
        self.sock = self._address.connect(5.0)


class RemoteLibrary:
    """ExperienceLibrary whose files another process owns. Its contract is the interface's."""

    def __init__(self, address: Address, start: Callable[[], None], *, patient: bool = False, token: str = "") -> None:
        """`start` makes sure that a server runs or is about to; `patient`: searches wait for the encoder."""
        self._address, self._start = address, start
        self._headers = {"content-type": "application/json", wire.PATIENT: "1" if patient else "0"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._local = threading.local()
        self._connections: list[_Connection] = []
        self._ended: dict[str, str] = {}
        """code of a server that was asked to end -> its process"""

    # --- the interface

    def ingest(self, batch: Batch) -> None:
        self._call("ingest", batch=batch)

    def sync(self, campaign: str) -> None:
        self._call("sync", campaign=campaign)

    def search(
        self,
        text: str,
        kinds: Sequence[EntryKind] | None = None,
        filters: Filters | None = None,
        limit: int = 10,
        conditions: Conditions | None = None,
    ) -> list[Hit]:
        found: list[Hit] = self._call("search", text=text, kinds=kinds, filters=filters, limit=limit, conditions=conditions)
        return found

    def past_candidates(
        self,
        workload_key: str | None,
        hardware: str,
        software: str,
        limit: int,
        profile: Mapping[str, float] | None = None,
    ) -> list[PastCandidate]:
        found: list[PastCandidate] = self._call(
            "past_candidates", workload_key=workload_key, hardware=hardware, software=software, limit=limit, profile=profile
        )
        return found

    def duplicates(
        self,
        diff_hash: str,
        launch_fingerprint: str,
        base_stack: Sequence[str],
        conditions: Conditions,
        techniques: Sequence[str],
        knobs: KnobValues,
        statement: str = "",
        diff: str = "",
    ) -> list[Repeat]:
        found: list[Repeat] = self._call(
            "duplicates", diff_hash=diff_hash, launch_fingerprint=launch_fingerprint, base_stack=list(base_stack),
            conditions=conditions, techniques=list(techniques), knobs=dict(knobs), statement=statement, diff=diff,
        )  # fmt: skip
        return found

    def campaigns(self) -> list[CampaignRow]:
        found: list[CampaignRow] = self._call("campaigns")
        return found

    def lessons(self, conditions: Conditions | None = None, layer: str = "", limit: int = 20) -> list[Hit]:
        found: list[Hit] = self._call("lessons", conditions=conditions, layer=layer, limit=limit)
        return found

    def calibration(self) -> list[Calibration]:
        found: list[Calibration] = self._call("calibration")
        return found

    def retrievals(self, campaign: str = "", limit: int = 100) -> list[RetrievalRow]:
        found: list[RetrievalRow] = self._call("retrievals", campaign=campaign, limit=limit)
        return found

    def record_of(self, id: str) -> Record | None:
        found: Record | None = self._call("record_of", id=id)
        return found

    def add_knowledge(self, entries: Iterable[Entry]) -> None:
        self._call("add_knowledge", entries=list(entries))

    def stats(self) -> Stats:
        found: Stats = self._call("stats")
        return found

    def fingerprint(self) -> str:
        found: str = self._call("fingerprint")
        return found

    def last_seq(self, campaign: str) -> int:
        found: int = self._call("last_seq", campaign=campaign)
        return found

    def rebuild(self) -> list[str]:
        found: list[str] = self._call("rebuild")
        return found

    def catch_up(self) -> list[str]:
        found: list[str] = self._call("catch_up")
        return found

    def export(self, folder: str) -> int:
        found: int = self._call("export", folder=folder)
        return found

    def compact(self) -> None:
        self._call("compact")

    def close(self) -> None:
        """Let go of all threads' connections; the server ends when nobody asks any more."""
        for connection in self._connections:
            connection.close()

    def end_server(self) -> bool:
        """Have the server end now; False where none runs."""
        try:
            self._ask("end", b"")
        except _GONE:
            return False
        finally:
            self._drop()
        return True

    # --- asking

    def _call(self, method: str, **arguments: Any) -> Any:
        status, body = self._answered(method, wire.pack_call(method, arguments))
        if status == 200:
            return wire.unpack_result(method, body)
        raise wire.unpack_error(body)

    def _answered(self, method: str, body: bytes) -> tuple[int, bytes]:
        """Status and body, from a server of this code; ExperienceError when none answers."""
        deadline, trouble = time.monotonic() + RETRY_S, ""
        while True:
            try:
                status, served_by, answer = self._ask(method, body)
                code, _, process = served_by.partition(" ")
                if code == wire.code() or self._address.path is None or self._ended.get(code, process) != process:
                    return status, answer  # ours, a team's, or what was started in place of one of that code
                if code not in self._ended:  # of another version: it ends, a new one is started
                    self._ended[code] = process
                    self.end_server()
            except TimeoutError as error:
                self._drop()
                raise ExperienceError(f"the library's server at {self._address} gave no answer to {method} in time.") from error
            except _GONE as error:
                self._drop()
                trouble = str(error) or type(error).__name__
            if time.monotonic() > deadline:
                raise ExperienceError(f"no library server answers at {self._address} ({trouble}); its log lies beside it.")
            self._start()
            time.sleep(_PAUSE_S)

    def _ask(self, method: str, body: bytes) -> tuple[int, str, bytes]:
        """(status, code of the server, body) of one exchange."""
        connection: _Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = _Connection(self._address)
            self._connections.append(connection)
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(LONG_S if method in LONG else ANSWER_S)
        connection.request("POST", f"/{method}", body, self._headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get(wire.CODE, ""), answer.read()

    def _drop(self) -> None:
        connection: _Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
