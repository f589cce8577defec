import os
import subprocess
import sys
import threading
import time

import pytest

from rsi_tui import locations
from rsi_tui.errors import GateError
from rsi_tui.launch.lease import holder, host_lease


@pytest.fixture(autouse=True)
def own_lock(tmp_path, monkeypatch):
    path = tmp_path / "rsi-host.lease"
    monkeypatch.setattr(locations, "host_lease", lambda: path)
    return path


def test_one_at_a_time_and_the_waiting_one_is_told_once():
    told: list[str] = []
    order: list[str] = []

    def second() -> None:
        with host_lease("campaign two", on_wait=told.append):
            order.append("two")

    with host_lease("campaign one"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.7)
        order.append("one")
    thread.join()
    assert order == ["one", "two"]
    assert len(told) == 1
    assert "campaign one" in told[0] and f"process {os.getpid()}" in told[0]


def test_who_does_not_want_to_wait_learns_who_holds_it():
    with host_lease("campaign one"):
        assert "campaign one" in holder()
        with pytest.raises(GateError, match=r"campaign one"), host_lease("campaign two", wait=False):
            pass
    assert holder() == ""
    with host_lease("campaign two", wait=False):
        pass


def test_it_dies_with_its_holder(own_lock):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom rsi_tui import locations\n"
        "from rsi_tui.launch.lease import host_lease\n"
        "locations.host_lease = lambda: Path(sys.argv[1])\n"
        "with host_lease('the dead'):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(own_lock)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(GateError, match=r"the dead"), host_lease("me", wait=False):
            pass
        other.kill()
    assert own_lock.read_text() != ""
    with host_lease("me", wait=False):
        assert "me" in own_lock.read_text()


def test_every_user_may_write_the_file_whatever_the_umask(own_lock):
    old = os.umask(0o077)
    try:
        with host_lease("me"):
            pass
    finally:
        os.umask(old)
    assert own_lock.stat().st_mode & 0o777 == 0o666


def test_a_link_in_its_place_is_not_followed(own_lock, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    own_lock.symlink_to(victim)
    with pytest.raises(GateError, match=r"can't be opened"), host_lease("me"):
        pass
    assert victim.read_text() == "precious"


def test_a_file_that_was_cleaned_away_guards_nothing(own_lock):
    with host_lease("one"):
        own_lock.unlink()
    with host_lease("two", wait=False):
        assert "two" in own_lock.read_text()


def test_an_error_inside_gives_it_back():
    with pytest.raises(ZeroDivisionError), host_lease("one"):
        raise ZeroDivisionError
    with host_lease("two", wait=False):
        pass


def test_who_waits_can_give_up_and_gets_its_turn():
    turns: list[str] = []

    def greedy() -> None:
        for _ in range(5):
            with host_lease("greedy"):
                turns.append("greedy")
                time.sleep(0.4)

    thread = threading.Thread(target=greedy)
    thread.start()
    time.sleep(0.1)
    with host_lease("patient"):
        turns.append("patient")
    thread.join()
    assert turns.index("patient") < len(turns) - 1, "a waiter is let in between two blocks"

    def give_up() -> None:
        raise KeyboardInterrupt

    with host_lease("holder"), pytest.raises(KeyboardInterrupt):
        taken_again(give_up)


def taken_again(meanwhile):
    with host_lease("second", meanwhile=meanwhile):
        raise AssertionError("the lease was given twice")


def test_a_lent_lease_is_free_for_others_and_then_ours_again():
    with host_lease("campaign one") as lease:
        with lease.lent():
            assert holder() == ""
            with host_lease("campaign two", wait=False):
                assert "campaign two" in holder()
        assert "campaign one" in holder()
    assert holder() == ""
    with lease.lent():
        pass
    assert holder() == ""


def test_who_gives_up_while_it_is_lent_does_not_queue_again():
    with pytest.raises(InterruptedError), host_lease("campaign one") as lease, lease.lent():
        raise InterruptedError
    assert holder() == ""
