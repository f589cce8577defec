"""Errors of the library. Whoever opens it turns them into errors of its own tree."""

from __future__ import annotations


class ExperienceError(Exception):
    """Base: one clear sentence that says what to do."""


class LockedError(ExperienceError):
    """Another process has the library open."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid
        """the process that holds it; None when the system does not say"""


class DamagedError(ExperienceError):
    """The vectors can't be read; the tables rebuild them."""


class TablesDamagedError(ExperienceError):
    """The tables can't be read; the journals rebuild them."""


class EncoderError(ExperienceError):
    """Meaning can't be searched here: the encoder is missing, altered or failing."""


class UnreadableJournalError(ExperienceError):
    """A reader can't give a campaign's rows because its journal is damaged."""
