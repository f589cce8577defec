"""Bands and invariants, computed again from the comparisons that are revealed when a campaign ends.

The comparison of two checkpoints is a fact of the machine that made it, as a time is. What follows from it is not: the
limits that harmless runs set, each figure of an invariant, and whether it held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rsi_tui.audit.checks import Checks
from rsi_tui.audit.record import SEEDS, Block, Record
from rsi_tui.contract.model import Contract
from rsi_tui.errors import ContractError
from rsi_tui.evaluator.bands import COUNTERS, calibrate, judge, judge_layout
from rsi_tui.evaluator.compare import UpdateReport
from rsi_tui.evaluator.measures import badness
from rsi_tui.evaluator.noninferior import SeedPairs
from rsi_tui.evaluator.step_bands import calibrate_steps, judge_step
from rsi_tui.evaluator.trajectories import Trajectory, calibrate_trajectories, judge_trajectories
from rsi_tui.evaluator.validation import judge_validation
from rsi_tui.journal import events as ev
from rsi_tui.journal.facts import BandFacts, InvariantFacts

SEALED = "the comparisons of checkpoints are revealed when the campaign ends"
OLDER = "this version did not record the comparison it follows from"


class Learning:
    """What the revealed comparisons say, block by block; all of it empty while they are sealed."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._secrets: Mapping[str, Mapping[str, Any]] = record.secrets or {}
        calibrated = record.of(ev.Calibrated)
        self.bands: tuple[BandFacts, ...] = calibrated[-1].bands if calibrated else ()
        self._contract: Contract = record.contract
        self._judged: dict[str, tuple[InvariantFacts, ...]] = {}

    def of_block(self, block: Block) -> tuple[InvariantFacts, ...]:
        """What the candidates' runs of one block showed."""
        if block.id not in self._judged:
            self._judged[block.id] = tuple(self._stepped(block) if block.opened.purpose == "one-step" else self._whole(block))
        return self._judged[block.id]

    def of_run(self, block: Block, trial: str) -> tuple[InvariantFacts, ...]:
        """What one candidate's run of whole length showed."""
        twin = next(self._reports(block, "twin"), None)
        found = [*judge(report, self.bands, self._contract, twin=twin)] if (report := self._report(trial)) is not None else []
        return (*found, *self._printed_by(block, trial)) if found else ()

    def seeds(self, blocks: Sequence[Block]) -> tuple[InvariantFacts, ...]:
        """What pairs of fresh seeds say of hidden losses, put together."""
        pairs = SeedPairs(self._contract.invariants.loss_margin)
        for block in blocks:
            losses = self._value(f"validated/{block.step}")
            if block.counts and losses is not None and not pairs.decided:
                pairs.add(losses["incumbent"], losses["candidate"])
        layout = [fact for block in blocks for run in block.timed for fact in self._layout(run.id)]
        return (*layout, *pairs.checked().invariants) if pairs.decided else tuple(layout)

    def bands_again(self) -> tuple[BandFacts, ...]:
        """The limits that the calibration's own runs set. Raises ContractError where they can't set any."""
        first = next((b for b in self._record.blocks.values() if b.opened.purpose == "calibration" and b.counts), None)
        if first is None or self._contract.invariants.weights != "equivalent":
            return ()
        harmless = [*self._reports(first, "harmless", "incumbent")]
        bands = calibrate(harmless, [*self._reports(first, "twin")], self._contract)
        said = self._printed(first)
        reference = next((run for arm, run in said if arm in ("warmup", "incumbent")), None)
        if reference is not None:
            moved = [run for arm, run in said if arm in ("harmless", "incumbent")]
            bands += calibrate_trajectories(reference, moved, [run for arm, run in said if arm == "twin"])
        return (*bands, *self._step_bands(bands))

    # --- pieces

    def _value(self, key: str) -> Any:
        secret = self._secrets.get(key)
        return secret["value"] if secret is not None else None

    def _report(self, trial: str) -> UpdateReport | None:
        value = self._value(f"compared/{trial}")
        return UpdateReport.model_validate(value) if value is not None else None

    def _reports(self, block: Block, *arms: str) -> Iterator[UpdateReport]:
        for slot in sorted(block.runs):
            run = block.runs[slot]
            if run.arm in arms and (report := self._report(run.id)) is not None:
                yield report

    def _printed(self, block: Block) -> list[tuple[str, Trajectory]]:
        """(arm, what it printed) of each run of a block, in the order run."""
        runs = [block.runs[slot] for slot in sorted(block.runs)]
        values = ((run.arm, self._value(f"printed/{run.id}")) for run in runs)
        return [(arm, Trajectory.model_validate(value)) for arm, value in values if value is not None]

    def _printed_by(self, block: Block, trial: str) -> tuple[InvariantFacts, ...]:
        said = self._printed(block)
        reference = next((run for arm, run in said if arm in ("warmup", "incumbent")), None)
        own = self._value(f"printed/{trial}")
        if reference is None or own is None:
            return ()
        twin = next((run for arm, run in said if arm == "twin"), None)
        bf16 = self._contract.invariants.precision == "bf16"
        return judge_trajectories(Trajectory.model_validate(own), reference, self.bands, twin, bf16)

    def _whole(self, block: Block) -> Iterator[InvariantFacts]:
        for run in block.timed:
            if run.arm == "candidate":
                yield from self.of_run(block, run.id)
        losses = self._value(f"validated/{block.step}")
        if losses is not None and SEEDS not in block.id:
            rounding = 0.0 if losses["twin"] is None else abs(losses["twin"] - losses["incumbent"])
            yield judge_validation(losses["candidate"], losses["incumbent"], rounding)

    def _stepped(self, block: Block) -> Iterator[InvariantFacts]:
        found = {entry["arm"]: UpdateReport.model_validate(entry["report"]) for entry in (self._value(f"stepped/{block.step}") or {}).values()}
        if "candidate" in found:
            yield from judge_step(found["candidate"], self.bands, self._contract, twin=found.get("twin"), after="")

    def _layout(self, trial: str) -> tuple[InvariantFacts, ...]:
        value = self._value(f"layout/{trial}")
        return judge_layout(UpdateReport.model_validate(value)) if value is not None else ()

    def _step_bands(self, bands: Sequence[BandFacts]) -> tuple[BandFacts, ...]:
        steps = [key for key in self._secrets if key.startswith("stepped/calibration/")]
        entries = [entry for key in steps for entry in self._value(key).values()]
        if not entries:
            return ()
        by_arm = {arm: [UpdateReport.model_validate(e["report"]) for e in entries if e["arm"] == arm] for arm in ("harmless", "twin")}
        masked = frozenset(name for band in bands for name in band.masked)
        return calibrate_steps(by_arm["harmless"], by_arm["twin"], self._contract, masked)


