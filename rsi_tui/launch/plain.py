"""Running without a sandbox: the same spec on the bare machine (trust level C).

There are no mounts, so paths inside the sandbox are translated to where their folders really lie.
Mounts inside another mount, such as input files inside a tree, are laid there as symbolic links for
the time of the run. Nothing is hidden, nothing is read-only, the network is there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from rsi_tui.launch.spec import LaunchSpec


def translate(spec: LaunchSpec) -> LaunchSpec:
    """The spec with every path below a mount's target replaced by where it lies on this machine."""
    sources = {mount.target: str(mount.source) for mount in spec.mounts if mount.target != "/"}
    targets = sorted(sources, key=len, reverse=True)
    if not targets:
        return spec
    # A target counts only as a whole path: not '/job' in '/jobs' or in '/x/job'.
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, targets))})(?![\w.-])")

    def real(text: str) -> str:
        return pattern.sub(lambda match: sources[match[1]], text)

    return replace(
        spec,
        argv=tuple(map(real, spec.argv)),
        cwd=real(spec.cwd),
        env={name: real(value) for name, value in spec.env.items()},
    )


@contextlib.contextmanager
def nested_mounts(spec: LaunchSpec) -> Iterator[None]:
    """Links for mounts that lie inside another mount and are not there yet; taken away at the end."""
    made: list[Path] = []
    outer = {mount.target: mount.source for mount in spec.mounts}
    try:
        for mount in spec.mounts:
            target = PurePosixPath(mount.target)
            parent = next((str(p) for p in target.parents if str(p) in outer), None)
            if parent is None:
                continue
            place = outer[parent] / target.relative_to(parent)
            if place.exists() or place.resolve() == mount.source.resolve():
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(mount.source)
            made.append(place)
        yield
    finally:
        for place in made:
            place.unlink(missing_ok=True)
