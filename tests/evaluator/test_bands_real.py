"""The bands on real runs of the bundled workload (scripts/bench/bands.py has the whole table)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "bands.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_honest_runs_pass_and_cheating_runs_are_caught() -> None:
    done = subprocess.run([sys.executable, str(BENCH), "--quick", "--json"], capture_output=True, text=True, check=False)
    figures = {figure["name"]: figure for figure in json.loads(done.stdout)["figures"]}
    assert done.returncode == 0, figures
    assert figures["honest changes refused, bf16"]["value"] == 0
    assert figures["cheats let through, bf16"]["value"] == 0
