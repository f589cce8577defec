"""The experience library as engine, app and command line open it: wired to the journals of a home.

`open_library` gives a client of the home's server, which it starts where none runs (`python -m rsi_tui.library HOME`), and
turns the library's errors into LibraryError. `past_effects`, `hits` and `recall` answer in the words of `minds.protocol`.
Importing this module loads nothing heavy, nor does asking. What stores something encodes on this machine's cores: call it
between trials, never during one; the server loads its encoder when the host's lease lets it.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experience import chunk, exchange
from experience.address import Address, address_of
from experience.client import RemoteLibrary
from experience.conditions import Conditions
from experience.duplicates import same_conditions
from experience.errors import ExperienceError, UnreadableJournalError
from experience.interface import HOME, ExperienceLibrary, Filters, Head
from experience.knowledge import sections as sections_of
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
from rsi_tui.config import load_settings
from rsi_tui.environment import for_child
from rsi_tui.errors import JournalError, LibraryError, RsiError, UsageError
from rsi_tui.journal import chain
from rsi_tui.journal.chain import process_start
from rsi_tui.journal.events import Event, KnowledgeAdded, SectionFacts
from rsi_tui.journal.facts import RetrievedFacts
from rsi_tui.journal.home import add_knowledge
from rsi_tui.journal.rows import CampaignRows, batch_of, home_entries
from rsi_tui.launch.lease import host_lease
from rsi_tui.locations import Home
from rsi_tui.minds.protocol import PastEffect

if TYPE_CHECKING:
    from rsi_tui.techniques.base import Technique

__all__ = [
    "HOME", "Conditions", "ExperienceLibrary", "Filters", "HomeReader", "Memories", "add_document", "add_technique_cards", "batch_from",
    "export", "hits", "import_folder", "ingest_events", "open_library", "past_effects", "rebuild", "recall", "serve", "sync", "translated",
]  # fmt: skip


GAVE_UP = "can't serve: "
"""begin of a line of the server's log that says why it ends"""
SERVER = "rsi_tui.library"
"""module that is run to serve a home"""
MOST_OF_A_DOCUMENT = 8 * 2**20
"""bytes"""


@dataclass(frozen=True)
class Memories:
    """What the library answered one question with."""

    query: str
    past: tuple[PastEffect, ...]
    hits: tuple[RetrievedFacts, ...]


@contextmanager
def translated() -> Iterator[None]:
    """Errors of the library become LibraryError, whose message is a sentence for a person."""
    try:
        yield
    except ExperienceError as error:
        raise LibraryError(str(error)) from error


class HomeReader:
    """The journals of a home as the library reads them (experience.interface.Reader)."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def heads(self) -> list[Head]:
        """Where each journal ends; a journal whose end can't be read counts as changed."""
        found = {path.parent.name: _head(path.parent.name, path) for path in sorted(self._home.campaigns.glob("*/journal.jsonl"))}
        if self._home.journal.exists():
            found[HOME] = _head(HOME, self._home.journal)
        imported = self._imports()
        for campaign, folder in imported.items():
            if campaign != HOME:
                found.setdefault(campaign, folder[1])
        if HOME in imported:
            own = found.get(HOME, Head(HOME, 0, ""))
            names = ",".join(place.name for place in self._folders())
            found[HOME] = Head(HOME, own.last_seq, f"{own.head}+{names}" if own.head or own.last_seq == 0 else "")
        return [head for head in found.values() if head.last_seq >= 0]

    def batch(self, campaign: str) -> Batch:
        """All rows of a campaign; UnreadableJournalError when its journal, or the import it is from, is damaged."""
        if not self._home.campaign(campaign).journal.exists() and (imported := self._imports().get(campaign)):
            return exchange.batch_of(imported[0], campaign)
        try:
            return batch_from(batch_of(chain.read_events(self._home.campaign(campaign).journal)))
        except JournalError as error:
            raise UnreadableJournalError(f"{campaign} is missing from the library: {error}") from error

    def knowledge(self) -> list[Entry]:
        """Notes and knowledge of the home's journal, and of what was imported."""
        try:
            events = chain.read_events(self._home.journal) if self._home.journal.exists() else []
            own = list(_pieces(Entry(**row) for row in home_entries(events)))
        except JournalError as error:
            raise UnreadableJournalError(f"the home's notes are missing from the library: {error}") from error
        theirs = (entry for folder in self._folders() for entry in _given(folder))
        known = {entry.id: entry for entry in (*theirs, *own)}
        return list(known.values())

    def _folders(self) -> list[Path]:
        return sorted(path for path in self._home.imports.glob("*") if path.is_dir() and not path.name.endswith(".new"))

    def _imports(self) -> dict[str, tuple[Path, Head]]:
        """campaign -> the import that has most of it, and where that ends; one that can't be read has nothing."""
        found: dict[str, tuple[Path, Head]] = {}
        for folder in self._folders():
            try:
                heads = exchange.heads_of(folder)
            except ExperienceError:
                continue
            for head in heads:
                if head.campaign not in found or head.last_seq > found[head.campaign][1].last_seq:
                    found[head.campaign] = (folder, head)
            found.setdefault(HOME, (folder, Head(HOME, 0, "")))
        return found


