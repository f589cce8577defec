"""One suite for every way to reach a library: a new one joins `WAYS` and has to pass all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experience.address import address_of
from experience.client import RemoteLibrary
from experience.encoder import MiniLM
from experience.errors import ExperienceError
from experience.interface import ExperienceLibrary, Reader
from experience.library import open_library
from experience.server import serve
from tests.experience.batches import Journals, batch

Open = Callable[[Path, Reader], ExperienceLibrary]


@pytest.fixture(scope="session")
def encoder() -> MiniLM:
    """The real encoder, loaded once: it takes seconds."""
    return MiniLM()


def direct(encoder: MiniLM) -> Open:
    return lambda folder, reader: open_library(folder, reader, encoder)


class Served(RemoteLibrary):
    """A client whose server lives in a thread of this process, and ends with it."""

    def __init__(self, folder: Path, reader: Reader, encoder: MiniLM) -> None:
        super().__init__(address_of(folder), self._look, patient=True)
        self._failure: list[BaseException] = []
        self._thread = threading.Thread(target=self._serve, args=(folder, reader, encoder), daemon=True)
        self._thread.start()
        self.last_seq("")

    def _serve(self, folder: Path, reader: Reader, encoder: MiniLM) -> None:
        try:
            serve(folder, reader, address_of(folder), encoder=encoder)
        except ExperienceError as error:
            self._failure.append(error)

    def _look(self) -> None:
        if self._failure:
            raise self._failure[0]

    def close(self) -> None:
        self.end_server()
        self._thread.join(20)
        assert not self._thread.is_alive()


def served(encoder: MiniLM) -> Open:
    return lambda folder, reader: Served(folder, reader, encoder)


WAYS = {"direct": direct, "served": served}


@pytest.fixture(params=sorted(WAYS), scope="session")
def open_at(request: pytest.FixtureRequest, encoder: MiniLM) -> Open:
    """Opens a library in a folder."""
    return WAYS[request.param](encoder)


@pytest.fixture
def library(open_at: Open, tmp_path: Path) -> Iterator[ExperienceLibrary]:
    """A library with one campaign."""
    opened = open_at(tmp_path / "library", Journals([batch()]))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shared(open_at: Open, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExperienceLibrary]:
    """The same for tests that only read."""
    opened = open_at(tmp_path_factory.mktemp("shared") / "library", Journals([batch()]))
    yield opened
    opened.close()
