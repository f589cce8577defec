"""Compile caches: filled by a short run of the candidate's own, whose whole time every later run is charged with.

A candidate whose first run leaves something where compilers keep their work (inductor, Triton, extensions) is run once
more, for a few steps, on a seed that no other run has; what that run leaves is the cache, and later runs find a copy
of it. Promises: no run finds what another than that one left, nor what another candidate left; what a later run writes
goes with it; only plain files are kept; the charge is one constant for a candidate, the wall time of that run with
its start and its steps, and its memory counts as theirs. So a candidate can neither move work into a run that is not
counted nor hide a slow start behind the charge, and it knows no seed of a run that is judged.

Where what is learned is compared over seeds alone, nothing is kept: weights could pass from run to run. Runs under a
hard memory limit, of perturbed launches and of profiles start without.

Does not promise that only compilers write there, nor that the charge is exact: it holds the imports twice, and one run
is one draw of the time that a compile takes.

    folder/CANDIDATE.compiles         its runs leave something
    folder/CANDIDATE/files, cold.json
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from rsi_tui.journal.facts import TrialFacts
from rsi_tui.launch.folders import measure, plain_content, remove_tree
from rsi_tui.launch.spec import Mount

CACHE = "/rsi/cache"
"""where a trial finds its caches"""
ENVIRONMENT = {
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "TORCH_EXTENSIONS_DIR": f"{CACHE}/extensions",
    "CUDA_CACHE_PATH": f"{CACHE}/cuda",
}
_HEADERS = "/tmp/torchinductor_nobody"
"""where inductor keeps precompiled C++ headers, whatever folder it is told"""
MAX_BYTES, MAX_FILES = 2**30, 100_000
"""larger caches are not kept: each run copies them"""


def cache_mounts(place: Path) -> tuple[Mount, ...]:
    """How a trial sees its own folder for what compilers leave, which must be there."""
    headers = place / "headers"
    headers.mkdir(mode=0o700, exist_ok=True)
    return Mount(place, CACHE, writable=True), Mount(headers, _HEADERS, writable=True)


@dataclass(frozen=True)
class ColdRun:
    """The run that filled a candidate's cache."""

    trial: str
    wall_s: float
    peak_bytes: int | None

    def charge(self, facts: TrialFacts, amortise_over: int) -> TrialFacts:
        """The facts of a run that found the cache, with what filling it took.

        `amortise_over`: steps that start-up and end are spread over in a score. A run without times keeps none.
        """
        more: dict[str, object] = {"charged_s": self.wall_s, "charged_from": self.trial}
        if facts.startup_s is not None and facts.score_s is not None:
            more |= {"startup_s": facts.startup_s + self.wall_s, "score_s": facts.score_s + self.wall_s / amortise_over}
        if facts.peak_bytes is not None and self.peak_bytes is not None:
            more["peak_bytes"] = max(facts.peak_bytes, self.peak_bytes)
        return facts.model_copy(update=more)


class CompileCaches:
    """The caches of one campaign's candidates. Nothing that a program left there raises an error here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wanted(self, candidate: str) -> bool:
        """Did a run of the candidate leave something, and is there no cache yet?"""
        return (self._folder / f"{candidate}.compiles").exists() and not (self._folder / candidate).exists()

    def note(self, candidate: str, place: Path) -> None:
        """Remember whether a run left something; nothing of it is kept."""
        if any(path.is_file() and not path.is_symlink() and _size(path) for path in _entries(place)):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self._folder / f"{candidate}.compiles").touch()

    def lend(self, candidate: str, place: Path) -> ColdRun | None:
        """Copy a candidate's cache to a run's own folder, which is made; None when the run starts without."""
        kept = self._folder / candidate
        try:
            cold = ColdRun(**json.loads((kept / "cold.json").read_text()))
            shutil.copytree(kept / "files", place)
        except (OSError, ValueError, TypeError):  # none, or damaged: a run without a cache is right all the same
            remove_tree(place)
            place.mkdir(parents=True, mode=0o700)
            return None
        return cold

    def fill(self, facts: TrialFacts, place: Path) -> None:
        """Keep what a candidate's own short run left; nothing happens when it failed or left what can't be kept."""
        kept = self._folder / facts.candidate
        if kept.exists() or facts.outcome != "ok" or not _keepable(place):
            return
        half = self._folder / f".{facts.candidate}.{os.getpid()}"
        remove_tree(half)
        half.mkdir(parents=True, mode=0o700)
        place.rename(half / "files")
        with (half / "cold.json").open("w") as file:
            json.dump(asdict(ColdRun(facts.id, facts.wall_s, facts.peak_bytes)), file)
            file.flush()
            os.fsync(file.fileno())
        half.rename(kept)


def _entries(place: Path) -> list[Path]:
    """What lies below a folder; nothing where there is too much of it."""
    found = measure(place, MAX_FILES + 1)
    return [] if found.too_deep or found.closed or found.entries > MAX_FILES else list(place.rglob("*"))


def _size(path: Path) -> int:
    """Bytes of a file, holes counted as if they were written."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _keepable(place: Path) -> bool:
    """Plain files only, that can be read, not too many and not too large."""
    found = _entries(place)
    size = sum(_size(path) for path in found if path.is_file() and not path.is_symlink())
    readable = all(os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)) for path in found)
    return 0 < size <= MAX_BYTES and readable and plain_content(place, place)
