"""Newest lines of journals as refs of a mirror."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rsi_tui.repo.heads import note_head, noted_head


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "m.git")], check=True)
    return tmp_path / "m.git"


def test_the_line_noted_last_is_known_by_campaign(mirror: Path) -> None:
    note_head(mirror, "k1", 3, "a" * 64)
    note_head(mirror, "k2", 7, "b" * 64)
    note_head(mirror, "k1", 12, "c" * 64)
    first, second = noted_head(mirror, "k1"), noted_head(mirror, "k2")
    assert first is not None and second is not None
    assert (first.seq, first.hash, second.seq) == (12, "c" * 64, 7) and "k1" in first.where
    subprocess.run(["git", "--git-dir", str(mirror), "gc", "-q", "--prune=now"], check=True)
    assert noted_head(mirror, "k1") == first


def test_where_nothing_is_noted_or_can_be_nothing_is_raised(mirror: Path, tmp_path: Path) -> None:
    assert noted_head(mirror, "k1") is None and noted_head(tmp_path / "none.git", "k1") is None
    note_head(tmp_path / "none.git", "k1", 0, "a" * 64)
    (mirror / "refs/rsi-heads").mkdir()
    (mirror / "refs/rsi-heads/k1.lock").touch()
    note_head(mirror, "k1", 0, "a" * 64)
    assert noted_head(mirror, "k1") is None
