"""The rules of the house: who may import whom, and that nothing heavy stands in the doorway."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "sentence_transformers", "lancedb", "duckdb", "botorch", "ray", "anthropic")


def test_rooms_import_only_what_lies_below_them() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["rsi_tui.cli", "rsi_tui.app.main"])
def test_nothing_heavy_is_imported_in_the_doorway(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_command_explains_itself_without_anything_heavy() -> None:
    code = (
        "import sys\nfrom rsi_tui.cli import main\nsys.argv = ['rsi', '--help']\n"
        f"try:\n    main()\nfinally:\n    print('heavy:', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "run" in done.stdout and done.stdout.strip().splitlines()[-1].strip() == "heavy:"


def test_the_installed_command_answers() -> None:
    command = Path(sys.executable).with_name("rsi")
    done = subprocess.run([command, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "training programs" in done.stdout