def bands(record: Record, learning: Learning, checks: Checks) -> None:
    """Each limit that harmless runs of this campaign set."""
    for made in record.of(ev.Calibrated):
        if not made.bands:
            continue
        if made.origin or record.secrets is None:
            why = f"measured by {made.origin}, whose record has the runs" if made.origin else SEALED
            checks.lacks("limits of the invariants", len(made.bands), why)
            continue
        try:
            follows = {band.name: band for band in learning.bands_again()}
        except ContractError as error:
            checks.holds("limits of the invariants", False, len(made.bands), str(error))
            continue
        for band in made.bands:
            other = follows.get(band.name)
            if other is None:
                checks.lacks(f"limit of {band.name}", band.limit, OLDER)
                continue
            checks.same(f"limit of {band.name}", band.limit, other.limit)
            checks.same(f"{band.name}: harmless runs", band.harmless_max, other.harmless_max)
            checks.holds(f"{band.name}: tensors without information", (band.masked, band.masked_share, band.scale) == (other.masked, other.masked_share, other.scale), len(band.masked), len(other.masked))  # fmt: skip


def invariants(name: str, recorded: Sequence[InvariantFacts], follows: Iterable[InvariantFacts] | None, checks: Checks) -> None:
    """Each recorded invariant against the worst that the runs showed of it; its status against value and limit in any case.

    `follows` None: sealed.
    """
    worst: dict[str, InvariantFacts] = {}
    for fact in follows or ():
        if fact.name not in worst or badness(fact) > badness(worst[fact.name]):
            worst[fact.name] = fact
    for fact in recorded:
        if fact.status == "not_covered":
            continue
        if fact.value is not None and fact.limit is not None:
            _status(name, fact, checks)
        if (other := worst.get(fact.name)) is None:
            if fact.value is not None:
                checks.lacks(f"{name}: {fact.name}, value", fact.value, SEALED if follows is None else OLDER)
            continue
        checks.same(f"{name}: {fact.name}, status", fact.status, other.status)
        checks.same(f"{name}: {fact.name}, value", fact.value, other.value)
        checks.same(f"{name}: {fact.name}, limit", fact.limit, other.limit)
    said = {fact.name for fact in recorded}
    for fact in worst.values():
        if fact.status == "broken" and fact.name not in said:
            checks.holds(f"{name}: {fact.name}", False, "not said", "broken")


def _status(name: str, fact: InvariantFacts, checks: Checks) -> None:
    """It held when the value is within the limit; numbers of updates have to be the same, and may be several."""
    assert fact.value is not None and fact.limit is not None
    if fact.name == COUNTERS:
        checks.holds(f"{name}: {fact.name}", fact.status == "broken" or fact.value == fact.limit, fact.value, fact.limit)
    else:
        checks.same(f"{name}: {fact.name}", fact.status, "held" if fact.value <= fact.limit else "broken")


