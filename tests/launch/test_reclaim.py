"""What a killed engine leaves on the machine is reclaimed by the next one; what is anybody else's is not touched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsi_tui.journal.chain import process_start
from rsi_tui.launch.memory import Controllers, find_controllers, open_group, reclaim
from rsi_tui.launch.spec import LaunchSpec
from tests.launch.conftest import needs_cgroup

SPEC = LaunchSpec(("/bin/true",), "/", (), {}, 1.0)


@pytest.fixture
def parent() -> Path:
    return find_controllers().parents[0][1]


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with rsi."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def start_before(pid: int) -> str:
    """When an earlier process with this number had started."""
    return str(int(process_start(pid)) - 1000)


@needs_cgroup
@pytest.mark.parametrize("name", ["rsi-{pid}-{before}-1", "rsi-999999999-5-2", "rsi-999999999-3"])
def test_a_group_is_reclaimed_though_its_engine_s_number_was_given_to_another(
    parent: Path, stranger: subprocess.Popen[bytes], name: str
) -> None:
    folder = parent / name.format(pid=stranger.pid, before=start_before(stranger.pid))
    folder.mkdir()
    assert folder.name in reclaim()
    assert not folder.exists() and stranger.poll() is None


@needs_cgroup
@pytest.mark.parametrize("name", ["rsi-{pid}-{start}-1", "rsi-{pid}-1", "rsi-evaluator", "rsiX-999999999-5-2", "rsi-999999999-5-2-9"])
def test_groups_of_the_living_and_of_others_stay(parent: Path, name: str) -> None:
    folder = parent / name.format(pid=os.getpid(), start=process_start(os.getpid()))
    folder.mkdir()
    try:
        assert folder.name not in reclaim()
        assert folder.exists()
    finally:
        folder.rmdir()


@needs_cgroup
def test_a_group_is_made_where_a_dead_engine_s_has_the_same_number(parent: Path) -> None:
    """Numbers begin anew in each container and after each start of the machine; measuring must not get weaker for it."""
    left = parent / f"rsi-{os.getpid()}-{start_before(os.getpid())}-1"
    left.mkdir()
    group = open_group(SPEC, Controllers(find_controllers().kind, find_controllers().parents))
    try:
        assert group.source in ("cgroup1", "cgroup2")
    finally:
        group.remove()
        assert left.name in reclaim()
