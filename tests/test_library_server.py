"""The library's server as processes: started on demand, killed, raced for, of another version, over TCP."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experience import wire
from experience.address import Address, address_of
from experience.client import RemoteLibrary
from experience.errors import ExperienceError
from experience.store import Store
from rsi_tui import library as lib
from rsi_tui.cli import app
from rsi_tui.errors import LibraryError, UsageError
from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import JournalWriter
from rsi_tui.locations import Home
from tests.support.story import write_home

CAMPAIGN = "20261130-1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home with a campaign, whose server ends with the test."""
    monkeypatch.delenv("RSI_LIBRARY", raising=False)
    monkeypatch.setenv("RSI_HOME", str(tmp_path / "home"))
    made, clients, real = write_home(tmp_path / "home"), list[Any](), lib.open_library

    def opened(*args: Any, **more: Any) -> Any:
        clients.append(real(*args, **more))
        return clients[-1]

    monkeypatch.setattr(lib, "open_library", opened)
    yield made
    for client in clients:
        client.close()
    lib.end_server(made)


def pid_of(home: Home) -> int:
    return int((home.library / "server.lock").read_text())


def waited(condition: Any, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_it_is_started_on_demand_answers_by_words_first_and_by_meaning_soon(home: Home) -> None:
    began = time.monotonic()
    library = lib.open_library(home)
    first = library.search("memory limit", limit=3)
    assert first and time.monotonic() - began < 30
    assert waited(lambda: "words only" not in library.search("memory limit", limit=1)[0].why, 60)
    assert library.search("memory limit", limit=1)[0].why.count("distance")
    place = address_of(home.library).path
    assert place is not None and stat.S_ISSOCK(place.stat().st_mode) and stat.S_IMODE(place.stat().st_mode) == 0o600
    assert lib.end_server(home) and waited(lambda: not place.exists())
    assert not lib.end_server(home)


def test_who_is_patient_gets_an_answer_by_meaning_at_once(home: Home) -> None:
    library = lib.open_library(home, patient=True)
    assert "distance" in library.search("memory limit", limit=1)[0].why


def test_a_killed_server_is_replaced_within_the_call_and_nothing_stored_is_lost(home: Home) -> None:
    library = lib.open_library(home)
    with JournalWriter.open(home.campaign(CAMPAIGN).journal) as journal:
        for number in range(2):
            journal.append(ev.PersonActed(who="a person", action="note", text=f"note {number}"))
            lib.sync(library, home, CAMPAIGN)
            os.kill(pid_of(home), signal.SIGKILL)
            began = time.monotonic()
            assert library.last_seq(CAMPAIGN) == journal.append(ev.PersonActed(who="a person", action="note", text="more")).seq - 1
            assert time.monotonic() - began < 6
    assert len({hit.entry.id for hit in library.search("note", kinds=["note"], limit=20)}) >= 2


def test_many_clients_at_once_start_one_server(home: Home) -> None:
    script = (
        "import sys; from pathlib import Path; from rsi_tui.library import open_library; from rsi_tui.locations import Home\n"
        "print(open_library(Home(Path(sys.argv[1]))).campaigns()[0].id)"
    )
    runs = [subprocess.Popen([sys.executable, "-c", script, str(home.root)], stdout=-1, text=True) for _ in range(4)]
    assert [run.communicate(timeout=60)[0].strip() for run in runs] == [CAMPAIGN] * 4

    def serving() -> list[str]:
        return subprocess.run(["pgrep", "-f", f"rsi_tui.library {home.root}$"], capture_output=True, text=True, check=False).stdout.split()

    assert waited(lambda: serving() == [str(pid_of(home))]), serving()


def test_what_a_dead_server_left_is_no_obstacle(home: Home) -> None:
    home.library.mkdir(parents=True)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(address_of(home.library).path))
    dead.close()
    (home.library / "server.lock").write_text("999999\n")
    assert lib.open_library(home).campaigns()


def test_a_server_of_other_code_is_replaced_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    lib.open_library(home)
    before = pid_of(home)
    monkeypatch.setattr(wire, "code", lambda: "another version")
    library = lib.open_library(home)
    after = pid_of(home)
    assert after != before and library.campaigns() and pid_of(home) == after  # it is no other either, and is used as it is


def test_a_home_whose_path_is_too_long_for_a_socket_has_one_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RSI_LIBRARY", raising=False)
    short = tempfile.mkdtemp(dir="/tmp")
    monkeypatch.setenv("TMPDIR", short)
    monkeypatch.setattr("tempfile.tempdir", short)
    home = write_home(tmp_path / ("long " * 20))
    place = address_of(home.library).path
    assert place is not None and len(str(place)) < 100 and place.parent.stat().st_mode & 0o77 == 0
    library = lib.open_library(home)
    assert library.campaigns()
    library.close()
    lib.end_server(home)
    place.parent.chmod(0o755)
    with pytest.raises(ExperienceError, match="open to others"):
        address_of(home.library)
    shutil.rmtree(short)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long " * 20)))
    assert address_of(home.library).path == Path(f"/tmp/rsi-{os.getuid()}/{place.name}")


