"""The tables: one DuckDB file that one process owns. A projection of journals, never the truth.

`open` applies what is missing of the migrations, each followed by CHECKPOINT. A file that is no
database or whose write-ahead log is damaged is set aside under `.damaged` and replaced by an empty
one; a damaged log can also drop rows without any error, so the caller compares `heads` with the
journals after every open. One thread at a time; the caller holds the lock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from experience.errors import ExperienceError, LockedError, TablesDamagedError
from experience.exchange import DICTS, FILES, TUPLES, row_of
from experience.interface import Head
from experience.migrations import MIGRATIONS
from experience.records import Batch, CampaignRow, CandidateRow, DirectionRow, Entry, RetrievalRow, TrialRow
from experience.redact import redacted
from experience.stamps import stamp_of

Row = TypeVar("Row", CampaignRow, DirectionRow, CandidateRow, TrialRow, Entry, RetrievalRow)

TABLES = FILES
_TABLE_OF = {kind: table for table, kind in TABLES.items()}
_TOLD = {"text", "statement", "reason", "detail", "question", "lesson", "closed", "source"}
"""columns that hold what people and programs wrote: secrets are taken out of them"""
_HOLDER = re.compile(r"Conflicting lock is held in (?P<program>.*?) \(PID (?P<pid>\d+)\)")


@dataclass(frozen=True)
class Differences:
    """Ids of entries whose row in the table of vectors is not what it should be."""

    gone: list[str]
    """have a row and are no entries any more"""
    fresh: list[str]
    """have no row"""
    changed: list[str]
    """have a row made from another text or other conditions"""
    waiting: list[str]
    """have no vector, or another encoder's"""


