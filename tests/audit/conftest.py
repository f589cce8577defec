"""One whole campaign on a simulated machine, for all tests of this room that read a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.locations import Home
from rsi_tui.loop.engine import run
from rsi_tui.loop.setup import Request, silent
from tests.support.campaigns import PatchMind
from tests.support.simulated import PATCHES, simulated, simulated_repository


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, str]:
    """(home, campaign): two changes adopted and claimed, others slower, failed and refused. Read only: copy before you change it."""
    folder = tmp_path_factory.mktemp("simulated")
    home = Home(folder / "home")
    with simulated(same_draws=True):
        request = Request(simulated_repository(folder / "program"), preset="simulated", candidates=len(PATCHES))
        ended = run(home, request, PatchMind(list(PATCHES)), silent)
    assert ended.exit_code == 0
    return home, ended.campaign


@pytest.fixture
def copied(finished: tuple[Home, str], tmp_path: Path) -> tuple[Home, str]:
    """The same in a home of the test's own."""
    import shutil

    shutil.copytree(finished[0].root, tmp_path / "home")
    return Home(tmp_path / "home"), finished[1]
