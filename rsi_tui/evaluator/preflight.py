"""What a first short trial of the unchanged program says is wrong with its contract. Pure."""

from __future__ import annotations

from rsi_tui.contract.model import Contract
from rsi_tui.evaluator.progress import FLAG_EXTRA, FLAG_MISSING, plain, read_progress
from rsi_tui.evaluator.trial import TrialResult


def preflight(contract: Contract, result: TrialResult) -> str:
    """What a first short trial says is wrong with the contract, in one sentence; '' when nothing is."""
    facts, raw = result.facts, result.run
    progress = read_progress(raw.told, contract.launch.progress)
    shown = [plain(line.text).strip()[:120] for line in raw.lines if plain(line.text).strip()][:3]
    first = " | ".join(shown) or "(no output)"
    if facts.outcome in ("ok", "cancelled"):
        return ""
    if raw.exit_code in (126, 127) or (raw.exit_code and not progress.steps and raw.wall_s < 1 and len(raw.lines) < 3):
        return f"The command does not start (exit code {raw.exit_code}): {first}; correct [launch] command in workload.toml."
    if raw.exit_code == 0 and facts.steps and not progress.steps:
        return f"The progress pattern {contract.launch.progress!r} never matches; the output begins: {first}; correct [launch] progress."
    if raw.exit_code == 0 and (FLAG_MISSING in facts.flags or FLAG_EXTRA in facts.flags):
        return f"Asked for {facts.steps} steps, the program printed {len(progress.steps)} progress lines; {{steps}} must set their number."
    if raw.exit_code == 0 and facts.cause == "checkpoint_error":
        there = ", ".join(result.outputs) or "nothing"
        return f"No checkpoint appears at {contract.launch.checkpoint}; the output folder holds {there}; correct [launch] checkpoint."
    said = facts.telling_lines[-1] if facts.telling_lines else first
    return f"The program does not run as it is: {facts.detail} ({said[:200]})"