def _given(folder: Path) -> list[Entry]:
    """Knowledge of an import, as the home's own; [] when it can't be read."""
    try:
        return [replace(entry, campaign=HOME) for entry in exchange.knowledge_of(folder) if not entry.id.startswith("knowledge/technique/")]
    except ExperienceError:
        return []


def _head(campaign: str, path: Any) -> Head:
    try:
        return Head(campaign, *chain.head(path))
    except JournalError:
        return Head(campaign, 2**62, "")  # beyond anything stored: reading it will say what is wrong


def open_library(home: Home, *, patient: bool = False) -> ExperienceLibrary:
    """The library of a home, brought up to its journals; LibraryError when it can't be opened.

    `patient`: searches wait until they can be answered by meaning too. RSI_LIBRARY=direct, or `[library] server = false`
    in config.toml, opens the files in this process.
    """
    settings = load_settings(home.root).library
    with translated():
        if not is_served(home):
            from experience.library import open_library as open_files

            return open_files(home.library, HomeReader(home))
        if settings.address:
            library = RemoteLibrary(team_address(settings.address), lambda: None, patient=patient, token=settings.token)
        else:
            library = RemoteLibrary(address_of(home.library), _Starter(home), patient=patient)
        try:
            library.last_seq(HOME)
        except ExperienceError:
            library.close()
            raise
        return library


def is_served(home: Home) -> bool:
    """Is the library another process's, so that asking loads nothing heavy into this one?"""
    settings = load_settings(home.root).library
    return os.environ.get("RSI_LIBRARY") != "direct" and (settings.server or bool(settings.address))


@contextmanager
def opened(home: Home, busy: Callable[[str], None]) -> Iterator[ExperienceLibrary]:
    """The library for a command that stores or encodes: it has the machine's timed lease meanwhile; `busy` is told of a wait."""
    with host_lease("the experience library", on_wait=busy), translated():
        library = open_library(home, patient=True)
        try:
            yield library
        finally:
            library.close()


def end_server(home: Home) -> bool:
    """End the home's server; False where none runs."""
    with translated():
        return RemoteLibrary(address_of(home.library), lambda: None).end_server()


def token_of(home: Home) -> str:
    """The token that a team's callers show; UsageError without one."""
    token = load_settings(home.root).library.token
    if len(token) < 16:
        raise UsageError(f'put a secret of at least 16 characters into {home.root / "config.toml"}: [library] token = "..."; callers need the same.')
    return token


