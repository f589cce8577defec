"""The tree of errors that a person can meet, and the exit code of each.

    RsiError                     1   anything below, caught in one place (cli.main)
    ├── UsageError               2   a command line that can't be carried out
    ├── ContractError            2   workload.toml is wrong, or the program breaks what it promises
    ├── RepositoryError          2   the training repository can't be used as it is
    ├── GateError                3   refused: a gate of the evaluator or the sandbox said no
    │   └── SandboxError         3   no sandbox here, and --unsandboxed was not given
    ├── BudgetError              5   money or hours ran out before the claim
    ├── PatchError               1   a change does not apply; names the first line that differs
    ├── MindError                1   who thinks for the roles can't be reached; the campaign can be resumed
    ├── JournalError             1   the record is damaged, locked or of an unknown version
    └── LibraryError             1   the experience library can't be opened

Each message is one sentence that says what to do. No error of this tree is shown with a traceback.
"""

from __future__ import annotations


class RsiError(Exception):
    """Base of every error whose message is meant for a person."""

    exit_code = 1


class UsageError(RsiError):
    """The command line can't be carried out as given."""

    exit_code = 2


class ContractError(RsiError):
    """workload.toml is wrong, or the program does not do what it promises there."""

    exit_code = 2


class RepositoryError(RsiError):
    """The training repository can't be used as it is."""

    exit_code = 2


class GateError(RsiError):
    """A gate refused to go on."""

    exit_code = 3


class SandboxError(GateError):
    """No sandbox can be built on this machine."""


class BudgetError(RsiError):
    """Money or hours ran out before the claim."""

    exit_code = 5


class PatchError(RsiError):
    """A change can't be applied unambiguously; the tree is untouched."""


class MindError(RsiError):
    """The model behind a mind can't be reached, or refuses to serve; what was recorded stays."""


class JournalError(RsiError):
    """The journal is damaged, held by another engine, or of an unknown version."""


class LibraryError(RsiError):
    """The experience library can't be opened or answered wrongly."""