def test_a_server_that_nobody_asks_ends(home: Home) -> None:
    (home.root / "config.toml").write_text("[library]\nidle_minutes = 0.02\n")
    library = lib.open_library(home)
    pid = pid_of(home)
    assert waited(lambda: not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z")
    assert library.campaigns() and pid_of(home) != pid


def test_why_it_can_not_start_is_said(home: Home) -> None:
    home.library.mkdir(parents=True)
    tables = Store.open(home.library / "experience.duckdb")
    tables._connection.execute("INSERT INTO schema_version VALUES (1000)")
    tables.close()
    with pytest.raises(LibraryError, match=r"ended at once: .*written by a newer rsi"):
        lib.open_library(home)


def test_a_folder_that_is_none_is_said(home: Home) -> None:
    home.library.write_text("no folder")
    with pytest.raises(LibraryError, match="can't be used"):
        lib.open_library(home)


def test_a_call_that_is_none_changes_nothing(home: Home) -> None:
    library = lib.open_library(home)
    assert isinstance(library, RemoteLibrary)
    for method, body in (("drop_tables", b""), ("search", b"no json"), ("search", b'{"text": 3}'), ("search", b'{"other": 1}'), ("", b"")):
        status, answer = library._answered(method, body)
        assert status == 400 and json.loads(answer)["error"] == "BadCallError"
    assert library.campaigns()


def test_a_team_reaches_it_over_tcp_with_the_token_alone(home: Home, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UsageError, match="at least 16 characters"):
        lib.token_of(home)
    (home.root / "config.toml").write_text('[library]\ntoken = "a secret of some length"\n')
    serving = subprocess.Popen([sys.executable, "-c", "from rsi_tui.cli import main; main()", "library", "serve", "--at", f"127.0.0.1:{port}"], env=os.environ | {"RSI_HOME": str(home.root)})
    try:
        mine = tmp_path / "mine"
        mine.mkdir()
        (mine / "config.toml").write_text(f'[library]\naddress = "127.0.0.1:{port}"\ntoken = "a secret of some length"\n')
        library = lib.open_library(Home(mine))
        assert [row.id for row in library.campaigns()] == [CAMPAIGN]
        write_home(mine, campaign="20261202-1")
        lib.sync(library, Home(mine), "20261202-1")
        assert lib.rebuild(library) == [] and [row.id for row in library.campaigns()] == ["20261202-1", CAMPAIGN]
        (mine / "config.toml").write_text(f'[library]\naddress = "127.0.0.1:{port}"\ntoken = "another"\n')
        with pytest.raises(LibraryError, match="asks for its token"):
            lib.open_library(Home(mine))
    finally:
        serving.terminate()
        assert serving.wait(20) in (0, -signal.SIGTERM)
    with pytest.raises(LibraryError, match="no address of a library"):
        lib.team_address("nowhere")


def test_several_threads_ask_and_store_at_once(home: Home) -> None:
    library, wrong = lib.open_library(home, patient=True), list[str]()

    def ask(number: int) -> None:
        try:
            for _ in range(5):
                if not library.search(f"memory limit {number}", limit=2):
                    wrong.append("nothing found")
                library.sync(CAMPAIGN)
        except ExperienceError as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- the commands --------------------------------------------------------------------------------------


def test_search_and_the_library_commands(home: Home, tmp_path: Path) -> None:
    run = CliRunner()
    (tmp_path / "paper.md").write_text("# Paged optimizers\n\n## Spilling\n\nOptimizer states move to host memory when the GPU is full.\n")
    added = run.invoke(app, ["library", "add", str(tmp_path / "paper.md"), "--licence", "CC-BY"], catch_exceptions=False)
    assert added.exit_code == 0 and "1 section added" in added.stdout
    found = json.loads(run.invoke(app, ["search", "optimizer states spill to the host", "--kind", "knowledge", "--json"]).stdout)
    assert found["hits"][0]["source"] == "paper.md (CC-BY)" and "distance" in found["hits"][0]["why"]
    page = run.invoke(app, ["search", "memory limit", "--kind", "failure"]).stdout
    assert "1. " in page and "why: " in page and max(map(len, page.splitlines())) <= 80
    before = json.loads(run.invoke(app, ["library", "stats", "--json"]).stdout)
    assert before["campaigns"] == 1 and before["entries"]["knowledge"] == 1
    assert "1 campaign read" in run.invoke(app, ["library", "rebuild"], catch_exceptions=False).stdout
    assert json.loads(run.invoke(app, ["library", "stats", "--json"]).stdout)["entries"] == before["entries"]
    assert "MiB now" in run.invoke(app, ["library", "compact"], catch_exceptions=False).stdout
    assert run.invoke(app, ["library", "end"]).stdout == "ended.\n"
    (tmp_path / "paper.md").write_text("# Paged optimizers\n\nAnother edition.\n")
    run.invoke(app, ["library", "add", str(tmp_path / "paper.md")], catch_exceptions=False)
    texts = [hit["text"] for hit in json.loads(run.invoke(app, ["search", "paged optimizers", "--kind", "knowledge", "--json"]).stdout)["hits"]]
    assert texts == ["Paged optimizers\nAnother edition."]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["search", " "], "say what to look for"),
        (["search", "x", "--kind", "failures"], "there is no kind 'failures'"),
        (["search", "x", "--workload", "nothing"], "no campaign on a workload named 'nothing'"),
        (["library", "add", "missing.md"], "can't be read"),
    ],
)
def test_what_a_person_gets_wrong_is_said_in_a_sentence(home: Home, words: list[str], says: str) -> None:
    result = CliRunner().invoke(app, words)
    assert says in str(result.exception) and isinstance(result.exception, UsageError | LibraryError)


def test_asking_loads_nothing_heavy() -> None:
    script = "import sys, rsi_tui.library; print([m for m in ('torch', 'duckdb', 'lancedb', 'sentence_transformers', 'uvicorn', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_address_in_words() -> None:
    assert str(lib.team_address("[::1]:7077")) == "::1:7077" and lib.team_address("host:1") == Address(host="host", port=1)