def team_address(text: str) -> Address:
    """'HOST:PORT' as an address; LibraryError for anything else."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise LibraryError(f"{text!r} is no address of a library; give HOST:PORT.")
    return Address(host=host.strip("[]"), port=int(port))


class _Starter:
    """Starts a home's server where none runs; called again while a client waits for it."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._pid = 0
        self._said = 0
        """bytes of the log before it was started"""

    def __call__(self) -> None:
        log = log_of(self._home)
        if self._pid and process_start(self._pid):
            return
        if self._pid and (why := _gave_up(log, self._said)):
            raise ExperienceError(f"the library's server ended at once: {why}")
        try:
            self._home.library.mkdir(parents=True, exist_ok=True)
            log.touch(mode=0o600)
            mark = os.open(self._home.library / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ExperienceError(f"the library's folder {self._home.library} can't be used: {error.strerror}.") from error
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._said = log.stat().st_size
            self._pid = self._spawn(log, mark)
        except BlockingIOError:
            return  # somebody else has started one, which holds the lock as long as it lives
        finally:
            os.close(mark)

    def _spawn(self, log: Path, mark: int) -> int:
        """The server's process, which inherits `mark`; through a shell that ends at once, so that it is nobody's child."""
        started = subprocess.run(
            ["/bin/sh", "-c", '"$@" </dev/null >>"$0" 2>&1 & echo $!', str(log), sys.executable, "-P", "-m", SERVER, str(self._home.root)],
            stdout=subprocess.PIPE, check=True, start_new_session=True, cwd="/", pass_fds=(mark,),
            env={**for_child(load_settings(self._home.root).claude.key_env), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
        return int(started.stdout)


def log_of(home: Home) -> Path:
    """What a home's library server says of itself."""
    return home.library / "server.log"


def _gave_up(log: Path, since: int) -> str:
    """Why a server ended without having served, by what its log says from a byte on; '' where it says nothing of that."""
    try:
        said = log.read_bytes()[since:].decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    told = [line.removeprefix(GAVE_UP) for line in said if line.startswith(GAVE_UP)]
    crashed = [line for line in said if line and not line[0].isspace()][-1:] if any(line.startswith("Traceback ") for line in said) else []
    return next(iter([*told[-1:], *crashed]), "")


def serve(home: Home, address: Address | None = None, token: str = "") -> bool:
    """Serve a home's library in this process until nobody asks any more; False when another process does."""
    from experience.server import serve as serve_files

    settings = load_settings(home.root).library
    idle_s = 60 * settings.idle_minutes if address is None else float("inf")
    place = address or address_of(home.library)
    with translated():
        return serve_files(
            home.library, HomeReader(home), place, idle_s=idle_s, turn=lambda: host_lease("the experience library"), token=token
        )


def sync(library: ExperienceLibrary, home: Home, campaign_id: str) -> None:
    """Bring the library up to a campaign's journal as it is now; does nothing when it is there already.

    A team's library can't read this home's journals: it is sent what they say.
    """
    with translated():
        if not load_settings(home.root).library.address:
            library.sync(campaign_id)
        elif library.last_seq(campaign_id) != chain.head(home.campaign(campaign_id).journal)[0]:
            library.ingest(HomeReader(home).batch(campaign_id))


def rebuild(library: ExperienceLibrary) -> list[str]:
    """Make everything that journals give anew; says which journals could not be read, one sentence each."""
    with translated():
        return library.rebuild()


def ingest_events(library: ExperienceLibrary, events: Sequence[Event]) -> None:
    """Store all that a campaign's events say."""
    with translated():
        library.ingest(batch_from(batch_of(events)))


def batch_from(rows: CampaignRows) -> Batch:
    """The journal's plain rows as the library's records, texts cut to what the encoder reads."""
    texts = [Entry(**row) for row in rows.texts]
    return Batch(
        campaign=CampaignRow(**rows.campaign),
        last_seq=rows.last_seq,
        head=rows.head,
        directions=tuple(DirectionRow(**row) for row in rows.directions),
        candidates=tuple(CandidateRow(**row) for row in rows.candidates),
        trials=tuple(TrialRow(**row) for row in rows.trials),
        entries=(*_pieces(texts), *_diff_entries(rows)),
        retrievals=tuple(RetrievalRow(**row) for row in rows.retrievals),
    )


def _pieces(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Long texts in pieces; the first keeps the id, so that it can be cited."""
    for entry in entries:
        limit = chunk.CODE_LIMIT if entry.kind == "failure" else chunk.PROSE_LIMIT
        for number, piece in enumerate(chunk.prose_pieces(entry.text, limit)):
            yield _renamed(entry, piece, number)


def _diff_entries(rows: CampaignRows) -> Iterator[Entry]:
    for diff in rows.diffs:
        for number, text in enumerate(chunk.diff_texts(diff.diff, diff.lead)):
            yield _renamed(Entry(**diff.row), text, number)


def _renamed(entry: Entry, text: str, number: int) -> Entry:
    return Entry(**vars(entry) | {"text": text, "id": f"{entry.id}/{number}" if number else entry.id})


def export(library: ExperienceLibrary, folder: Path) -> int:
    """Write a library as Parquet and Markdown into a new folder; the number of its campaigns."""
    with translated():
        return library.export(str(folder.absolute()))


def import_folder(home: Home, folder: Path) -> int:
    """Keep a copy of an export with this home, whose library reads it from then on; the number of its campaigns.

    What was imported before, and campaigns that this home has itself, are not doubled. LibraryError for what is no export.
    """
    with translated():
        campaigns = exchange.check(folder)
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.parquet")):
        digest.update(path.read_bytes())
    kept = home.imports / digest.hexdigest()[:16]
    if not kept.exists():
        new = kept.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        for name in (*exchange.FILES, "heads"):
            shutil.copyfile(folder / f"{name}.parquet", new / f"{name}.parquet")
        new.replace(kept)
    return campaigns


def key_of(library: ExperienceLibrary, workload: str) -> str:
    """The key of the workload that a person names, by its name; '' for ''. LibraryError for one that was never tried."""
    if not workload:
        return ""
    known = {row.workload: row.workload_key for row in library.campaigns()}
    if workload not in known:
        raise ExperienceError(f"no campaign on a workload named {workload!r} is known; known are {', '.join(sorted(known)) or 'none'}.")
    return known[workload]


def add_document(home: Home, who: str, path: Path, source: str = "", licence: str = "") -> int:
    """Record a document (Markdown or plain text) in the home's journal; the number of its sections.

    It replaces what was added under the same source. Raises UsageError for a file that is no text.
    """
    name = source or path.name
    try:
        if path.stat().st_size > MOST_OF_A_DOCUMENT:
            raise UsageError(f"{path} is larger than {MOST_OF_A_DOCUMENT >> 20} MiB; add its chapters one by one.")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        turn = "turn it into text first (pdftotext FILE.pdf)" if path.suffix.lower() == ".pdf" else "save it as UTF-8"
        raise UsageError(f"{path} is no text: {turn}.") from error
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error
    sections = tuple(SectionFacts(title=title, text=body) for title, body in sections_of(text))
    if not sections:
        raise UsageError(f"{path} is empty.")
    add_knowledge(home, KnowledgeAdded(who=who, source=name, licence=licence, sections=sections))
    return len(sections)


def add_technique_cards(library: ExperienceLibrary, cards: Iterable[Technique]) -> None:
    """Technique cards as knowledge; adding them again changes nothing."""
    entries = [
        Entry(
            id=f"knowledge/technique/{card.id}",
            kind="knowledge",
            text=f"{card.title} ({card.id})\n{card.summary}\napplies when: {card.applies_when}\nrisk: {card.risk}",
            layer=card.layer,
            source=f"technique {card.id}: {card.source}",
        )
        for card in cards
    ]
    with translated():
        library.add_knowledge(entries)


def past_effects(library: ExperienceLibrary, conditions: Conditions, limit: int) -> tuple[PastEffect, ...]:
    """What is known of past changes: proven on this workload and hardware first, failures included.

    `techniques` are those that the change added to its base, `stack` those of the base.
    """
    with translated():
        found = library.past_candidates(
            conditions.workload_key, conditions.hardware, conditions.software, limit, conditions.profile
        )
    return tuple(
        PastEffect(
            record=item.row.id,
            techniques=tuple(t for t in item.row.techniques if t not in item.row.base_stack),
            knobs=item.row.knobs,
            verdict=item.row.verdict,
            outcome=item.row.outcome,
            log_ratio=item.row.log_ratio,
            fit=item.fit,
            same_workload=item.same_workload,
            stack=item.row.base_stack,
            reason=item.row.reason,
            same_conditions=same_conditions(item.row, conditions),
        )
        for item in found
    )


def hits(
    library: ExperienceLibrary,
    query: str,
    conditions: Conditions | None = None,
    limit: int = 10,
    kinds: Sequence[EntryKind] | None = None,
) -> tuple[RetrievedFacts, ...]:
    """Entries that match a question, as facts that the journal can record."""
    with translated():
        found = library.search(query, kinds=kinds, limit=limit, conditions=conditions)
    return tuple(
        RetrievedFacts(record=hit.entry.id, kind=hit.entry.kind, text=hit.entry.text, score=hit.score, why=hit.why)
        for hit in found
    )


def recall(
    library: ExperienceLibrary,
    query: str,
    conditions: Conditions,
    past_limit: int = 200,
    hit_limit: int = 10,
    kinds: Sequence[EntryKind] | None = None,
) -> Memories:
    """Past effects and hits under the same conditions: what Director and Selector are given."""
    past = past_effects(library, conditions, past_limit)
    return Memories(query, past, hits(library, query, conditions, hit_limit, kinds))


def main() -> int:
    """A home's server, as `open_library` starts it."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    try:
        serve(Home(Path(sys.argv[1])))
    except RsiError as error:
        print(f"{GAVE_UP}{error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
