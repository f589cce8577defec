"""Vectors and full text: one LanceDB table, a cache that the tables can always rebuild.

A row is an entry's words (see `experience.words`), its vector (null until it is encoded), the
columns that searches filter on, and stamps that tell whether it is still the entry's: a hash of the
entry and the encoder's hash. Writes come in batches, `optimize` follows when many are waiting (merging
files rewrites them, so that the more there are the rarer it is), and `data/.tmp*` left by a kill is swept
on opening. Up to `INDEX_FROM` vectors every search is exact; beyond, an IVF-PQ index finds candidates that are
compared exactly. One process only, never forked. Any error of LanceDB is a DamagedError: the folder is
thrown away and made again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from experience.encoder import DIMENSIONS
from experience.errors import DamagedError, ExperienceError
from experience.interface import Filters
from experience.records import Entry
from experience.stamps import stamp_of, text_stamp
from experience.words import words_of

if TYPE_CHECKING:
    from experience.encoder import Vectors

OPTIMISE_EVERY = 20
"""writes between two calls of optimize: single additions pile up files and slow every search"""
OPTIMISE_AT_LEAST = 100
"""writes after which it is called however small they were"""
TAIL, QUIET_TAIL = 0.25, 0.02
"""share of rows that the full-text index does not know, above which they are taken in at once, and in a quiet moment"""
INDEX_FROM = 50_000
"""rows from which a search is answered by way of indices; below, reading all takes less than 0.1 s"""
GROWN = 4
"""times as many rows as an index of vectors was made for, at which it is made anew"""
PROBES, REFINE = 150, 20
"""partitions that a search reads, and how many times more candidates than hits are compared exactly"""
FARTHEST = 0.9
"""cosine distance beyond which two texts have nothing to do with each other"""
_TABLE = "entries"
_VECTORS, _TERMS = "vector_idx", "terms_idx"
_IN_A_QUERY = 500
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Found:
    """One row of a search."""

    id: str
    vector: tuple[float, ...] | None
    distance: float | None
    """cosine distance; None when found by words"""


@dataclass(frozen=True)
class Stamp:
    """What a stored row was made from."""

    entry: str
    text: str
    encoder: str
    """hash of the encoder's weights; '' while there is no vector"""


