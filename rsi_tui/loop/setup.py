"""Opening a campaign: a new one from a workload, or an interrupted one from its journal.

Nothing of a new campaign is written before everything about it was found in order; an error here
leaves the home as it was.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rsi_tui import __version__
from rsi_tui import evaluator as evaluator_room
from rsi_tui.contract.command import resolve_python
from rsi_tui.contract.libraries import unavailable_knobs
from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.contract.scope import in_scope
from rsi_tui.errors import UsageError
from rsi_tui.evaluator.compare import UpdateComparer
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.ledger import campaign_alpha
from rsi_tui.evaluator.service import Evaluator
from rsi_tui.evaluator.trial import TrialRunner
from rsi_tui.evaluator.validation import HiddenValidation
from rsi_tui.evaluator.vault import Vault
from rsi_tui.journal.chain import JournalWriter, read_events
from rsi_tui.journal.events import CampaignCreated, EngineStarted, Event, StateChanged, TrialStarted
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts
from rsi_tui.journal.home import grant_alpha
from rsi_tui.journal.steps import Steps
from rsi_tui.launch.host import fingerprint, fingerprint_hash, torch_version
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.sandbox import python_mounts
from rsi_tui.launch.spec import LaunchSpec, Mount
from rsi_tui.locations import CampaignPaths, Home
from rsi_tui.loop.context import Context
from rsi_tui.loop.recall import Recall
from rsi_tui.loop.memory import Memory
from rsi_tui.minds.protocol import Mind
from rsi_tui.repo.mirror import Mirror


@dataclass(frozen=True)
class Request:
    """What a person asked for on the command line."""

    workload: Path
    preset: str = ""
    mind: str = "builtin"
    seed: int = 0
    candidates: int | None = None
    hours: float | None = None
    usd: float | None = None
    resume: bool = False
    snapshot: bool = False
    committed: bool = False
    unsandboxed: bool = False


@dataclass
class Opened:
    """A campaign that is ready to run, and what must be closed after it."""

    context: Context
    writer: JournalWriter
    recall: Recall
    notes: tuple[str, ...]
    """sentences for the person: what was left out, what this machine lacks"""


COMPARER_MEMORY = 8 * 2**30
"""limit of the worker that compares checkpoints: three of them, in double precision one tensor at a time"""

Listen = Callable[[Sequence[Event]], Callable[[Event], None]]
"""given the events so far, what is to be told of each new one"""


def silent(past: Sequence[Event]) -> Callable[[Event], None]:
    """Tell nobody."""
    return lambda event: None


def open_campaign(
    home: Home, request: Request, mind: Mind, listen: Listen = silent, aa_pairs: int | None = None
) -> Opened:
    """Create or resume a campaign; raises an RsiError of one sentence when that can't be done.

    `aa_pairs` replaces the contract's number of A/A pairs, for measurements of the engine itself.
    """
    contract = load_contract(request.workload, request.preset)
    if aa_pairs is not None:
        contract = contract.model_copy(update={"proof": contract.proof.model_copy(update={"aa_pairs": aa_pairs})})
    launcher = LocalLauncher(sandboxed=not request.unsandboxed)
    mirror = Mirror.open(
        home,
        contract.path,
        snapshot=request.snapshot,
        committed=request.committed,
        matters=lambda path: in_scope(contract, path),
    )
    id = _resumable(home, mirror, contract) if request.resume else _new_id(home)
    paths = home.campaign(id)
    if not request.resume:
        _make_folders(paths)
    writer = JournalWriter.open(paths.journal)
    steps = Steps(_Announcing(writer, listen(writer.events)), writer.events)
    created = steps.once(
        "created", CampaignCreated, lambda: _created(request, id, contract, mirror, launcher)
    )
    steps.append(EngineStarted(pid=os.getpid(), resumed=request.resume))
    cancel = threading.Event()
    lab = _lab(contract, created, mirror, paths, launcher, steps, writer.events, cancel)
    missing = unavailable_knobs(contract)
    recall = Recall(home, created, contract)
    context = Context(
        created=created,
        contract=contract,
        usable=restrict(contract, missing),
        mirror=mirror,
        paths=paths,
        steps=steps,
        mind=mind,
        evaluator=Evaluator(lab),
        draw_alpha=lambda: grant_alpha(home, created.workload_key, created.campaign, campaign_alpha),
        memory=Memory(lab.original),
        recall=recall,
        cancel=cancel,
        deadline=time.monotonic() + 3600 * created.hours if created.hours else None,
    )
    return Opened(context, writer, recall, (*mirror.notes, *missing.values()))


def restrict(contract: Contract, missing: dict[str, str]) -> Contract:
    """The contract with the knobs that this machine can't set held at their default."""
    knobs = tuple(k.model_copy(update={"values": (k.default,)}) if k.name in missing else k for k in contract.knobs)
    return contract.model_copy(update={"knobs": knobs})


