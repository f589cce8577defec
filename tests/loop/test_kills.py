"""A campaign that is killed at events comes to the end of one that nobody kills: a few kills of each mode each time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_campaign_that_was_killed_comes_to_the_same_end() -> None:
    command = [sys.executable, "scripts/bench/kills.py", "--parts", "events", "--count", "9", "--seed", "5", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {figure["name"]: figure["value"] for figure in json.loads(done.stdout)["figures"]}
    assert figures["engines killed at an event"] >= 9 and figures["runs lost or repeated"] == 0
    assert sum(figures[f"kills {mode}"] > 0 for mode in ("before", "half written", "written, not noted", "written and noted")) >= 3
