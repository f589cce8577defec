"""The library, opened directly by one process: tables, vectors and encoder behind the one interface.

    from experience.library import open_library
    library = open_library(folder, reader)

After every open the journals' heads are compared with the tables, and the tables with the vectors;
what is missing is replayed. Vectors are made when something is ingested or first searched, never
while opening, so that opening costs no encoder. Calls from several threads take turns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import TypeVar

from experience import duplicates, exchange, query
from experience.calibration import calibrated
from experience.chunk import diff_texts
from experience.conditions import Conditions, fit
from experience.duplicates import NOT_TRIED, PROVEN
from experience.encoder import Encoder, MiniLM
from experience.errors import DamagedError, EncoderError, ExperienceError, TablesDamagedError, UnreadableJournalError
from experience.interface import (
    HOME,
    Calibration,
    ExperienceLibrary,
    Filters,
    Head,
    Hit,
    KnobValues,
    PastCandidate,
    Reader,
    Record,
    Repeat,
    Stats,
)
from experience.likeness import Features, features_of
from experience.records import (
    Batch,
    CampaignRow,
    CandidateRow,
    DirectionRow,
    Entry,
    EntryKind,
    RetrievalRow,
    TrialRow,
)
from experience.stamps import text_stamp
from experience.store import Store
from experience.vectors import Found, VectorTable, condition_of

_WRITTEN_AT_ONCE = 1000
_COMPARED = 40
"""hypotheses that a proposal's is compared with"""
_PAST = 5000
"""past candidates looked at; proven ones and the same workload's come first"""
T = TypeVar("T")


