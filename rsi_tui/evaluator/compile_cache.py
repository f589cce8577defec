"""Compile caches: one a candidate, filled by a run whose cost every later run is charged with.

What a compiler leaves in its cache folders (inductor, Triton, extensions) during a candidate's first full run is
kept, and later runs of the same candidate find a copy of it. Promises: no run finds what a run of its own block left,
which had the same seed and length; none finds what another candidate left; what a later run writes is thrown away with
it; only plain files are kept. What the first run took beyond a run without a compile, in start-up, steps or end, is
added to every later one, and the memory it needed counts as theirs, so that a candidate can't move work into a
run that is not counted. Runs under a hard memory limit, of perturbed launches and of profiles start without a cache.

Does not promise that only compilers write there.

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

CACHE = "/rsi/cache"
"""where a trial finds its caches"""
ENVIRONMENT = {
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "TORCH_EXTENSIONS_DIR": f"{CACHE}/extensions",
    "CUDA_CACHE_PATH": f"{CACHE}/cuda",
}
MAX_BYTES, MAX_FILES = 2**30, 100_000
"""larger caches are not kept: each run copies them"""


@dataclass(frozen=True)
class ColdRun:
    """The run that filled a candidate's cache."""

    trial: str
    block: str
    steps: int
    wall_s: float
    peak_bytes: int | None

    def charge(self, facts: TrialFacts, amortise_over: int) -> TrialFacts:
        """The facts of a run that found the cache, with what the compile had cost; unchanged where it has no times.

        `amortise_over`: steps that start-up and end are spread over in a score.
        """
        if facts.startup_s is None or facts.step_s is None or facts.teardown_s is None or facts.score_s is None:
            return facts
        charged = max(0.0, self.wall_s - self.steps * facts.step_s - facts.startup_s - facts.teardown_s)
        peaks = [peak for peak in (facts.peak_bytes, self.peak_bytes) if peak is not None]
        more = {"startup_s": facts.startup_s + charged, "score_s": facts.score_s + charged / amortise_over}
        return facts.model_copy(update={**more, "charged_s": charged, "peak_bytes": max(peaks, default=None)})


class CompileCaches:
    """The caches of one campaign's candidates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lend(self, candidate: str, block: str, place: Path) -> ColdRun | None:
        """Copy a candidate's cache to a run's own folder, which is made; None when the run has to start without."""
        kept = self._folder / candidate
        cold = _read(kept / "cold.json")
        if cold is None or cold.block == block:
            place.mkdir(parents=True, mode=0o700)
            return None
        shutil.copytree(kept / "files", place)
        return cold

    def keep(self, facts: TrialFacts, place: Path) -> None:
        """Keep what a candidate's first full run left; nothing happens when there is a cache, or nothing to keep."""
        kept = self._folder / facts.candidate
        if kept.exists() or facts.outcome != "ok" or not facts.steps:
            return
        left = measure(place, MAX_FILES + 1)
        if not 0 < left.entries <= MAX_FILES or left.too_deep or left.blocks_bytes > MAX_BYTES:
            return
        if not plain_content(place, place):
            return
        half = self._folder / f".{facts.candidate}.{os.getpid()}"
        remove_tree(half)
        half.mkdir(parents=True, mode=0o700)
        place.rename(half / "files")
        cold = ColdRun(facts.id, facts.block, facts.steps, facts.wall_s, facts.peak_bytes)
        (half / "cold.json").write_text(json.dumps(asdict(cold)))
        half.rename(kept)


def _read(path: Path) -> ColdRun | None:
    try:
        return ColdRun(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
