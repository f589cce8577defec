"""`rsi verify`: does everything that is claimed follow from the record? From the journal alone, or from a bundle.

Three questions. Is the journal whole, to its newest line as others know it? Does each figure in it follow from the runs?
Do the reports say what the journal says? What it can't know is said with the answer: it believes the machine that
recorded the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsi_tui.audit import words
from rsi_tui.audit.checks import Check
from rsi_tui.audit.recomputed import recompute
from rsi_tui.audit.record import Record
from rsi_tui.audit.written_reports import Compared, compare
from rsi_tui.errors import JournalError, UsageError
from rsi_tui.journal import chain
from rsi_tui.journal.anchors import Anchor, read_anchor
from rsi_tui.journal.blobs import Blobs, logs_in, revealed_in
from rsi_tui.journal.events import AlphaGranted, Event
from rsi_tui.locations import Home
from rsi_tui.repo.heads import noted_head

REPORTS = ("report.json", "report.md", "report.html")
SHOWN = 20
"""problems of one kind that the page lists"""
LIMITS = (
    "It believes what the machine recorded of each run: times, peaks, outcomes. Whoever controls that machine can record "
    "others; `rsi replay` measures again."
)


@dataclass(frozen=True)
class Verified:
    """What verification found."""

    campaign: str
    problems: tuple[str, ...]
    """of the journal itself, each with its line"""
    checks: tuple[Check, ...]
    reports: tuple[Compared, ...]
    anchors: tuple[Anchor, ...]
    """lines of the journal that others know"""
    events: int
    head: str

    @property
    def wrong(self) -> list[Check]:
        return [check for check in self.checks if check.right is False]

    @property
    def lacking(self) -> list[Check]:
        return [check for check in self.checks if check.right is None]

    @property
    def follows(self) -> bool:
        return not self.problems and not self.wrong and all(report.follows for report in self.reports)


def verify_target(home: Home, target: str | None = None) -> Verified:
    """What a person named: a bundle or a report by its file, else a campaign by its id; default the newest campaign."""
    from rsi_tui.audit.bundle import verify_bundle
    from rsi_tui.audit.reading import find_campaign

    path = Path(target) if target is not None else None
    if path is None or not (path.is_file() or path.suffix):
        return verify_campaign(home, find_campaign(home, target))
    if path.suffix.lower() in (".json", ".md", ".html", ".htm"):
        return verify_report(home, path)
    return verify_bundle(path)


def verify_campaign(home: Home, campaign: str) -> Verified:
    """A campaign of this home, with the reports in its folder."""
    paths = home.campaign(campaign)
    reports = [path for name in REPORTS if (path := paths.reports / name).exists()]
    noted = read_anchor(paths.anchor)
    texts = [(path.name, _text(path)) for path in reports]
    head = _in_the_mirror(home, campaign)
    known = (head,) if head is not None else ()
    found = verify_files(paths.journal, texts, Blobs(paths.blobs), Blobs(paths.logs), paths.anchor, known)
    extra = _granted(home, found, paths.journal)
    gone = (f"the note of its newest line, {paths.anchor}, is gone",) if known and not paths.anchor.exists() else ()
    return Verified(
        found.campaign or campaign, (*found.problems, *gone, *_of_the_home(home)), (*found.checks, *extra), found.reports,
        (*((noted,) if noted else ()), *known, *found.anchors), found.events, found.head,
    )  # fmt: skip


def _of_the_home(home: Home) -> list[str]:
    """What is wrong with the home's own journal, whose ledger a campaign's error probability comes from."""
    if not home.journal.exists() and not home.anchor.exists():
        return []
    return [f"the home's journal, {problem}" for problem in chain.verify(home.journal, home.anchor)]


def _in_the_mirror(home: Home, campaign: str) -> Anchor | None:
    """The line that the campaign's mirror knows."""
    for mirror in sorted(home.mirrors.glob("*.git")):
        if (head := noted_head(mirror, campaign)) is not None:
            return head
    return None


def verify_files(
    journal: Path,
    reports: Iterable[tuple[str, str]],
    blobs: Blobs,
    logs: Blobs | None = None,
    anchor: Path | None = None,
    known: Sequence[Anchor] = (),
) -> Verified:
    """A journal with what lies beside it and its reports, given as (name, text); `known` are lines that others know.

    Figures are recomputed only of a journal that can be read. Logs may be gone; those that are there must be whole.
    """
    problems = list(chain.verify(journal, anchor, known))
    try:
        events = chain.read_events(journal)
    except JournalError as error:
        return Verified("", tuple(problems or [str(error)]), (), (), (), 0, "")
    if not events:
        return Verified("", (*problems, "the journal holds no event"), (), (), (), 0, "")
    problems += [f"line {line}: {trouble}" for line, blob in revealed_in(events) if (trouble := blobs.problem(blob))]
    if logs is not None:
        problems += [f"line {line}: {trouble}" for line, blob in logs_in(events) if logs.has(blob) and (trouble := logs.problem(blob))]
    record = Record(events, blobs)
    compared = tuple(compare(name, text, events) for name, text in reports)
    anchors = tuple(report.anchor for report in compared if report.anchor is not None)
    problems += [problem for problem in chain.verify(journal, None, anchors) if problem not in problems]
    return Verified(
        record.created.campaign, tuple(problems), tuple(recompute(record)), compared, anchors, len(events), events[-1].hash
    )