def open_library(folder: Path, reader: Reader, encoder: Encoder | None = None) -> ExperienceLibrary:
    """Open the library in a folder, creating and repairing what has to be.

    Raises LockedError when another process has it open, ExperienceError when it can't be opened.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExperienceError(
            f"the experience library's folder can't be made ({error}): move what is in its way"
        ) from error
    tables, vectors = folder / "experience.duckdb", VectorTable(folder / "vectors.lance")
    try:
        return DirectLibrary(Store.open(tables), vectors, reader, encoder)
    except TablesDamagedError as damage:
        return DirectLibrary(Store.open_anew(tables, damage), vectors, reader, encoder)


class DirectLibrary:
    """ExperienceLibrary over files that this process owns. Its contract is the interface's."""

    def __init__(self, store: Store, vectors: VectorTable, reader: Reader, encoder: Encoder | None = None) -> None:
        self._lock = RLock()
        self._reader = reader
        self._store = store
        self._vectors = vectors
        self._encoder: Encoder = encoder or MiniLM()
        self._notes: list[str] = [store.note] if store.note else []
        self._handicap = ""
        self._behind = False
        """entries wait for their vectors"""
        try:
            self._replay(reader)
            self._open_vectors()
        except BaseException:
            store.close()
            raise

    # --- opening and repair --------------------------------------------------------------------

    def _replay(self, reader: Reader) -> None:
        """Bring the tables up to the journals' heads."""
        stored = self._store.heads()
        for head in reader.heads():
            known = stored.get(head.campaign)
            if known == head:
                continue
            if known is not None and known.last_seq > head.last_seq:
                self._note(
                    f"the journal of {head.campaign} ends at event {head.last_seq}, but the library has seen event "
                    f"{known.last_seq}: its tail was lost; `rsi verify {head.campaign}` says more."
                )
                continue
            try:
                self._replay_one(reader, head)
            except UnreadableJournalError as error:
                self._note(str(error))

    def _replay_one(self, reader: Reader, head: Head) -> None:
        if head.campaign == HOME:
            self._store.replace_entries(head, list(reader.knowledge()))
        else:
            self._store.replace(reader.batch(head.campaign))

    def _open_vectors(self) -> None:
        try:
            self._vectors.open()
            self._sync_vectors(encode=False)
        except DamagedError as damage:
            self._remake_vectors(damage)

    def _remake_vectors(self, damage: DamagedError) -> None:
        """Throw the vectors away and start again; encoding follows at the next ingest or search."""
        self._note(f"the library's vectors were damaged ({damage}) and are being rebuilt.")
        self._vectors.delete()
        self._vectors.open()
        self._sync_vectors(encode=False)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    # --- vectors -------------------------------------------------------------------------------

    def _sync_vectors(self, encode: bool, campaign: str | None = None) -> None:
        """Make the vector table equal to the entries: gone rows go, changed and new ones are written.

        Of one campaign ('' is the knowledge of none), or of all when not told or when others wait too and can be encoded.
        """
        if self._behind and encode and self._ready():
            campaign = None
        encoder = self._encoder.sha256
        found = self._store.differences(self._vectors.stamp_rows(campaign), campaign, encoder)
        self._vectors.remove(found.gone)
        stale = bool(found.fresh or found.changed or found.waiting)
        encode = encode and stale and self._ready()
        had = {*found.changed, *found.waiting}
        wanted = [*found.changed, *found.fresh, *(found.waiting if encode else ())]
        for at in range(0, len(wanted), _WRITTEN_AT_ONCE):
            part = list(self._store.entries_by_id(wanted[at : at + _WRITTEN_AT_ONCE]).values())
            self._vectors.put(part, self._vectors_for(part, encode), self._encoder.name, encoder, had)
        waits = stale and not encode
        self._behind = waits if campaign is None else self._behind or waits

    def _vectors_for(self, entries: Sequence[Entry], encode: bool) -> Mapping[str, Sequence[float]]:
        """text stamp -> vector: those stored already, and if asked those still to be encoded."""
        texts = {text_stamp(entry): entry.text for entry in entries}
        known = self._vectors.vectors_of(texts, self._encoder.sha256)
        missing = [stamp for stamp in texts if stamp not in known]
        if encode and missing:
            made = self._encode([texts[stamp] for stamp in missing])
            known.update(zip(missing, made, strict=False))
        return known

    def _ready(self) -> bool:
        """Whether meaning can be had; when not, searches say why."""
        try:
            self._encoder.load()
        except EncoderError as error:
            self._without_meaning(error)
            return False
        return True

    def _encode(self, texts: Sequence[str]) -> list[list[float]]:
        """Vectors, or [] when meaning can't be had."""
        try:
            vectors: list[list[float]] = self._encoder.encode(texts).tolist()
        except EncoderError as error:
            self._without_meaning(error)
            return []
        self._handicap = ""
        return vectors

    def _without_meaning(self, error: EncoderError) -> None:
        self._handicap = f"by words only: {error}"
        self._note(str(error))

    def _with_vectors(self, action: Callable[[], T]) -> T:
        """Run it; when the vectors turn out damaged remake them and run it once more."""
        try:
            return action()
        except DamagedError as damage:
            self._remake_vectors(damage)
            return action()

    # --- writing -------------------------------------------------------------------------------

    def ingest(self, batch: Batch) -> None:
        with self._lock:
            self._store.replace(batch)
            self._with_vectors(lambda: self._sync_vectors(True, batch.campaign.id))

    def add_knowledge(self, entries: Iterable[Entry]) -> None:
        with self._lock:
            self._store.put_knowledge(list(entries))
            self._with_vectors(lambda: self._sync_vectors(True, ""))

    def sync(self, campaign: str) -> None:
        with self._lock:
            head = next((head for head in self._reader.heads() if head.campaign == campaign), None)
            if head is not None and self._store.heads().get(campaign) != head:
                self._replay_one(self._reader, head)
                self._behind = True
            if self._behind:
                self._with_vectors(lambda: self._sync_vectors(True, campaign))

    def rebuild(self) -> list[str]:
        with self._lock:
            notes: list[str] = []
            heads = self._reader.heads()
            self._store.forget_campaigns(head.campaign for head in heads)
            for head in heads:
                try:
                    self._replay_one(self._reader, head)
                except UnreadableJournalError as error:
                    notes.append(str(error))
            self._vectors.delete()
            self._vectors.open()
            self._sync_vectors(encode=True)
            return notes

    def catch_up(self) -> list[str]:
        with self._lock:
            before = len(self._notes)
            self._replay(self._reader)
            self._with_vectors(lambda: self._sync_vectors(encode=True))
            return self._notes[before:]

    def export(self, folder: str) -> int:
        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
            if any(place.iterdir()):
                raise ExperienceError(f"{place} holds something already; name a new folder.")
            with self._lock:
                self._store.export(place)
                campaigns = self.campaigns()
                candidates = self._store.select(CandidateRow, tail="ORDER BY id")
                lessons = self._store.select(Entry, "kind = 'lesson'", tail="ORDER BY id")
            (place / "library.md").write_text(exchange.markdown(campaigns, candidates, lessons), encoding="utf-8")
        except OSError as error:
            raise ExperienceError(f"the export to {place} can't be written: {error.strerror}.") from error
        return len(campaigns)

    def compact(self) -> None:
        with self._lock:
            self._store.checkpoint()
            self._with_vectors(self._vectors.optimise)
        self.tend()

    def wants_tending(self) -> bool:
        """So much was stored that `tend` would make searches faster."""
        with self._lock:
            return self._with_vectors(lambda: self._vectors.wants_tidying or self._vectors.wants_index)

    def tend(self) -> None:
        """Merge what was written and make the indices that a large library needs; for a quiet moment.

        Others go on searching while indices are made.
        """
        with self._lock:
            if self._with_vectors(lambda: self._vectors.wants_tidying):
                self._vectors.optimise()
            wanted = self._vectors.wants_index
        if wanted:
            self._vectors.make_index()

    def close(self) -> None:
        with self._lock:
            self._store.close()

    # --- searching -----------------------------------------------------------------------------

    def search(
        self,
        text: str,
        kinds: Sequence[EntryKind] | None = None,
        filters: Filters | None = None,
        limit: int = 10,
        conditions: Conditions | None = None,
    ) -> list[Hit]:
        with self._lock:
            where = condition_of(kinds, filters)
            pool = max(query.POOL, 3 * limit)
            meaning = self._with_vectors(lambda: self._by_meaning(text, where, pool))
            words = self._with_vectors(lambda: self._vectors.by_words(text, where, pool))
            entries = self._store.entries_by_id([found.id for found in [*words, *(meaning or ())]])
            scored = query.score(words, meaning, entries, conditions)
            return query.hits(scored, text, limit, self._handicap)

    def _by_meaning(self, text: str, where: str, limit: int) -> list[Found] | None:
        """Nearest entries; None when there is no vector to search with."""
        import numpy

        vectors = self._encode([text])
        if not vectors:
            return None
        if self._behind:
            self._sync_vectors(encode=True)
        return self._vectors.by_meaning(numpy.asarray(vectors[0], numpy.float32), where, limit)

    def lessons(self, conditions: Conditions | None = None, layer: str = "", limit: int = 20) -> list[Hit]:
        with self._lock:
            found = self._store.select(
                Entry, "kind = 'lesson' AND (? = '' OR layer = ?)", [layer, layer], 'ORDER BY "at" DESC, id'
            )
        wanted = conditions or Conditions()
        fits = {entry.id: fit(wanted, query.conditions_of(entry)) for entry in found}
        found.sort(key=lambda entry: -fits[entry.id].value)
        return [Hit(entry, fits[entry.id].value, query.describe(fits[entry.id])) for entry in found[:limit]]

    def past_candidates(
        self,
        workload_key: str | None,
        hardware: str,
        software: str,
        limit: int,
        profile: Mapping[str, float] | None = None,
    ) -> list[PastCandidate]:
        wanted = Conditions(workload_key or "", hardware, software, profile or {})
        with self._lock:
            rows = self._store.select(
                CandidateRow,
                "NOT list_contains(?, verdict)",
                [sorted(NOT_TRIED), sorted(PROVEN), wanted.workload_key],
                f'ORDER BY list_contains(?, verdict) DESC, workload_key = ? DESC, "at" DESC, id LIMIT {_PAST}',
            )
            profiles = {row.id: row.profile for row in self._store.select(CampaignRow)}
        past = [_past(row, wanted, profiles.get(row.campaign, {})) for row in rows]
        past.sort(key=lambda item: _evidence(item, hardware))
        return past[:limit]

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
        proposal = duplicates.as_proposal(diff_hash, launch_fingerprint, base_stack, conditions, techniques, knobs)
        with self._lock:
            rows = duplicates.eligible(
                proposal,
                self._store.select(
                    CandidateRow,
                    "workload_key = ? AND hardware = ? AND software = ?",
                    [conditions.workload_key, conditions.hardware, conditions.software],
                ),
            )
            found = duplicates.by_identity(proposal, rows)
            others = duplicates.free_changes(proposal, rows)
            if others and (statement or diff):
                proposed, features = features_of(diff_texts(diff)), self._features(others)
                found += duplicates.by_code(proposed, others, features)
                found += duplicates.by_words(self._cosines(statement, others), proposed, others, features)
        return duplicates.in_order(found)

    def _features(self, rows: Sequence[CandidateRow]) -> dict[str, Features]:
        """candidate -> what it changed in its parent's code."""
        wanted = [*{name for row in rows for name in (row.id, row.parent)}]
        texts: dict[str, list[str]] = {}
        for entry in self._store.select(Entry, "kind = 'diff' AND candidate IN (SELECT unnest(?::VARCHAR[]))", [wanted]):
            texts.setdefault(entry.candidate, []).append(entry.text)
        whole = {name: features_of(hunks) for name, hunks in texts.items()}
        return {row.id: whole[row.id] - whole.get(row.parent, Features()) for row in rows if row.id in whole}

    def _cosines(self, statement: str, rows: Sequence[CandidateRow]) -> dict[str, float]:
        """candidate -> cosine of its statement to this one, of the nearest; {} where meaning can't be had."""
        vectors = self._encode([statement]) if statement else []
        if not vectors:
            return {}
        if len(rows) > _COMPARED:
            rows = self._nearest(vectors[0], rows)
        theirs = self._encode([row.statement for row in rows])
        return {row.id: sum(a * b for a, b in zip(vectors[0], vector, strict=True)) for row, vector in zip(rows, theirs, strict=False)}

    def _nearest(self, vector: Sequence[float], rows: Sequence[CandidateRow]) -> list[CandidateRow]:
        """The rows whose hypotheses, as they are stored, come nearest."""
        import numpy

        known = {row.id: row for row in rows}
        where = condition_of(["hypothesis"], Filters(workload_key=rows[0].workload_key, hardware=rows[0].hardware))
        if self._behind:
            self._with_vectors(lambda: self._sync_vectors(encode=True))
        asked = numpy.asarray(vector, numpy.float32)
        found = self._with_vectors(lambda: self._vectors.by_meaning(asked, where, 4 * _COMPARED))
        entries = self._store.entries_by_id([item.id for item in found])
        near = (entries[item.id].candidate for item in found if item.id in entries)
        return [known[name] for name in dict.fromkeys(near) if name in known][:_COMPARED]

    # --- looking up ----------------------------------------------------------------------------

    def campaigns(self) -> list[CampaignRow]:
        with self._lock:
            return self._store.select(CampaignRow, tail="ORDER BY started_at DESC, id DESC")

    def calibration(self) -> list[Calibration]:
        with self._lock:
            rows = self._store.select(CandidateRow, "NOT list_contains(?, verdict)", [sorted(NOT_TRIED)], "ORDER BY id")
            minds = {row.id: row.mind for row in self._store.select(CampaignRow)}
        return calibrated(rows, minds)

    def retrievals(self, campaign: str = "", limit: int = 100) -> list[RetrievalRow]:
        with self._lock:
            return self._store.select(RetrievalRow, "? = '' OR campaign = ?", [campaign, campaign, limit], 'ORDER BY "at" DESC, id LIMIT ?')

    def record_of(self, id: str) -> Record | None:
        with self._lock:
            found: list[Record] = [
                *self._store.select(Entry, "id = ?", [id]),
                *self._store.select(CandidateRow, "id = ?", [id]),
                *self._store.select(TrialRow, "id = ?", [id]),
                *self._store.select(DirectionRow, "id = ?", [id]),
                *self._store.select(CampaignRow, "id = ?", [id]),
            ]
        return found[0] if found else None

    def last_seq(self, campaign: str) -> int:
        with self._lock:
            head = self._store.heads().get(campaign)
        return head.last_seq if head else -1

    def fingerprint(self) -> str:
        with self._lock:
            self._with_vectors(lambda: self._sync_vectors(True))
            stamps = sorted(self._with_vectors(self._vectors.stamps).items())
            return hashlib.sha256(repr((self._store.contents(), stamps)).encode()).hexdigest()

    def stats(self) -> Stats:
        with self._lock:
            counts = self._store.counts()
            stamps = self._with_vectors(self._vectors.stamps)
            return Stats(
                campaigns=counts["campaigns"],
                directions=counts["directions"],
                candidates=counts["candidates"],
                trials=counts["trials"],
                entries=self._store.entry_counts(),
                vectors=sum(bool(stamp.encoder) for stamp in stamps.values()),
                disk_bytes=self._store.disk_bytes + self._vectors.disk_bytes,
                encoder=f"{self._encoder.name} {self._encoder.sha256[:12]}",
                notes=tuple(self._notes),
            )


def _past(row: CandidateRow, wanted: Conditions, profile: Mapping[str, float]) -> PastCandidate:
    found = Conditions(row.workload_key, row.hardware, row.software, profile)
    same = bool(wanted.workload_key) and row.workload_key == wanted.workload_key
    return PastCandidate(row, fit(wanted, found).value, same)


def _evidence(item: PastCandidate, hardware: str) -> tuple[bool, bool, float, bool]:
    """Proven here, proven elsewhere, the rest; each by fit, the measured before the failed."""
    proven = item.row.verdict in PROVEN
    here = proven and item.same_workload and item.row.hardware == hardware
    return not here, not proven, -item.fit, item.row.log_ratio is None
