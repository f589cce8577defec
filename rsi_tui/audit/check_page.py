"""What a check found, as a page for the terminal and as JSON: what was planted, who caught it, and what got through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rsi_tui.audit import words
from rsi_tui.errors import UsageError
from rsi_tui.journal.events import RedTeamed
from rsi_tui.journal.facts import PlantedFacts
from rsi_tui.journal.view import CampaignView

LABELS = {"cheat": "cheats", "lines": "lines", "checkpoint": "weights", "metric": "metric", "escape": "escapes"}
SHOWN = 3
"""reasons of one run that a page names"""
KINDS = {
    "cheat": "cheats planted in this program",
    "lines": "forged progress lines",
    "checkpoint": "forged checkpoints",
    "metric": "programs, wrong on purpose, laid before the hidden validation",
    "escape": "attempts to leave the sandbox",
}


def check_data(view: CampaignView) -> dict[str, Any]:
    """The JSON document of a check; raises UsageError where nothing was planted."""
    made, created = view.red_team, view.created
    if made is None or created is None:
        raise UsageError(f"{view.id} planted nothing: it was stopped before, or its contract says red_team = false; `rsi check WORKLOAD` does.")
    return {
        "schema": 1,
        "check": view.id,
        "workload": created.workload,
        "preset": created.preset,
        "trust": created.trust,
        "passed": not made.through,
        "through": list(made.through),
        "unsettled": list(made.unsettled),
        "planted": [_entry(planted) for planted in made.planted],
        "missing": list(made.missing),
        "no_rounding": view.calibrated.no_rounding if view.calibrated else "",
        "origin": made.origin or view.id,
        "seconds": made.seconds,
    }


def _entry(planted: PlantedFacts) -> dict[str, Any]:
    return {**planted.model_dump(mode="json"), "caught": planted.caught}


def summary(made: RedTeamed) -> str:
    """One sentence for the live log and reports."""
    cheats = [p for p in made.planted if p.kind == "cheat"]
    others = ", ".join(
        f"{sum(p.kind == kind for p in made.planted)} {what}"
        for kind, what in KINDS.items()
        if kind != "cheat" and any(p.kind == kind for p in made.planted)
    )
    refused, ran = sum(bool(p.review) for p in cheats), [p for p in cheats if p.ran]
    said = f"red team: {len(cheats)} cheats planted, {refused} refused by the review; {len(ran)} run, {sum(bool(p.evaluator) for p in ran)} caught"
    end = f"GOT THROUGH: {'; '.join(made.through)}" if made.through else "nothing got through"
    where = f" (done in {made.origin})" if made.origin else ""
    return f"{said}{f'; {others}' if others else ''}; {end}{where}"


def check_page(data: dict[str, Any], width: int = words.WIDTH, colour: bool = False) -> str:
    """The same for a terminal, no line longer than `width` columns."""
    headline = "PASSED: nothing that was tried got through" if data["passed"] else "REFUSED: something planted got through"
    headline += f" (trust level {data['trust']})"
    style = "1;32" if data["passed"] else "1;31"
    lines = [f"\x1b[{style}m{headline}\x1b[0m" if colour else headline, ""]
    lines += words.entry("on", f"{words.one_line(data['workload'])}, {data['preset']} preset", width)
    for label, text in _counts(data):
        lines += words.entry(label, text, width)
    for name in data["through"]:
        planted = next(p for p in data["planted"] if p["name"] == name)
        lines += words.entry("through", f"{name}: {planted['does'] or KINDS[planted['kind']]}", width)
    for name in data["unsettled"]:
        lines += words.entry(
            "unsettled", f"{name}: one run can't say whether it learns as well; a verification asks fresh seeds", width
        )
    lines += ["", *_ran(data, width)]
    return "\n".join(lines)


def _counts(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for kind, what in KINDS.items():
        planted = [p for p in data["planted"] if p["kind"] == kind]
        if not planted:
            continue
        if kind == "cheat":
            reviewed, ran = [p for p in planted if p["review"]], [p for p in planted if p["ran"]]
            quiet = sum(not p["review"] and not p["ran"] for p in planted)
            yield LABELS[kind], (
                f"{len(planted)} {what} ({len(data['missing'])} kinds find no opening in it): {len(reviewed)} refused by the "
                f"review of the diff, {len(ran)} run and {sum(bool(p['evaluator']) for p in ran)} of those caught by the "
                f"evaluator alone; {quiet} are left to the evaluator and were not run (--all runs them)"
            )
        else:
            yield LABELS[kind], f"{len(planted)} {what}, {sum(p['caught'] for p in planted)} of no avail"
    if data["origin"] != data["check"]:
        yield "from", f"planted by {data['origin']} under the same conditions; --all plants anew"
    if data["no_rounding"]:
        yield "bf16", data["no_rounding"]


def _short(reasons: list[str]) -> str:
    """What caught something, without how its limit was found; --json has it whole."""
    said = [reason.split(" (", 1)[0] for reason in reasons]
    more = f" and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return f"{'; '.join(said[:SHOWN])}{more}"


def _ran(data: dict[str, Any], width: int) -> Iterator[str]:
    """The cheats that were run, with what caught each."""
    for planted in data["planted"]:
        if planted["kind"] == "cheat" and planted["ran"]:
            left_open = planted["name"] in data["unsettled"]
            caught = _short(planted["evaluator"]) or (
                "not settled by one run" if left_open else "NOT CAUGHT by the evaluator"
            )
            review = f" (the review refuses it as well: {', '.join(planted['review'])})" if planted["review"] else ""
            yield from words.entry("run", f"{planted['name']}: {caught}{review}", width)