def verify_report(home: Home, path: Path) -> Verified:
    """One report file, wherever it lies, against the campaign of this home that it names."""
    text = _text(path)
    named = [name for name in _campaigns(home) if name in text]
    if not named:
        raise UsageError(f"{path} names no campaign of this home ({home.root}): verify it where its campaign is, or verify a bundle.")
    paths = home.campaign(named[0])
    found = verify_files(paths.journal, [(path.name, text)], Blobs(paths.blobs), Blobs(paths.logs), paths.anchor)
    return all_compared(found, str(path))


def all_compared(found: Verified, what: str) -> Verified:
    """Of what was sent as evidence every report is compared. Raises UsageError for one of another format."""
    if left := next((report.note for report in found.reports if report.note), ""):
        raise UsageError(f"{what} was written by another version of rsi, and can't be verified by this one: {left}")
    return found


def verify_page(found: Verified) -> str:
    """The answer for a person."""
    right = sum(check.right is True for check in found.checks)
    head = "Everything follows from the record" if found.follows else "NOT EVERYTHING FOLLOWS from the record:"
    if found.follows:
        left = sum(bool(report.note) for report in found.reports)
        head += f", but {left} report{'s were' if left > 1 else ' was'} not compared." if left else "."
    lines = [f"{found.campaign or 'journal'}: {head}", ""]
    lines += [f"  {problem}" for problem in _some(found.problems)]
    lines += [f"  {check.figure}: recorded {_value(check.recorded)}, the runs say {_value(check.follows)}" for check in found.wrong[:SHOWN]]
    lines += [f"  and {len(found.wrong) - SHOWN} more figures" for _ in range(len(found.wrong) > SHOWN)]
    for report in found.reports:
        lines += [f"  {report.file}, {d.place}: says {d.says!r}, should say {d.follows!r}" for d in report.differences]
    lines += [] if found.follows else [""]
    lines.append(f"journal   {found.events} events, {'whole' if not found.problems else f'{len(found.problems)} problems'}, last hash {found.head[:16]}")
    known = ", ".join(dict.fromkeys(anchor.where for anchor in found.anchors))
    lines.append(f"          its newest line is known by {known}" if known else "          nothing outside it knows its newest line: a lost end would not show")
    lines.append(f"figures   {right} recomputed from runs and right, {len(found.wrong)} wrong, {len(found.lacking)} not recomputable")
    lines += [f"          {line}" for line in _some(_reasons(found.lacking))]
    for report in found.reports:
        lines.append(f"report    {report.note or report.file + (' says what follows' if report.follows else ' says something else')}")
    if not found.reports:
        lines.append("report    none was written yet")
    lines += ["", LIMITS]
    return "\n".join(line[: len(line) - len(line.lstrip())] + words.one_line(line, 400) for line in lines)


def verify_data(found: Verified) -> dict[str, Any]:
    """The answer as JSON values."""
    return {
        "campaign": found.campaign,
        "follows": found.follows,
        "journal": {"events": found.events, "head": found.head, "problems": list(found.problems)},
        "anchors": [{"line": anchor.seq + 1, "hash": anchor.hash, "where": anchor.where} for anchor in found.anchors],
        "figures": {
            "right": sum(check.right is True for check in found.checks),
            "wrong": [{"figure": c.figure, "recorded": c.recorded, "follows": c.follows} for c in found.wrong],
            "not_recomputable": [{"figure": c.figure, "why": c.why} for c in found.lacking],
        },
        "reports": [
            {
                "file": report.file,
                "follows": report.follows,
                "note": report.note,
                "differences": [{"place": d.place, "says": d.says, "follows": d.follows} for d in report.differences],
            }
            for report in found.reports
        ],
        "believes": LIMITS,
    }


def _granted(home: Home, found: Verified, journal: Path) -> list[Check]:
    """The error probability that a campaign drew is the one that the home's ledger gave it."""
    drawn = next((e.body for e in _readable(journal) if isinstance(e.body, AlphaGranted)), None)
    if drawn is None:
        return []
    ledger = [e.body for e in _readable(home.journal) if isinstance(e.body, AlphaGranted) and e.body.campaign == found.campaign]
    given = ledger[-1].ordinal if ledger else None
    figure = "number of the campaign on its workload, in the home's ledger"
    if not ledger and not home.journal.exists():
        return [Check(figure, drawn.ordinal, None, None, "the home's journal is gone")]
    return [Check(figure, drawn.ordinal, given if ledger else "none", given == drawn.ordinal)]


def _readable(journal: Path) -> Sequence[Event]:
    try:
        return chain.read_events(journal)
    except JournalError:
        return ()


def _campaigns(home: Home) -> list[str]:
    return sorted((path.parent.name for path in home.campaigns.glob("*/journal.jsonl")), reverse=True)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error


def _some(problems: Sequence[str]) -> list[str]:
    more = len(problems) - SHOWN
    return [*problems[:SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _reasons(lacking: Sequence[Check]) -> list[str]:
    """Each reason once, with the figures that lack for it."""
    by_reason: dict[str, list[str]] = {}
    for check in lacking:
        by_reason.setdefault(check.why, []).append(check.figure)
    return [
        f"{'; '.join(figures) if len(figures) <= 3 else f'{figures[0]} and {len(figures) - 1} more'}: {why}"
        for why, figures in by_reason.items()
    ]


def _value(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
