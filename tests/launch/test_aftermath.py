"""A trial that forks, detaches, ignores signals and writes all it can: nothing of it is there afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rsi_tui.evaluator.redteam.wild import deleting_takes, wild_trial
from rsi_tui.launch.cost import sandbox_cost
from rsi_tui.launch.folders import measure, remove_tree
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.spec import LaunchSpec

from .conftest import needs_sandbox

pytestmark = needs_sandbox
PYTHON = "/usr/bin/python3"
MIB = 2**20


def nothing_is_left(folder: Path, limit: int) -> None:
    too_much = limit < 1024 * MIB
    found = wild_trial(folder, 300 * MIB, limit, 60.0, leaves=not too_much)
    said = [line.text for line in found.run.lines]
    assert (found.run.killed_for, said) == (("disk", []) if too_much else ("", ["leaving"]))
    assert found.processes_left == 0
    assert found.disk_left_bytes < 200 * MIB
    after = LocalLauncher().run(LaunchSpec(("/bin/sh", "-c", "ls /tmp /dev/shm | wc -l; echo fine"), "/", (), {"PATH": "/usr/bin:/bin"}, 20.0))
    assert (after.exit_code, after.lines[-1].text) == (0, "fine")
    assert not list(Path("/sys/fs/cgroup").glob(f"**/rsi-{os.getpid()}-*"))


@pytest.mark.parametrize("limit", [1024 * MIB, 128 * MIB], ids=["it ends by itself", "it writes too much"])
def test_nothing_of_a_wild_trial_is_left(limit):
    folder = Path(tempfile.mkdtemp(prefix="rsi-burst-"))
    try:
        nothing_is_left(folder, limit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.disk_usage("/tmp").free < 30 * 2**30, reason="needs 30 GiB of disk")
def test_who_wrote_ten_gigabytes_is_gone_at_once_and_the_files_as_soon_as_the_disk_can():
    folder = Path(tempfile.gettempdir())
    found = wild_trial(folder, 10_000 * MIB)
    assert found.run.killed_for == ""
    assert found.ended_s < 3.0
    assert found.deleted_s < max(3.0, deleting_takes(folder, 10_000 * MIB) + 1.0), "some file systems discard as they delete"
    assert found.disk_left_bytes < 2**30


ORDINARY = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import encodings.idna, psutil
from tests.launch.test_aftermath import MIB, nothing_is_left
os.setgroups([]); os.setgid(54321); os.setuid(54321)
for limit in (1024 * MIB, 128 * MIB):
    nothing_is_left(Path(sys.argv[1]), limit)
print("nothing is left")
"""


@pytest.mark.skipif(os.geteuid() != 0 or not Path(PYTHON).exists(), reason="the other tests run as an ordinary user")
def test_nothing_is_left_of_an_ordinary_user_s_either():
    folder = Path(tempfile.mkdtemp(prefix="rsi-burst-"))
    os.chown(folder, 54321, 54321)
    try:
        command = [sys.executable, "-c", ORDINARY, str(folder), str(Path(__file__).parents[2])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.stdout.endswith("nothing is left\n"), done.stderr[-2000:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_folders_without_end_are_measured_and_removed(tmp_path):
    place = tmp_path / "deep"
    place.mkdir()
    code = "import os\nfor n in range(3000):\n os.mkdir('d' * 50)\n os.chdir('d' * 50)\nopen('f', 'w').write('x')\nos.chmod('.', 0)"
    subprocess.run([sys.executable, "-c", code], cwd=place, check=True)
    (place / "link").symlink_to("/etc")
    (place / "closed").mkdir()
    (place / "closed" / "file").write_bytes(bytes(10_000))
    (place / "closed").chmod(0)
    assert measure(place).too_deep
    assert measure(place, 50).entries == 51
    remove_tree(place)
    assert not place.exists() and Path("/etc").is_dir()


def test_many_folders_beside_one_another_are_counted_whole(tmp_path):
    for n in range(600):
        (tmp_path / f"{n}" / "inner").mkdir(parents=True)
        (tmp_path / f"{n}" / "inner" / "file").write_bytes(bytes(4096))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    found = measure(tmp_path)
    assert found.entries == 600 * 3 and found.blocks_bytes >= 600 * 4096
    assert not found.too_deep and not found.closed
    assert measure(tmp_path, 1700).entries == 1701
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


MEASURED = """
import os, sys
from pathlib import Path
from rsi_tui.launch.folders import measure
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(54321); os.setuid(54321)
place = Path(sys.argv[1])
(place / "shut").mkdir()
(place / "shut" / "file").write_bytes(bytes(10_000))
before = measure(place)
(place / "shut").chmod(0)
print(before.closed, measure(place).closed, measure(place / "gone").closed)
"""


def test_a_folder_that_was_shut_is_said_not_to_be_counted():
    folder = Path(tempfile.mkdtemp(prefix="rsi-shut-"))
    folder.chmod(0o777)
    try:
        command = [sys.executable, "-c", MEASURED, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
        assert done.stdout == "False True False\n", done.stderr[-2000:]
    finally:
        remove_tree(folder)


def test_what_the_sandbox_costs_can_be_measured():
    found = sandbox_cost(2)
    assert len(found.sandboxed_s) == len(found.bare_s) == 2
    assert min(found.bare_s) > 0 and json.dumps(found.cost_s)