class Store:
    """The tables of one library."""

    def __init__(self, path: Path, connection: Any, note: str) -> None:
        self._path = path
        self._connection = connection
        self.note = note
        """what was repaired on opening, one sentence; '' when nothing"""

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open or create; LockedError when another process has it, ExperienceError when it can't be opened."""
        if not path.exists():
            _log_of(path).unlink(missing_ok=True)  # a log without its file belongs to nothing
        try:
            opened = cls(path, _connect(path), "")
            opened._stamp()
            return opened
        except TablesDamagedError as damage:
            return cls.open_anew(path, damage)

    @classmethod
    def open_anew(cls, path: Path, damage: TablesDamagedError) -> Store:
        """Set a damaged file aside and open an empty one."""
        path.replace(path.with_name(path.name + ".damaged"))
        _log_of(path).unlink(missing_ok=True)
        note = f"the library's tables were damaged ({damage}) and were rebuilt from the journals."
        return cls(path, _connect(path), note)

    def close(self) -> None:
        """Write everything into the file and let go of it."""
        self._connection.close()

    def checkpoint(self) -> None:
        """Bring the write-ahead log into the file."""
        self._connection.execute("CHECKPOINT")

    @property
    def disk_bytes(self) -> int:
        return sum(p.stat().st_size for p in self._path.parent.glob(self._path.name + "*"))

    # --- writing -----------------------------------------------------------------------------

    def replace(self, batch: Batch) -> None:
        """All rows of one campaign in place of those it had, in one transaction."""
        key = batch.campaign.id
        with _Transaction(self._connection):
            self._forget(key)
            self._insert("campaigns", [batch.campaign])
            self._insert("directions", batch.directions)
            self._insert("candidates", batch.candidates)
            self._insert("trials", batch.trials)
            self._insert("entries", batch.entries)
            self._insert("retrievals", batch.retrievals)
            self._set_head(Head(key, batch.last_seq, batch.head))

    def _stamp(self) -> None:
        """Entries that were stored before there were stamps get theirs."""
        rows = self.select(Entry, "stamp = ''")
        if rows:
            with _Transaction(self._connection):
                self._connection.execute("DELETE FROM entries WHERE stamp = ''")
                self._insert("entries", rows)

    def replace_entries(self, head: Head, entries: Sequence[Entry]) -> None:
        """All entries of one journal that is no campaign's (the home's)."""
        with _Transaction(self._connection):
            self._forget(head.campaign)
            self._insert("entries", entries)
            self._set_head(head)

    def put_knowledge(self, entries: Sequence[Entry]) -> None:
        """Entries in place of those without a campaign that have the same source or id."""
        sources = sorted({entry.source for entry in entries if entry.source})
        ids = [entry.id for entry in entries]
        with _Transaction(self._connection):
            self._connection.execute(
                "DELETE FROM entries WHERE campaign = '' AND (list_contains(?, source) OR list_contains(?, id))",
                [sources, ids],
            )
            self._insert("entries", entries)

    def forget_campaigns(self, campaigns: Iterable[str]) -> None:
        """Drop everything that these campaigns' journals gave."""
        with _Transaction(self._connection):
            for campaign in campaigns:
                self._forget(campaign)

    def _forget(self, campaign: str) -> None:
        self._connection.execute("DELETE FROM campaigns WHERE id = ?", [campaign])
        for table in ("directions", "candidates", "trials", "entries", "retrievals", "heads"):
            self._connection.execute(f"DELETE FROM {table} WHERE campaign = ?", [campaign])

    def _set_head(self, head: Head) -> None:
        self._connection.execute("INSERT INTO heads VALUES (?, ?, ?)", [head.campaign, head.last_seq, head.head])

    def _insert(self, table: str, rows: Sequence[Any]) -> None:
        """Through Arrow: row-wise inserts take DuckDB half a millisecond each."""
        if not rows:
            return
        import pyarrow

        flat = [_flat(row) for row in rows]
        schema = self._connection.sql(f"SELECT * FROM {table} LIMIT 0").to_arrow_table().schema
        incoming = pyarrow.Table.from_pylist(flat, schema=schema)
        self._connection.register("incoming", incoming)
        self._connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
        self._connection.unregister("incoming")

    # --- reading -----------------------------------------------------------------------------

    def heads(self) -> dict[str, Head]:
        """campaign -> where its stored rows end."""
        rows = self._read("SELECT campaign, last_seq, head FROM heads")
        return {row[0]: Head(*row) for row in rows}

    def select(self, kind: type[Row], where: str = "true", values: Sequence[object] = (), tail: str = "") -> list[Row]:
        """Rows of a kind; `where` and `tail` are SQL written in this package, values are parameters."""
        names = [field.name for field in fields(kind)]
        columns = ", ".join(f'"{name}"' for name in names)  # quoted: `at` is a keyword
        sql = f"SELECT {columns} FROM {_TABLE_OF[kind]} WHERE {where} {tail}"
        return [row_of(kind, dict(zip(names, row, strict=True))) for row in self._read(sql, values)]

    def entries_by_id(self, ids: Sequence[str]) -> dict[str, Entry]:
        """id -> entry, those that exist."""
        return {entry.id: entry for entry in self.select(Entry, "id IN (SELECT unnest(?::VARCHAR[]))", [list(ids)])}

    def counts(self) -> dict[str, int]:
        """table -> rows."""
        return {table: self._read(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}

    def differences(self, rows: Any, campaign: str | None, encoder_sha256: str) -> Differences:
        """What `VectorTable.stamp_rows` gave, compared with the entries: of one campaign, or of all."""
        scope, values = ("true", []) if campaign is None else ("campaign = ?", [campaign])
        self._connection.register("stored", rows)
        try:
            here = f"(SELECT id, stamp FROM entries WHERE {scope}) here"
            gone = self._read(f"SELECT id FROM stored ANTI JOIN {here} USING (id) ORDER BY id", values)
            fresh = self._read(f"SELECT id FROM {here} ANTI JOIN stored USING (id) ORDER BY id", values)
            both = f"FROM {here} JOIN stored USING (id)"
            changed = self._read(f"SELECT id {both} WHERE stamp <> entry_stamp ORDER BY id", values)
            waiting = self._read(f"SELECT id {both} WHERE stamp = entry_stamp AND encoder_sha256 <> ? ORDER BY id", [*values, encoder_sha256])
        finally:
            self._connection.unregister("stored")
        return Differences(*([row[0] for row in found] for found in (gone, fresh, changed, waiting)))

    def entry_counts(self) -> dict[str, int]:
        """kind -> entries."""
        rows = self._read("SELECT kind, count(*) FROM entries GROUP BY kind ORDER BY kind")
        return {row[0]: row[1] for row in rows}

    def contents(self) -> dict[str, list[tuple[object, ...]]]:
        """Every row of every table in a fixed order: equal contents mean equal libraries."""
        tables = [*TABLES, "heads"]
        return {table: self._read(f"SELECT * FROM {table} ORDER BY ALL") for table in tables}

    def export(self, folder: Path) -> None:
        """Every table as a Parquet file in a folder; ExperienceError when that can't be written."""
        import duckdb

        for table in [*TABLES, "heads"]:
            path = str(folder / f"{table}.parquet").replace("'", "''")
            try:
                self._connection.execute(f"COPY (SELECT * FROM {table} ORDER BY ALL) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
            except duckdb.Error as error:
                raise ExperienceError(f"the export to {folder} can't be written: {str(error).splitlines()[0]}") from error

    def _read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        import duckdb

        try:
            rows: list[tuple[Any, ...]] = self._connection.execute(sql, list(values)).fetchall()
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise TablesDamagedError(
                f"the library's tables can't be read ({reason}): move {self._path} away, the next start rebuilds it"
            ) from error
        return rows


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + ".wal")


class _Transaction:
    """BEGIN, then COMMIT, or ROLLBACK when anything went wrong; the database's errors become ours."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        import duckdb

        try:
            self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
        except duckdb.Error as failure:
            error = error or failure
        if isinstance(error, duckdb.Error):
            raise ExperienceError(f"the library's tables can't be written: {str(error).splitlines()[0]}") from error


def _connect(path: Path) -> Any:
    """A connection with the schema in place."""
    import duckdb

    connection = None
    try:
        connection = duckdb.connect(str(path), config={"threads": 1, "memory_limit": "512MB"})
        _migrate(connection)
        return connection
    except duckdb.Error as error:
        if connection is not None:
            connection.close()
        message = str(error).splitlines()[0]
        if holder := _HOLDER.search(str(error)):
            raise LockedError(
                f"the experience library in {path.parent} is open in process {holder['pid']} ({holder['program']}): "
                "wait until it ends, or stop it.",
                int(holder["pid"]),
            ) from error
        if "Could not set lock" in message:
            raise LockedError(f"the experience library in {path.parent} is open in another process.", None) from error
        if "Cannot open file" in message or "No space left" in message or not path.exists():
            raise ExperienceError(f"the experience library can't be opened: {message}") from error
        raise TablesDamagedError(message) from error


def _migrate(connection: Any) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
    row = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    done = row[0] or 0
    if done > len(MIGRATIONS):
        connection.close()
        raise ExperienceError(
            f"the library was written by a newer rsi (schema {done}): update rsi, or use another home."
        )
    for number, sql in enumerate(MIGRATIONS[done:], done + 1):
        with _Transaction(connection):
            connection.execute(sql)
            connection.execute("INSERT INTO schema_version VALUES (?)", [number])
        connection.execute("CHECKPOINT")


def _flat(row: Any) -> dict[str, object]:
    values: dict[str, Any] = {name: redacted(value) if name in _TOLD else value for name, value in asdict(row).items()}
    if isinstance(row, Entry):
        return values | {"stamp": stamp_of(row_of(Entry, values))}
    return {k: json.dumps(v, sort_keys=True) if k in TUPLES | DICTS else v for k, v in values.items()}
