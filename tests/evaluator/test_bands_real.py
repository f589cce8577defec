"""The bands on real runs of the bundled workload (scripts/bench/bands.py and one_step.py have the whole tables)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", ["bands.py", "one_step.py"], ids=["whole runs", "updates from saved states"])
def test_honest_runs_pass_and_cheating_runs_are_caught(script: str) -> None:
    command = [sys.executable, str(BENCH / script), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    figures = {figure["name"]: figure for figure in json.loads(done.stdout)["figures"]}
    assert done.returncode == 0, figures
    assert figures["honest changes refused, bf16"]["value"] == 0
    assert figures["cheats let through, bf16"]["value"] == 0
