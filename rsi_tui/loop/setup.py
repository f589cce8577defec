"""Opening a campaign: a new one from a workload, or an interrupted one from its journal.

Nothing of a new campaign is written before everything about it was found in order, and what was
written is taken back when opening it fails all the same; an error here leaves the home as it was.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from rsi_tui import __version__
from rsi_tui import evaluator as evaluator_room
from rsi_tui.config import load_settings
from rsi_tui.contract.command import resolve_python
from rsi_tui.contract.libraries import unavailable_knobs
from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.contract.scope import in_scope
from rsi_tui.errors import ContractError
from rsi_tui.evaluator.compare import UpdateComparer
from rsi_tui.evaluator.lab import Lab
from rsi_tui.evaluator.ledger import campaign_alpha
from rsi_tui.evaluator.service import Evaluator
from rsi_tui.evaluator.trial import TrialRunner
from rsi_tui.evaluator.validation import HiddenValidation
from rsi_tui.evaluator.vault import Vault
from rsi_tui.journal.chain import JournalWriter
from rsi_tui.journal.events import CampaignCreated, EngineStarted, Event, PersonActed, TrialFinished, TrialStarted
from rsi_tui.journal.facts import ORIGINAL, CandidateFacts
from rsi_tui.journal.home import grant_alpha
from rsi_tui.journal.home_version import check_home
from rsi_tui.journal.steps import Steps
from rsi_tui.launch.host import fingerprint, fingerprint_hash, torch_version
from rsi_tui.launch.local import LocalLauncher
from rsi_tui.launch.memory import reclaim
from rsi_tui.launch.sandbox import python_mounts
from rsi_tui.launch.spec import LaunchSpec, Mount
from rsi_tui.locations import CampaignPaths, Home
from rsi_tui.loop.adapting import adapted
from rsi_tui.loop.context import Context
from rsi_tui.loop.lending import lend_room
from rsi_tui.loop.memory import Memory
from rsi_tui.loop.recall import Recall
from rsi_tui.loop.resuming import Kind, last_state, require_same, seconds_spent, stop_recorded, unfinished
from rsi_tui.loop.revoking import waiting_vetoes
from rsi_tui.loop.steering import Steering
from rsi_tui.minds.choose import mind_named
from rsi_tui.minds.protocol import Mind
from rsi_tui.minds.room import Lodger
from rsi_tui.repo.mirror import Mirror


@dataclass(frozen=True)
class Request:
    """What a person asked for on the command line."""

    workload: Path
    preset: str = ""
    kind: Kind = "campaign"
    mind: str | None = None
    """None is the builtin one, or that of the campaign that is resumed"""
    candidates: int | None = None
    hours: float | None = None
    usd: float | None = None
    """most that calls to a model may cost; None is the settings' limit, if any"""
    retry: bool = False
    """try again what failed before under the same conditions"""
    approval: bool = False
    """what is proven waits for a person's word"""
    resume: bool = False
    snapshot: bool = False
    committed: bool = False
    unsandboxed: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Those of the flags that resuming needs again."""
        given = {"--snapshot": self.snapshot, "--committed": self.committed, "--unsandboxed": self.unsandboxed}
        return tuple(flag for flag, on in given.items() if on)


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

T = TypeVar("T")
Listen = Callable[[Sequence[Event]], Callable[[Event], None]]
"""given the events so far, what is to be told of each new one"""


def silent(past: Sequence[Event]) -> Callable[[Event], None]:
    """Tell nobody."""
    return lambda event: None


def open_campaign(
    home: Home,
    request: Request,
    mind: Mind | None = None,
    listen: Listen = silent,
    tell: Callable[[str], None] = lambda sentence: None,
    aa_pairs: int | None = None,
) -> Opened:
    """Create or resume a campaign; raises an RsiError of one sentence when that can't be done.

    `mind` stands in for the one that is named; `tell` is given sentences for the person while the campaign runs;
    `aa_pairs` replaces the contract's number of A/A pairs, for measurements of the engine itself.
    """
    return open_prepared(prepare(home, request, mind, tell, aa_pairs), listen)


@dataclass(frozen=True)
class Prepared:
    """What a campaign is made of before anything of it is written."""

    home: Home
    request: Request
    contract: Contract
    launcher: LocalLauncher
    mirror: Mirror
    created: CampaignCreated
    mind: Mind
    tell: Callable[[str], None]

    @property
    def paths(self) -> CampaignPaths:
        return self.home.campaign(self.created.campaign)


def prepare(
    home: Home,
    request: Request,
    mind: Mind | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
    aa_pairs: int | None = None,
) -> Prepared:
    """Everything about a campaign that can be found out before its journal is made; as `open_campaign`."""
    contract = load_contract(request.workload, request.preset)
    if aa_pairs is not None:
        contract = contract.model_copy(update={"proof": contract.proof.model_copy(update={"aa_pairs": aa_pairs})})
    launcher = LocalLauncher(sandboxed=not request.unsandboxed)
    reclaim()  # memory groups of engines that were killed
    mirror = Mirror.open(
        home,
        contract.path,
        snapshot=request.snapshot,
        committed=request.committed,
        matters=lambda path: in_scope(contract, path),
    )
    mirror = adapted(mirror, contract)
    if not mirror.read_files(mirror.base, contract.editable):
        raise ContractError(f"workload.toml: [scope] editable = {list(contract.editable)} matches no committed file.")
    created = created_now(request, new_id(home), contract, mirror, launcher, mind)
    if request.resume:
        begun = unfinished(home, mirror, contract, request.kind)
        require_same(begun, created, request.mind, request.candidates, request.hours, request.usd)
        created = begun
    # An evaluation asks no mind: the person had the idea.
    named = created.mind if request.kind == "campaign" else "builtin"
    chosen = mind or mind_named(named, load_settings(home.root).claude)
    return Prepared(home, request, contract, launcher, mirror, created, chosen, tell)


def open_prepared(parts: Prepared, listen: Listen = silent) -> Opened:
    """Make or take up the journal of what was prepared."""
    paths = parts.paths
    with contextlib.ExitStack() as undo:
        if not parts.request.resume:
            undo.callback(forget, paths)
            _make_folders(paths)
            check_home(parts.home)
        writer = JournalWriter.open(paths.journal, anchor=paths.anchor)
        undo.callback(writer.close)
        opened = _open(parts, paths, writer, listen)
        undo.pop_all()
    return opened


def _open(parts: Prepared, paths: CampaignPaths, writer: JournalWriter, listen: Listen) -> Opened:
    """Put the parts together over an open journal, and record that an engine takes it up."""
    contract, created, past = parts.contract, parts.created, writer.events
    parts.mirror.unlock(created.campaign)
    steps = Steps(_Announcing(writer, listen(past)), past)
    cancel = threading.Event()
    missing = unavailable_knobs(contract)
    lab = _lab(parts, paths, steps, past, cancel)
    recall = Recall(parts.home, created, contract, retry=created.retry or parts.request.retry, tell=parts.tell)
    state, paused = last_state(past)
    steering = Steering.of(past)
    context = Context(
        home=parts.home,
        created=created,
        contract=contract,
        usable=restrict(contract, missing),
        mirror=parts.mirror,
        paths=paths,
        steps=steps,
        mind=parts.mind,
        evaluator=Evaluator(lab),
        draw_alpha=lambda: grant_alpha(parts.home, created.workload_key, created.campaign, campaign_alpha),
        memory=Memory(lab.original),
        recall=recall,
        cancel=cancel,
        began=(began := time.monotonic() - seconds_spent(past)),
        deadline=began + 3600 * hours if (hours := steering.hours or created.hours) else None,
        steering=steering,
        approvals=[event.body for event in past if isinstance(event.body, PersonActed) and event.body.action == "approve"],
        vetoes=waiting_vetoes(past),
        state=state,
        paused=paused,
        stop_asked=stop_recorded(past),
    )
    lab.between = context.heed_people
    lab.on_wait = parts.tell
    if isinstance(parts.mind, Lodger):
        parts.mind.enter(lend_room(context, parts.launcher, past, parts.tell))
    steps.once("created", CampaignCreated, lambda: created)
    steps.append(EngineStarted(pid=os.getpid(), resumed=parts.request.resume))
    dropped = context.forget_the_past()
    waits = (f"{created.kind.capitalize()} {created.campaign} is paused: `rsi resume {created.campaign}` lets it go on.",)
    notes = (*parts.mirror.notes, *missing.values(), *dropped, *(waits if context.paused else ()))
    return Opened(context, writer, recall, notes)


def forget(paths: CampaignPaths) -> None:
    """Remove every trace of a campaign that measured nothing."""
    for folder in (paths.root, paths.evaluator):
        shutil.rmtree(folder, ignore_errors=True)
    paths.anchor.unlink(missing_ok=True)


def measured(contract: Contract, kind: Kind) -> Contract:
    """The contract as the evaluator is given it: an evaluation spends all its error probability on one verification."""
    if kind != "evaluation":
        return contract
    return contract.model_copy(update={"proof": contract.proof.model_copy(update={"max_verifications": 1})})


def restrict(contract: Contract, missing: dict[str, str]) -> Contract:
    """The contract with the knobs that this machine can't set held at their default."""
    knobs = tuple(k.model_copy(update={"values": (k.default,)}) if k.name in missing else k for k in contract.knobs)
    return contract.model_copy(update={"knobs": knobs})


