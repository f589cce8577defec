"""Rules for paths: what lies outside the scope, what is no text, and what Python or git runs by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from rsi_tui.contract.model import Contract
from rsi_tui.contract.scope import in_scope
from rsi_tui.journal.facts import FindingFacts
from rsi_tui.loop.review_rules.source import Severity

Changed = tuple[str, str, str]
"""(path, mode before, mode after); a mode of zeros or '' is a file that is not there"""

SHADOWED = sys.stdlib_module_names | {
    "torch", "numpy", "scipy", "triton", "transformers", "tokenizers", "datasets", "accelerate", "deepspeed", "psutil", "rsi_tui",
}
RUN_BY_PYTHON = ("sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py", "pyvenv.cfg", "setup.cfg", "__pycache__")
BLOBS = (
    ".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".pyc", ".pyo", ".bin", ".pt", ".pth", ".ckpt", ".safetensors", ".npy", ".npz",
    ".pkl", ".pickle", ".whl", ".egg", ".cubin", ".ptx", ".fatbin", ".zip", ".gz", ".xz", ".bz2", ".tar", ".zst", ".exe", ".jar",
)


def paths(
    before: Mapping[str, str], after: Mapping[str, str], changed: Sequence[Changed], contract: Contract
) -> Iterator[FindingFacts]:
    """Findings about the paths of a change, whatever the files hold."""
    for path, mode_before, mode_after in changed:
        name = path.rpartition("/")[2].lower()
        gone = not mode_after.strip("0")
        if not in_scope(contract, path):
            yield _finding("out_of_scope", "scope", path, "The contract does not allow this file to change.")
        if mode_after == "120000":
            yield _finding("link", "scope", path, "A symbolic link leads out of what was reviewed.")
        elif mode_after == "160000":
            yield _finding("submodule", "scope", path, "A submodule brings in code that was not reviewed.")
        if name in (".gitattributes", ".gitmodules", ".gitconfig") or "hooks/" in f"{path}/" or ".git/" in f"/{path}":
            yield _finding("git_settings", "scope", path, "Settings and hooks of git are not part of a training program.")
        if gone:
            continue
        if name in RUN_BY_PYTHON or name.endswith(".pth") or "__pycache__/" in path:
            yield _finding("import_hook", "exploit", path, "Python or a tool runs this file by itself.")
        elif name.endswith(BLOBS) or "\0" in after.get(path, ""):
            yield _finding("blob", "exploit", path, "A binary file can't be reviewed.")
        module = _importable(path, contract)
        if module in SHADOWED and path not in before:
            yield _finding("shadowed_module", "exploit", path, f"It hides the module {module}.")
        if mode_after == "100755" and mode_before != "100755":
            yield _finding("executable", "warning", path, "The file becomes executable.")


def _importable(path: str, contract: Contract) -> str:
    """Name under which the file is imported from the program's folder or beside its script; '' when it is not."""
    scripts = [w.rpartition("/")[0] for w in contract.launch.command.split() if w.endswith(".py")]
    for folder in ("", contract.launch.workdir, *scripts):
        prefix = f"{folder}/".removeprefix("./") if folder not in ("", ".") else ""
        if path.startswith(prefix) and path.endswith(".py"):
            inner = path.removeprefix(prefix).removesuffix(".py").removesuffix("/__init__")
            if "/" not in inner:
                return inner
    return ""


def _finding(rule: str, severity: Severity, path: str, text: str) -> FindingFacts:
    return FindingFacts(rule=rule, severity=severity, path=path, line=1, text=text)
