"""A person's own command when a campaign finishes, stops or needs approval: `[hooks]` of config.toml.

Promises: it is started when no trial runs, detached and with a timeout, and nobody waits for it; what it does, or that
it can't be started, never changes the campaign. It gets the summary of `rsi campaigns --json` on stdin, and
RSI_EVENT, RSI_CAMPAIGN, RSI_WORKLOAD, RSI_STATE, RSI_REASON, RSI_SPEEDUP and RSI_REPORT in its environment, which is the engine's without the keys
of a model's API.
What it prints goes to hook.log in the campaign's folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from rsi_tui.config import load_settings
from rsi_tui.environment import for_child
from rsi_tui.errors import RsiError
from rsi_tui.journal.view import campaign_summary, load_campaign
from rsi_tui.locations import Home

_MINDER = """\
import os, signal, subprocess, sys
child = subprocess.Popen(["/bin/sh", "-c", sys.argv[2]], start_new_session=True)
try:
    code = child.wait(float(sys.argv[1]))
    if code:
        print(f"the hook ended with exit code {code}", flush=True)
except subprocess.TimeoutExpired:
    os.killpg(child.pid, signal.SIGKILL)
    print(f"the hook was killed after {sys.argv[1]} seconds", flush=True)
"""
"""stays beside the command, in a session of its own, since the engine ends before it"""


def call_hook(home: Home, campaign: str, event: str, tell: Callable[[str], None]) -> None:
    """Start the command for 'finished', 'stopped' or 'needs_approval', if there is one; a failure to start is told."""
    try:
        settings, key_env = (known := load_settings(home.root)).hooks, known.claude.key_env
        commands = {"finished": settings.finished, "stopped": settings.stopped, "needs_approval": settings.needs_approval}
        if command := commands.get(event, ""):
            _start(home, campaign, event, command, settings.timeout_s, key_env)
    except (RsiError, OSError) as error:
        tell(f"The hook for '{event}' was not started: {error}")


def _start(home: Home, campaign: str, event: str, command: str, timeout_s: float, key_env: str) -> None:
    paths = home.campaign(campaign)
    facts = campaign_summary(load_campaign(home, campaign))
    speedup = facts["speedup"]
    env = for_child(key_env) | {
        "RSI_EVENT": event,
        "RSI_CAMPAIGN": campaign,
        "RSI_WORKLOAD": str(facts["workload"]),
        "RSI_STATE": str(facts["state"]),
        "RSI_REASON": str(facts["reason"]).replace("\0", ""),
        "RSI_SPEEDUP": f"{speedup['estimate']:.4f}" if speedup else "",
        "RSI_REPORT": str(paths.reports / "report.md"),
    }
    told = paths.root / "hook.json"
    told.write_text(json.dumps({"event": event, **facts}), encoding="utf-8")
    with told.open("rb") as stdin, (paths.root / "hook.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-I", "-c", _MINDER, f"{timeout_s:g}", command],
            stdin=stdin, stdout=log, stderr=log, env=env, cwd=paths.root, start_new_session=True,
        )  # fmt: skip


