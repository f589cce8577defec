"""One suite for every way to reach a library: a new one joins `WAYS` and has to pass all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experience.encoder import MiniLM
from experience.interface import ExperienceLibrary, Reader
from experience.library import open_library
from tests.experience.batches import Journals, batch

Open = Callable[[Path, Reader], ExperienceLibrary]


@pytest.fixture(scope="session")
def encoder() -> MiniLM:
    """The real encoder, loaded once: it takes seconds."""
    return MiniLM()


def direct(encoder: MiniLM) -> Open:
    return lambda folder, reader: open_library(folder, reader, encoder)


WAYS = {"direct": direct}


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