class _Announcing:
    """A journal writer that tells a listener of each event once it is on disk.

    A listener whose terminal is gone is not asked again; the campaign goes on.
    """

    def __init__(self, writer: JournalWriter, listener: Callable[[Event], None]) -> None:
        self._writer = writer
        self._tell = outliving(listener)

    def append(self, body: object, step: str = "") -> Event:
        event = self._writer.append(body, step)  # type: ignore[arg-type]
        self._tell(event)
        return event


def outliving(listener: Callable[[T], None]) -> Callable[[T], None]:
    """The listener, silent for good from the first time that it can't be written to."""
    lost = False

    def tell(what: T) -> None:
        nonlocal lost
        if not lost:
            try:
                listener(what)
            except OSError:
                lost = True

    return tell


def _make_folders(paths: CampaignPaths) -> None:
    paths.root.mkdir(parents=True)
    paths.evaluator.mkdir(parents=True, mode=0o700)
    paths.commands.mkdir()
    paths.reports.mkdir()


def new_id(home: Home) -> str:
    """YYYYMMDD-HHMMSS-xxxx, in UTC."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def host_of(contract: Contract) -> dict[str, str]:
    """Hardware and software under which figures of this contract are comparable."""
    host = fingerprint()
    return {**host, "software": f"{host['software']}, torch {torch_version(Path(resolve_python(contract)))}"}


def created_now(
    request: Request, id: str, contract: Contract, mirror: Mirror, launcher: LocalLauncher, mind: Mind | None
) -> CampaignCreated:
    """What a campaign begun here and now records of itself."""
    host = host_of(contract)
    statistical = contract.invariants.weights == "statistical"
    weaker = statistical or not contract.invariants.validation
    alone = request.kind == "evaluation"
    trust = "C" if launcher.trust_cap() == "C" else "B" if weaker else "A"
    return CampaignCreated(
        campaign=id,
        workload=contract.name,
        workload_key=mirror.key,
        folder=contract.folder,
        contract_hash=contract.hash,
        contract=contract.model_dump(mode="json"),
        base_commit=mirror.base,
        preset=contract.preset,
        kind=request.kind,
        mind="person" if alone else request.mind or (mind.name if mind is not None else "builtin"),
        seed=0,
        max_candidates=1 if alone else request.candidates or contract.proof.max_candidates,
        hours=request.hours,
        approval=request.approval,
        usd=request.usd,
        retry=request.retry,
        options=request.options,
        trust=trust,
        sandbox=launcher.describe(),
        host=host,
        version=__version__,
    )


def _lab(parts: Prepared, paths: CampaignPaths, steps: Steps, events: list[Event], cancel: threading.Event) -> Lab:
    contract, launcher, mirror = measured(parts.contract, parts.request.kind), parts.launcher, parts.mirror
    python = Path(resolve_python(contract))
    original = CandidateFacts(id=ORIGINAL, commit=mirror.base, base=mirror.base, knobs=contract.defaults)
    runner = TrialRunner(contract, launcher, mirror, paths, python)
    vault = Vault(paths.vault)
    runner.reclaim(_ended(events, vault))
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
        fingerprint=fingerprint_hash(parts.created.host),
        trials=sum(1 for event in events if isinstance(event.body, TrialStarted)),
    )


def _ended(events: Sequence[Event], vault: Vault) -> set[str]:
    """Trials of which it is known how they ended, also where the engine died before the journal said so."""
    started = {event.body.trial for event in events if isinstance(event.body, TrialStarted)}
    finished = {event.body.trial for event in events if isinstance(event.body, TrialFinished)}
    return finished | {trial for trial in started if vault.get(f"trial/{trial}") is not None}


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
