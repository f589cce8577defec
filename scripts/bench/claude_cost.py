"""What a round costs under the claude mind: tokens by role on the bundled workloads, by the local server's count."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from rsi_tui.config import ClaudeSettings
from rsi_tui.journal.facts import OperatorFacts, PhaseFacts, ProfileFacts
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.loop.lending import lend_room
from rsi_tui.loop.outer import run_campaign
from rsi_tui.minds.claude.mind import ClaudeMind
from tests.support import loops
from tests.support.campaigns import git
from tests.support.claude_script import Play, direction, edits, hypothesis, tool
from tests.support.messages_api import KEY, Asked, Status, Turn, messages_api

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
ROUNDS = 4
PRESET = "\n[preset.cost.proof]\nmax_candidates = 8\nbundle = true\nred_team = false\ncanaries = false\nleave_one_out = false\n"
OPERATORS = ("aten::addmm", "aten::mm", "aten::bmm", "aten::_softmax", "aten::native_layer_norm", "aten::gelu", "aten::mul", "aten::copy_")
PROFILE = ProfileFacts(
    step_s=0.4, peak_bytes=700 * 2**20, tokens_per_step=16384, page_faults_per_step=12_000.0, parameters=10_000_000, mfu=0.31,
    phases=tuple(PhaseFacts(name=n, seconds=0.1, share=s) for n, s in (("forward", 0.3), ("backward", 0.5), ("optimizer", 0.15), ("data", 0.05))),
    operators=tuple(OperatorFacts(name=f"{OPERATORS[n % 8]}{n or ''}", self_s=0.02, share=0.04, calls=48.0) for n in range(25)),
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """One workload."""

    workload: str
    uncached: dict[str, int]
    """by role: most tokens of a prompt that did not come from the cache, the role's first call left out"""
    cached_share: float
    """of all prompt tokens from the second round on"""
    usd_a_round: float


def measure(workload: str) -> Cost:
    """Several rounds with new code on a bundled workload; what candidates measure is made up, prompts are real."""
    os.environ["ANTHROPIC_API_KEY"] = KEY
    marks: list[int] = []
    play = Play(
        director=[direction(budget=ROUNDS), tool("end_search", reason="enough")],
        selector=[*(_next(n, marks) for n in range(ROUNDS)), tool("close_direction", reason="all tried")],
        executor=[turn for n in range(ROUNDS) for turn in edits(_edit(workload, n))],
    )
    with tempfile.TemporaryDirectory() as folder, messages_api(play) as api, patch.object(loops, "PROFILE", PROFILE):
        place = Path(folder) / "tiny"
        shutil.copytree(WORKLOADS / workload, place, ignore=shutil.ignore_patterns("__pycache__", "out"))
        for command in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "a bundled workload")):
            git(place, *command)
        mind = ClaudeMind(ClaudeSettings.model_validate({"base_url": api.url}))
        ctx = loops.bench(Path(folder), mind).ctx
        mind.enter(lend_room(ctx, LocalLauncher(), (), lambda sentence: None))
        run_campaign(ctx)
        usd = mind.calls.ledger.total.usd
        mind.leave()
        second = marks[1]
        used = _usage(api.account.requests, api.account.by_role)
    later = [usage for number, _, usage in used if number >= second]
    uncached: dict[str, int] = defaultdict(int)
    first: set[str] = set()
    for _, role, usage in used:
        if role in first:
            uncached[role] = max(uncached[role], usage["input_tokens"] + usage["cache_creation_input_tokens"])
        first.add(role)
    read = sum(usage["cache_read_input_tokens"] for usage in later)
    sent = read + sum(usage["input_tokens"] + usage["cache_creation_input_tokens"] for usage in later)
    return Cost(workload, dict(uncached), read / sent, usd / ROUNDS)


def _next(number: int, marks: list[int]) -> Callable[[Asked], Turn | Status]:
    def answer(asked: Asked) -> Turn:
        marks.append(asked.number)
        return hypothesis(statement=f"Part {number} of the step is computed with fewer operators, which saves launches.")

    return answer


def _edit(workload: str, number: int) -> tuple[str, str, str]:
    """An edit that changes the program's syntax tree and does nothing."""
    line = next(line for line in (WORKLOADS / workload / "model.py").read_text().splitlines(True) if line.startswith("import "))
    return "model.py", line, f"{line}PART_{number} = {number}\n"


def _usage(requests: list[Asked], by_role: dict[str, list[dict[str, int]]]) -> list[tuple[int, str, dict[str, int]]]:
    """(number of the request, role, what it used), in the order sent; every request of this play was answered."""
    left = {role: iter(used) for role, used in by_role.items()}
    return [(asked.number, asked.role, next(left[asked.role])) for asked in requests]