def _lance_errors(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """LanceDB raises RuntimeError, ValueError and OSError for the same damage; one name for all."""

    @wraps(call)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return call(*args, **kwargs)
        except (RuntimeError, ValueError, OSError) as error:
            if "No space left" in str(error):
                raise ExperienceError("the disk is full: make room, the library catches up by itself") from error
            raise DamagedError(str(error).splitlines()[0][:200]) from error

    return guarded


class VectorTable:
    """The LanceDB table of one library."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writes = 0
        self._table: Any = None
        self._indexed = False
        """there is an index of the vectors"""

    @_lance_errors
    def open(self) -> None:
        """Open or create the table and its full-text index."""
        os.environ.setdefault("LANCEDB_LOG", "error")  # its warnings would land in people's terminals
        import lancedb

        for leftover in self._folder.glob(f"{_TABLE}.lance/data/.tmp*"):
            leftover.unlink(missing_ok=True)
        database = lancedb.connect(str(self._folder), read_consistency_interval=timedelta(0))
        if _TABLE in database.list_tables().tables:
            self._table = database.open_table(_TABLE)
            if self._table.schema != _schema():
                raise DamagedError("they have the columns of another version")
        else:
            self._table = database.create_table(_TABLE, schema=_schema())
            self._table.create_index("terms", config=_full_text())
        self._indexed = _VECTORS in self._index_names()

    def delete(self) -> None:
        """Throw the folder away; `open` makes an empty one."""
        self._table = None
        if self._folder.is_dir() and not self._folder.is_symlink():
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            self._folder.unlink(missing_ok=True)

    @property
    def disk_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())

    @_lance_errors
    def stamps(self, campaign: str | None = None) -> dict[str, Stamp]:
        """id -> what its row was made from, of all rows or of one campaign's."""
        names = ["id", "entry_stamp", "text_stamp", "encoder_sha256"]
        where = "" if campaign is None else f"campaign = {_quote(campaign)}"
        rows = _narrow(self._table.search(), where).select(names).to_arrow().to_pylist()
        return {row["id"]: Stamp(row["entry_stamp"], row["text_stamp"], row["encoder_sha256"]) for row in rows}

    @_lance_errors
    def stamp_rows(self, campaign: str | None = None) -> Any:
        """Arrow table of id, entry_stamp and encoder_sha256, of all rows or of one campaign's."""
        where = "" if campaign is None else f"campaign = {_quote(campaign)}"
        return _narrow(self._table.search(), where).select(["id", "entry_stamp", "encoder_sha256"]).to_arrow()

    @_lance_errors
    def vectors_of(self, texts: Iterable[str], encoder_sha256: str) -> dict[str, list[float]]:
        """text stamp -> vector that this encoder made, of texts that are stored already."""
        known: dict[str, list[float]] = {}
        for part in _parts(sorted(set(texts))):
            condition = f"{_among('text_stamp', part)} AND encoder_sha256 = {_quote(encoder_sha256)}"
            rows = self._table.search().where(condition).select(["text_stamp", "vector"]).to_arrow().to_pylist()
            known.update({row["text_stamp"]: row["vector"] for row in rows})
        return known

    @_lance_errors
    def remove(self, ids: Iterable[str]) -> None:
        """Rows of these ids go."""
        for part in _parts(sorted(ids)):
            self._table.delete(_among("id", part))

    @_lance_errors
    def put(
        self, entries: Sequence[Entry], vectors: Mapping[str, Sequence[float]], name: str, sha256: str, had: Collection[str] | None = None
    ) -> None:
        """Rows of these entries in place of what they had; `vectors` by text stamp, those known.

        `had`: ids of those that have a row; all may have one when not told.
        """
        import pyarrow

        if not entries:
            return
        rows = [_row(entry, vectors.get(text_stamp(entry)), name, sha256) for entry in entries]
        self.remove(entry.id for entry in entries if had is None or entry.id in had)
        self._table.add(pyarrow.Table.from_pylist(rows, schema=_schema()))
        self._writes += 1
        if self.untidy:
            self.optimise()

    @property
    @_lance_errors
    def untidy(self) -> bool:
        """So much was written that searches suffer from it."""
        if self._writes < OPTIMISE_EVERY:
            return False
        return self._writes >= OPTIMISE_AT_LEAST or self.tail > TAIL * self._table.count_rows()

    @property
    def tail(self) -> int:
        """Rows that the full-text index does not know yet."""
        stats = self._table.index_stats(_TERMS)
        return int(stats.num_unindexed_rows if stats is not None else self._table.count_rows())

    @_lance_errors
    def optimise(self) -> None:
        """Merge small files, take new rows into the indices, drop versions that nobody reads."""
        self._table.optimize(cleanup_older_than=timedelta(milliseconds=1))
        self._writes = 0

    @property
    @_lance_errors
    def wants_tidying(self) -> bool:
        """Enough was written that searches will be faster once it is merged; worth a quiet moment."""
        return self._writes > 0 and (self._writes >= OPTIMISE_EVERY or self.tail > QUIET_TAIL * self._table.count_rows())

    @property
    @_lance_errors
    def wants_index(self) -> bool:
        """There are so many vectors that searches need an index which is not there, or was made for far fewer."""
        rows = self._table.count_rows()
        if rows < INDEX_FROM:
            return False
        return not self._indexed or rows > GROWN * self._table.index_stats(_VECTORS).num_indexed_rows

    @_lance_errors
    def make_index(self) -> None:
        """Indices of vectors and of the columns that searches filter on; minutes for a million rows."""
        from lancedb.index import Bitmap, BTree, IvfPq

        there = self._index_names()
        for column, config in {"id": BTree(), "text_stamp": BTree(), "campaign": BTree(), "kind": Bitmap(), "outcome": Bitmap()}.items():
            if f"{column}_idx" not in there:
                self._table.create_index(column, config=config)
        if self._table.count_rows("encoder != ''") < INDEX_FROM:
            return
        partitions = max(64, int(self._table.count_rows() ** 0.5))
        self._table.create_index("vector", config=IvfPq(distance_type="cosine", num_partitions=partitions, num_sub_vectors=DIMENSIONS // 8, sample_rate=64, max_iterations=20))
        self._indexed = True

    def _index_names(self) -> set[str]:
        return {index.name for index in self._table.list_indices()}

    @_lance_errors
    def by_words(self, query: str, where: str, limit: int) -> list[Found]:
        """Rows that hold any word of the query, best first (BM25)."""
        words = " ".join(dict.fromkeys(words_of(query)))
        if not words:
            return []
        search = self._table.search(_match(words), query_type="fts")
        return _found(_narrow(search, where).select(["id", "vector", "_score"]).limit(limit))

    @_lance_errors
    def by_meaning(self, vector: Vectors, where: str, limit: int) -> list[Found]:
        """Rows nearest to a unit vector, nearest first, none beyond FARTHEST; exact where there is no index."""
        search = self._table.search(vector, vector_column_name="vector").distance_type("cosine")
        if self._indexed:
            search = search.nprobes(PROBES).refine_factor(REFINE)
        rows = _found(_narrow(search, where).select(["id", "vector", "_distance"]).limit(limit))
        return [row for row in rows if row.distance is not None and row.distance <= FARTHEST]


def condition_of(kinds: Sequence[str] | None, filters: Filters | None) -> str:
    """SQL condition on the table's columns; '' without filters."""
    parts = [_among("kind", list(kinds))] if kinds else []
    for name, value in asdict(filters).items() if filters else ():
        if value and name == "since":
            parts.append(f"written >= {_quote(value)}")
        elif value:
            parts.append(f"{name} = {_quote(value)}")
    return " AND ".join(parts)


def _schema() -> Any:
    import pyarrow

    text = pyarrow.utf8()
    names = ("id", "campaign", "kind", "workload_key", "layer", "hardware", "outcome", "written", "terms")
    stamps = ("entry_stamp", "text_stamp", "encoder", "encoder_sha256")
    vector = pyarrow.field("vector", pyarrow.list_(pyarrow.float32(), DIMENSIONS))
    return pyarrow.schema([*(pyarrow.field(n, text) for n in (*names, *stamps)), vector])


def _full_text() -> Any:
    """Words come split already; stemming and stop words are the index's."""
    from lancedb.index import FTS

    return FTS(base_tokenizer="whitespace", stem=True, remove_stop_words=True, max_token_length=80)


def _match(words: str) -> Any:
    """A query value, not the query language: what people type may hold quotes and colons."""
    from lancedb.query import MatchQuery

    make: Any = MatchQuery  # its annotations call every field required
    return make(words, "terms")


def _row(entry: Entry, vector: Sequence[float] | None, name: str, sha256: str) -> dict[str, object]:
    return {
        "id": entry.id,
        "campaign": entry.campaign,
        "kind": entry.kind,
        "workload_key": entry.workload_key,
        "layer": entry.layer,
        "hardware": entry.hardware,
        "outcome": entry.outcome,
        "written": entry.at,
        "terms": " ".join(words_of(entry.text)),
        "entry_stamp": stamp_of(entry),
        "text_stamp": text_stamp(entry),
        "encoder": "" if vector is None else name,
        "encoder_sha256": "" if vector is None else sha256,
        "vector": vector,
    }


def _narrow(search: Any, where: str) -> Any:
    return search.where(where) if where else search


def _found(search: Any) -> list[Found]:
    rows = search.to_arrow().to_pylist()
    return [Found(row["id"], tuple(row["vector"]) if row["vector"] else None, row.get("_distance")) for row in rows]


def _quote(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _among(column: str, values: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(_quote(value) for value in values)})"


def _parts(values: Sequence[str]) -> list[Sequence[str]]:
    return [values[at : at + _IN_A_QUERY] for at in range(0, len(values), _IN_A_QUERY)]
