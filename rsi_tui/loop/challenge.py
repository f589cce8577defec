"""Before anything is trusted: cheats, forged evidence and escapes are planted, and have to be caught.

The cheats are changes of the user's own program. Each goes past the review of diffs; a few that differ in kind are
also run, and evidence is forged from an honest run beside them. What got through although it was expected to be
caught ends the campaign before its search begins. One such challenge holds for every campaign under the same
conditions, until the code that judges changes. Planted cheats are on no list of candidates, cost no budget and
no error probability, and no mind or library sees them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import rsi_tui
from rsi_tui.errors import GateError, JournalError
from rsi_tui.evaluator.redteam import ATTACKS, Attack, Planted, Program, live_set, plant_all
from rsi_tui.evaluator.redteam.live import LiveCheat
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.events import CampaignCreated, RedTeamed
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts, PlantedFacts
from rsi_tui.journal.view import campaign_ids
from rsi_tui.locations import Home
from rsi_tui.loop.context import Context
from rsi_tui.loop.known_noise import same_conditions
from rsi_tui.loop.static_review import review_diff

STEP = "red team"
A_BLOCK = 8
"""cheats that share a block's set-up runs when all are run"""
JUDGES = ("evaluator", "launch", "loop/review_rules", "loop/static_review.py", "loop/challenge.py")
"""what judges: a challenge that other code passed says nothing of this one"""


def challenge(ctx: Context, *, everything: bool = False) -> RedTeamed:
    """Plant what is to be caught, unless that was done under the same conditions; `everything`: run every cheat, anew.

    Raises GateError when something got through; ContractError when the unchanged program can't be measured.
    """
    made = ctx.steps.find(STEP)
    if not isinstance(made, RedTeamed):
        known = None if everything else find_challenge(ctx.home, ctx.created)
        made = ctx.steps.append(known or _challenge(ctx, everything), STEP)
        assert isinstance(made, RedTeamed)
    if made.through:
        raise GateError(
            f"Planted on purpose and not caught: {'; '.join(made.through)}. Nothing that this evaluator says of the "
            "program may be trusted: sharpen its contract (weights, validation, precision, scope), or report it."
        )
    return made


def find_challenge(home: Home, created: CampaignCreated) -> RedTeamed | None:
    """What a campaign or check under the same conditions found, judged by the same code; None without one."""
    for id in campaign_ids(home):
        if id == created.campaign:
            continue
        try:
            paths = home.campaign(id)
            events = read_events(paths.journal, paths.anchor)
        except JournalError:
            continue
        if not events or not isinstance(before := events[0].body, CampaignCreated) or not same_conditions(before, created):
            continue
        made = next((event.body for event in events if isinstance(event.body, RedTeamed)), None)
        if made is not None and not made.origin and made.judges == judges_hash():
            return made.model_copy(update={"origin": id})
    return None


@cache
def judges_hash() -> str:
    """sha256, hexadecimal, of the code that judges."""
    root = Path(rsi_tui.__file__).parent
    places = [root / name for name in JUDGES]
    files = sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


@dataclass
class _Ran:
    """What the evaluator said of what was laid before it."""

    caught: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """name of a cheat that was run -> what caught it"""
    forged: tuple[PlantedFacts, ...] = ()


def _challenge(ctx: Context, everything: bool) -> RedTeamed:
    began = time.monotonic()
    program = Program(ctx.sources(ctx.mirror.base), ctx.contract)
    planted = plant_all(program)
    reviewed = {attack.name: _review(ctx, program, change) for attack, change in planted}
    able = [pair for pair in planted if pair[0].live and not pair[1].modes]
    chosen = able if everything else live_set(able)
    # What a review was expected to see in this program and does not is for the evaluator to catch.
    missed = [pair for pair in able if pair[0].catcher != "dynamic" and not reviewed[pair[0].name] and pair not in chosen]
    ran = _run(ctx, [*chosen, *missed])
    cheats = [
        PlantedFacts(
            name=attack.name, kind="cheat", family=attack.family, does=attack.does, review=reviewed[attack.name],
            evaluator=ran.caught.get(attack.name, ()), ran=attack.name in ran.caught,
        )
        for attack, change in planted
    ]  # fmt: skip
    found = (*cheats, *ran.forged, *ctx.evaluator.escapes(everything=everything))
    reviewers = {attack.name for attack, _ in planted if attack.catcher != "dynamic"}
    names = {attack.name for attack, _ in planted}
    uncaught = [p for p in found if not p.caught and (p.ran or p.name in reviewers)]
    # Over seeds, a program that learns something else is not dishonest: whether it learns as well, a verification asks.
    over_seeds = ctx.contract.invariants.weights == "statistical"
    unsettled = {p.name for p in uncaught if over_seeds and p.kind == "cheat" and p.name not in reviewers}
    return RedTeamed(
        planted=found,
        missing=tuple(attack.name for attack in ATTACKS if attack.name not in names),
        through=tuple(p.name for p in uncaught if p.name not in unsettled),
        unsettled=tuple(sorted(unsettled)),
        judges=judges_hash(),
        seconds=time.monotonic() - began,
    )


def _review(ctx: Context, program: Program, change: Planted) -> tuple[str, ...]:
    """Rules of the review that refuse a cheat, each once."""
    found = review_diff(program.sources, change.after(program), change.changed(program), ctx.contract)
    return tuple(dict.fromkeys(f.rule for f in found if f.severity in ("exploit", "scope")))


def _run(ctx: Context, cheats: Sequence[tuple[Attack, Planted]]) -> _Ran:
    """Run cheats, some to a block; evidence is forged in the first."""
    ran = _Ran()
    for number, start in enumerate(range(0, max(1, len(cheats)), A_BLOCK)):
        live = [_built(ctx, attack, change) for attack, change in cheats[start : start + A_BLOCK]]
        outcome = ctx.evaluator.challenge(f"redteam/{number}", live)
        ran.caught |= outcome.cheats
        ran.forged = ran.forged or outcome.forged
    return ran


def _built(ctx: Context, attack: Attack, change: Planted) -> LiveCheat:
    base = ctx.mirror.base
    id = f"x{[known.name for known in ATTACKS].index(attack.name) + 1}"
    commit = ctx.mirror.commit_files(base, change.sources, f"{id}: planted", f"refs/rsi/{ctx.created.campaign}/{id}")
    knobs = {**ctx.contract.defaults, **change.knobs}
    return LiveCheat(attack.name, CandidateFacts(id=id, commit=commit, base=base, parent=ORIGINAL, knobs=knobs))
