"""The adapter of a program that lacks a seed, a progress line or a checkpoint: a patch that lies under every candidate.

It becomes a commit of the mirror that everything descends from, the original included; the user's repository never sees
it, and diffs of candidates do not contain it. What it puts into editable files can be edited like the rest of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from rsi_tui.contract.model import Contract
from rsi_tui.errors import ContractError, PatchError
from rsi_tui.repo.mirror import Mirror
from rsi_tui.repo.patch import apply_diff


def adapted(mirror: Mirror, contract: Contract) -> Mirror:
    """The mirror at the program with its adapter; the mirror as it is where the contract names none.

    Raises ContractError, one sentence, for a patch that can't be read, does not fit or changes nothing.
    """
    name = contract.launch.base_patch
    if not name:
        return mirror
    try:
        patch = (contract.path / name).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ContractError(f"workload.toml: [launch] base_patch {name} can't be read: {error.strerror}.") from error
    before = mirror.read_files(mirror.base)
    try:
        after = apply_diff(before, patch)
        changed = {path: text for path, text in after.items() if before.get(path) != text}
        if not changed:
            raise ContractError(f"workload.toml: [launch] base_patch {name} changes nothing; leave it out, or mend it.")
        ref = f"refs/rsi/adapters/{hashlib.sha256(patch.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
        base = mirror.commit_files(mirror.base, changed, f"adapter {name}", ref)
    except PatchError as error:
        raise ContractError(f"workload.toml: [launch] base_patch {name} does not fit the program: {error}") from error
    return replace(mirror, base=base, notes=(*mirror.notes, f"Every run has the adapter {name} under it."))