class _Announcing:
    """A journal writer that tells a listener of each event once it is on disk."""

    def __init__(self, writer: JournalWriter, listener: Callable[[Event], None]) -> None:
        self._writer, self._listener = writer, listener

    def append(self, body: object, step: str = "") -> Event:
        event = self._writer.append(body, step)  # type: ignore[arg-type]
        self._listener(event)
        return event


def _make_folders(paths: CampaignPaths) -> None:
    paths.root.mkdir(parents=True)
    paths.evaluator.mkdir(parents=True, mode=0o700)
    paths.commands.mkdir()
    paths.reports.mkdir()


def _new_id(home: Home) -> str:
    """YYYYMMDD-HHMMSS-xxxx, in UTC."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _resumable(home: Home, mirror: Mirror, contract: Contract) -> str:
    """The newest unfinished campaign on this workload and contract; UsageError when there is none."""
    ended = changed = ""
    for folder in sorted(home.campaigns.glob("*"), reverse=True) if home.campaigns.is_dir() else []:
        journal = home.campaign(folder.name).journal
        if not journal.exists():
            continue
        events = read_events(journal)
        if not events or not isinstance(created := events[0].body, CampaignCreated):
            continue
        if created.workload_key != mirror.key or created.preset != contract.preset:
            continue
        states = [e.body.state for e in events if isinstance(e.body, StateChanged)]
        if states and states[-1] in ("finished", "stopped"):
            ended = ended or folder.name
        elif created.contract_hash != contract.hash or created.base_commit != mirror.base:
            changed = changed or folder.name
        else:
            return folder.name
    if changed:
        raise UsageError(
            f"Campaign {changed} can't be resumed because workload.toml or the program changed since: "
            "undo that change, or start anew without --resume."
        )
    hint = f"; the newest, {ended}, has ended" if ended else ""
    raise UsageError(f"No interrupted campaign on this workload{hint}: start one without --resume.")


def _created(
    request: Request, id: str, contract: Contract, mirror: Mirror, launcher: LocalLauncher
) -> CampaignCreated:
    host = fingerprint()
    python = Path(resolve_python(contract))
    host = {**host, "software": f"{host['software']}, torch {torch_version(python)}"}
    statistical = contract.invariants.weights == "statistical"
    trust = "C" if launcher.trust_cap() == "C" else "B" if statistical else "A"
    return CampaignCreated(
        campaign=id,
        workload=contract.name,
        workload_key=mirror.key,
        folder=contract.folder,
        contract_hash=contract.hash,
        contract=contract.model_dump(mode="json"),
        base_commit=mirror.base,
        preset=contract.preset,
        mind=request.mind,
        seed=request.seed,
        max_candidates=request.candidates or contract.proof.max_candidates,
        hours=request.hours,
        usd=request.usd,
        trust=trust,
        sandbox=launcher.describe(),
        host=host,
        version=__version__,
    )


def _lab(
    contract: Contract,
    created: CampaignCreated,
    mirror: Mirror,
    paths: CampaignPaths,
    launcher: LocalLauncher,
    steps: Steps,
    events: list[Event],
    cancel: threading.Event,
) -> Lab:
    python = Path(resolve_python(contract))
    original = CandidateFacts(id=ORIGINAL, commit=mirror.base, base=mirror.base, knobs=contract.defaults)
    runner = TrialRunner(contract, launcher, mirror, paths, python)
    vault = Vault(paths.vault)
    holdouts = {}
    if contract.invariants.validation:
        base = runner.base_tree(original.commit)
        holdouts = {
            purpose: HiddenValidation(contract, launcher, python, base, paths.hidden / purpose, paths.scratch)
            for purpose in ("verify", "claim")
        }
    return Lab(
        contract=contract,
        original=original,
        runner=runner,
        steps=steps,
        vault=vault,
        open_comparer=lambda: open_comparer(launcher, paths, contract.launch.checkpoint_key),
        holdouts=holdouts,
        cancel=cancel,
        fingerprint=fingerprint_hash(created.host),
        trials=sum(1 for event in events if isinstance(event.body, TrialStarted)),
    )


def open_comparer(launcher: LocalLauncher, paths: CampaignPaths, key: str) -> UpdateComparer:
    """The warm worker that compares checkpoints: sandboxed, one thread, seeing the scratch folder read-only."""
    python = Path(sys.executable)
    script = "/rsi/compare_worker.py"
    scratch = paths.scratch.absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    spec = LaunchSpec(
        argv=(str(python), "-P", script),
        cwd="/",
        mounts=(
            *python_mounts(python),
            Mount(compare_worker_file(), script),
            Mount(scratch, str(scratch)),
        ),
        env={"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        timeout_s=0.0,
        memory_limit_bytes=COMPARER_MEMORY,
    )
    return UpdateComparer(lambda: launcher.open_worker(spec), key)


def compare_worker_file() -> Path:
    """The worker's source; it is run as a file, never imported here, since it loads torch."""
    return Path(evaluator_room.__file__).parent / "compare_worker.py"
