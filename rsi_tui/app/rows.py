"""What the browsing screens list: hypotheses with what became of them, and failures by cause, over all campaigns.

Rows are plain texts with fields to filter by. A query is words and `field:value`, all of which must match:

    status:not_proven layer:memory moe
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rsi_tui.audit import pages, words
from rsi_tui.journal.facts import ORIGINAL
from rsi_tui.journal.view import CampaignView, CandidateView, RoundView, is_turned_down

GOOD, BAD, OPEN = "green", "red", "yellow"


@dataclass(frozen=True)
class Row:
    """One line of a list."""

    campaign: str
    id: str
    """what a detail is asked for, local to the campaign; '' for a heading"""
    cells: tuple[str, ...]
    """left to right; the last takes the room that is left"""
    style: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    """lower case, what words are looked for in"""

    @property
    def is_heading(self) -> bool:
        return not self.id


def matching(rows: Sequence[Row], query: str) -> list[Row]:
    """Rows that every part of a query fits; headings stay where a row below them does."""
    parts = [part.partition(":") if ":" in part else ("", "", part) for part in query.lower().split()]
    found: list[Row] = []
    heading: Row | None = None
    for row in rows:
        if row.is_heading:
            heading = row
        elif all(_fits(row, name, value) for name, _, value in parts):
            if heading is not None:
                found.append(heading)
                heading = None
            found.append(row)
    return found


def _fits(row: Row, name: str, value: str) -> bool:
    if name in row.fields:
        return value in row.fields[name].lower()
    return (f"{name}:{value}" if name else value) in row.text


# --- hypotheses -------------------------------------------------------------------------------------------


def notebook(views: Iterable[CampaignView]) -> list[Row]:
    """Every hypothesis and bundle, newest first, under the campaigns that they belong to."""
    return [row for view in views if view.rounds or view.bundles for row in (_title(view), *reversed(list(_of_campaign(view))))]


def _title(view: CampaignView) -> Row:
    speedup = view.proven_speedup()
    result = words.short_interval(speedup) if speedup is not None else "nothing proven"
    return Row("", "", (f"{view.id} {words.one_line(view.workload)}: {view.state_words}, {result}",), "bold")


def _of_campaign(view: CampaignView) -> Iterator[Row]:
    for name, known in view.rounds.items():
        candidate = view.candidates.get(known.candidate)
        about = pages.round_words(view, known) if candidate is None or (candidate.screen is None and candidate.verdict is None) else pages.brief_words(view, candidate)
        direction = view.directions.get(known.hypothesis.direction)
        layer = direction.facts.layer if direction else ""
        yield _row(view, known.candidate or name, known.at, _status(view, known, candidate), layer, known.hypothesis.statement, about, _techniques(candidate))
    for bundle in view.bundles:
        about = pages.outcome_words(view, bundle)
        statement = f"bundle of {', '.join(bundle.facts.members)}"
        yield _row(view, bundle.id, bundle.at, _standing(bundle), "bundle", statement, about, _techniques(bundle))


def _row(view: CampaignView, id: str, at: str, status: str, layer: str, statement: str, about: str, techniques: str) -> Row:
    style = GOOD if status in ("adopted", "leaner") else OPEN if status in ("open", "promoted") else BAD
    mark = {GOOD: "+", BAD: "x", OPEN: "~"}[style]
    statement, about = words.one_line(statement), words.one_line(about)
    return Row(
        view.id, id, (mark, id, f"{at[5:10]} {at[11:16]}", layer, f"{about} | {statement}"), style,
        {"status": status, "layer": layer, "campaign": view.id, "workload": view.workload, "technique": techniques, "id": id},
        f"{id} {layer} {status} {statement} {about} {techniques} {view.id} {view.workload}".lower(),
    )  # fmt: skip


def _techniques(candidate: CandidateView | None) -> str:
    return " ".join(candidate.facts.techniques) if candidate is not None else ""


def _status(view: CampaignView, known: RoundView, candidate: CandidateView | None) -> str:
    if candidate is None:
        return "refused" if known.refusals else "open" if not view.over else "never_built"
    return _standing(candidate) or ("open" if not view.over else "never_run")


def _standing(candidate: CandidateView) -> str:
    """adopted, not_proven, slower, ...; promoted or dropped by screening; '' while nothing is known."""
    if candidate.standing:
        return candidate.standing
    if candidate.review is not None and candidate.review.decision != "pass":
        return candidate.review.decision
    if candidate.screen is not None:
        return "failed" if candidate.screen.outcome != "ok" else "promoted" if candidate.screen.promoted else "dropped"
    return "failed" if is_turned_down(candidate) else ""


# --- failures ---------------------------------------------------------------------------------------------


def failures(views: Iterable[CampaignView]) -> list[Row]:
    """Everything that failed or was refused, by cause, the costliest cause first; within one the newest first."""
    rows: dict[str, list[Row]] = {}
    spent: Counter[str] = Counter()
    for view in views:
        for found in reversed(view.failures()):
            cause = found.cause or found.kind
            facts = view.trials.get(found.about)
            peak = words.size(facts.peak_bytes) if facts is not None and facts.peak_bytes is not None else ""
            asked = f", asked for {words.size(facts.requested_bytes)}" if facts is not None and facts.requested_bytes else ""
            about = found.candidate or (found.about if facts is None else ORIGINAL)
            detail = words.one_line(found.detail or (found.lines[-1] if found.lines else found.kind.replace("_", " ")))
            spent[cause] += int(1000 * found.seconds)
            rows.setdefault(cause, []).append(Row(
                view.id, found.about, ("x", found.about, about, f"{found.seconds:.1f} s" if found.seconds else "", f"{peak}{asked}", detail), BAD,
                {"cause": cause, "kind": found.kind, "campaign": view.id, "workload": view.workload, "candidate": found.candidate, "id": found.about},
                f"{cause} {found.kind} {found.about} {about} {detail} {' '.join(found.lines)} {view.id} {view.workload}".lower(),
            ))  # fmt: skip
    ordered = sorted(rows, key=lambda cause: (-spent[cause], -len(rows[cause]), cause))
    return [row for cause in ordered for row in (_heading(cause, rows[cause], spent[cause] / 1000), *rows[cause])]


def _heading(cause: str, rows: Sequence[Row], seconds: float) -> Row:
    cost = f", {words.duration(seconds)} of trial time" if seconds else ""
    return Row("", "", (f"{cause.replace('_', ' ')}: {words.plural(len(rows), 'failure')}{cost}",), "bold")
