"""Running git so that nothing of the user's configuration, hooks or environment takes part.

Raises RepositoryError when git is missing and GitFailed (a RepositoryError too) when a command
fails; callers that know what the failure means say it in their own words.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rsi_tui.environment import for_child
from rsi_tui.errors import RepositoryError

SAFE = (
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.fsmonitor=false",
    "-c", "core.quotePath=false",
    "-c", "core.attributesFile=/dev/null",
    "-c", "core.autocrlf=false",
    "-c", "core.symlinks=true",
    "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
    "-c", "protocol.allow=never",
)  # fmt: skip
"""options for the mirror, where nothing but objects and refs of ours is used"""
READ_ONLY = (
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.fsmonitor=false",
    "-c", "core.untrackedCache=false",
    "-c", "core.quotePath=false",
    "-c", "safe.directory=*",
    "-c", "protocol.allow=never",
)  # fmt: skip
"""options for reading the user's own repository, whose configuration otherwise counts"""


class GitFailed(RepositoryError):
    """A git command failed; the message is git's own last line."""


def clean_environment() -> dict[str, str]:
    """Our environment without keys of an API or any GIT_ variable, in a language that we can read."""
    env = {name: value for name, value in for_child().items() if not name.startswith("GIT_")}
    return env | {
        "LC_ALL": "C",
        "LANGUAGE": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
    }


def isolated_environment() -> dict[str, str]:
    """The same without the user's and the system's configuration."""
    return clean_environment() | {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
    }


def run_git(
    options: Sequence[str], *args: str, env: Mapping[str, str], stdin: bytes = b"", cwd: Path | None = None
) -> bytes:
    """stdout of one git command; raises GitFailed when its exit code is not 0."""
    try:
        done = subprocess.run(
            ["git", *options, *args], input=stdin, env=dict(env), cwd=cwd, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise RepositoryError(f"the folder {cwd} does not exist.") from error
        raise RepositoryError("git is not installed; install it (Debian: apt-get install git).") from error
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        said = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1])
        raise GitFailed(f"git {args[0]} failed: {said}")
    return done.stdout


def text_of(data: bytes) -> str:
    """Bytes as text that turns back into the very same bytes with the same codec."""
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
