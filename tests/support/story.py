"""A whole campaign as its events, written through the real journal: what readers of journals are tested on.

The numbers are invented and consistent with each other; nothing here measures anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rsi_tui.contract.model import Contract, Invariants, Knob, Launch, Objective, Proof
from rsi_tui.journal import events as ev
from rsi_tui.journal.chain import JournalWriter
from rsi_tui.journal.facts import (
    ORIGINAL,
    AttributionFacts,
    BandFacts,
    BlockFacts,
    CandidateFacts,
    ClaimFacts,
    DirectionFacts,
    Fact,
    FindingFacts,
    HypothesisFacts,
    Interval,
    InvariantFacts,
    LessonFacts,
    NoiseFacts,
    OperatorFacts,
    PhaseFacts,
    ProfileFacts,
    RetrievedFacts,
    ReviewFacts,
    ScreenFacts,
    TrialFacts,
    VerdictFacts,
)
from rsi_tui.locations import Home

Stage = Literal["created", "baselined", "searching", "screening", "verifying", "finished"]
STAGES: tuple[Stage, ...] = ("created", "baselined", "searching", "screening", "verifying", "finished")
BASE = "4be1c0d5e6f708192a3b4c5d6e7f8091a2b3c4d5"

SDPA_DIFF = """\
diff --git a/train.py b/train.py
--- a/train.py
+++ b/train.py
@@ -71,9 +71,5 @@ class Attention(nn.Module):
         q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
-        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
-        scores = scores.masked_fill(self.mask[:n, :n], float("-inf"))
-        weights = torch.softmax(scores, dim=-1)
-        y = weights @ v
+        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
         return self.out(y.transpose(1, 2).reshape(b, n, -1))
"""
FUSED_DIFF = """\
diff --git a/train.py b/train.py
--- a/train.py
+++ b/train.py
@@ -160,3 +156,3 @@ def main() -> None:
-    optimizer = torch.optim.AdamW(groups, lr=args.lr, foreach=False)
+    optimizer = torch.optim.AdamW(groups, lr=args.lr, fused=True)
"""
CHEAT_DIFF = """\
diff --git a/train.py b/train.py
--- a/train.py
+++ b/train.py
@@ -171,4 +171,4 @@ def main() -> None:
-        for micro in range(args.accumulate):
+        for micro in range(args.accumulate // 2):
"""


def contract(folder: str = "/home/user/dense") -> Contract:
    """A contract like that of the bundled dense workload."""
    return Contract(
        name="dense-single",
        preset="quick",
        launch=Launch(
            command="python train.py --steps {steps} --seed {seed} --out {out} {knobs}",
            memory_limit_bytes=3 * 2**29,
            timeout_s=120,
            progress=r"step (?P<step>\d+) loss (?P<loss>\S+)",
            checkpoint="{out}/final.pt",
        ),
        editable=("train.py",),
        objective=Objective(steps=(20, 40)),
        invariants=Invariants(precision="bf16", tokens_per_step=16384),
        knobs=(
            Knob(name="micro_batch", values=(1, 2, 4, 8), default=2, layer="memory", flag="--micro-batch {}"),
            Knob(name="threads", values=(1, 2), default=1, env="OMP_NUM_THREADS"),
            Knob(name="allocator", values=(False, True), default=False, preload="libtcmalloc.so.4"),
        ),
        proof=Proof(aa_pairs=8, max_verifications=3, final_pairs=8, max_candidates=8, bundle=True),
        folder=folder,
    )


def trial(number: int, candidate: str, kind: str, arm: str, seconds: float, **more: object) -> TrialFacts:
    """A finished run whose times fit its step time."""
    values: dict[str, object] = {
        "id": f"t{number}",
        "candidate": candidate,
        "kind": kind,
        "arm": arm,
        "block": "",
        "slot": 0,
        "steps": 30,
        "outcome": "ok",
        "started_at": f"2026-11-30T12:{number // 6:02d}:{number % 6 * 10:02d}.000000+00:00",
        "wall_s": round(1.9 + 30 * seconds, 3),
        "startup_s": 1.6,
        "step_s": seconds,
        "teardown_s": 0.1,
        "score_s": seconds + 1.7 / 20000,
        "peak_bytes": 700 * 2**20,
        "memory_source": "cgroup1",
        "final_loss": 5.31,
        "engine_s": round(0.11 + number % 5 * 0.013, 3),
        "compare_s": 0.2,
    }
    return TrialFacts.model_validate(values | more)


def failed_trial(number: int, candidate: str) -> TrialFacts:
    """A run that the memory controller killed, with hostile bytes in its last words."""
    return trial(
        number, candidate, "screen", "candidate", 0.1,
        outcome="oom", cause="host_oom_killed", detail="the run was killed at its memory limit of 1.5 GiB",
        telling_lines=("\x1b[31mRuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory\x1b[0m\x07",),
        signal=9, wall_s=3.4, startup_s=None, step_s=None, teardown_s=None, score_s=None, final_loss=None,
        peak_bytes=3 * 2**29, requested_bytes=268435456,
    )  # fmt: skip


def write_story(
    path: Path,
    *,
    campaign: str = "20261130-1",
    until: Stage = "finished",
    proven: bool = True,
    folder: str = "/home/user/dense",
    anchor: Path | None = None,
) -> None:
    """Write a campaign's journal up to a stage; with proven=False the bundle's verdict is 'not_proven'."""
    with JournalWriter.open(path, anchor=anchor) as journal:
        for body in story(campaign, until=until, proven=proven, folder=folder):
            journal.append(body)


def write_home(root: Path, *, campaign: str = "20261130-1", until: Stage = "finished", proven: bool = True) -> Home:
    """A home with one campaign in it."""
    home = Home(root)
    write_story(home.campaign(campaign).journal, campaign=campaign, until=until, proven=proven)
    return home


def story(campaign: str, *, until: Stage = "finished", proven: bool = True, folder: str = "/home/user/dense") -> Iterator[Fact]:
    """The bodies of the campaign's events in order."""
    last = STAGES.index(until)
    parts = (_created(campaign, folder), _baseline(), _search(), _screening(), _verification(proven), _end(proven))
    for part in parts[: last + 1]:
        yield from part


def _created(campaign: str, folder: str) -> Iterator[Fact]:
    held = contract(folder)
    yield ev.CampaignCreated(
        campaign=campaign, workload=held.name, workload_key="dense-single-77ab", folder=folder, contract_hash=held.hash,
        contract=held.model_dump(mode="json"), base_commit=BASE, preset="quick", mind="builtin", seed=0, max_candidates=8,
        trust="A", sandbox="bubblewrap: own mount, pid, ipc and network namespace, uid nobody, memory limit by cgroup",
        host={"cpu": "Xeon Platinum 8488C", "cores": "2", "memory": "7.6 GiB", "torch": "2.13.0", "python": "3.11.2"},
        version="0.1.0",
    )  # fmt: skip
    yield ev.EngineStarted(pid=4242, resumed=False)
    yield ev.StateChanged(state="contracted")


def _baseline() -> Iterator[Fact]:
    yield from _run(trial(1, ORIGINAL, "profile", "profile", 0.119))
    yield ev.Profiled(
        profile=ProfileFacts(
            step_s=0.119,
            phases=(
                PhaseFacts(name="forward", seconds=0.042, share=0.353),
                PhaseFacts(name="backward", seconds=0.061, share=0.513),
                PhaseFacts(name="optimizer", seconds=0.012, share=0.1),
                PhaseFacts(name="other", seconds=0.004, share=0.034),
            ),
            operators=(OperatorFacts(name="aten::bmm", self_s=0.021, share=0.18, calls=48),),
            peak_bytes=700 * 2**20,
            tokens_per_step=16384,
            mfu=0.31,
            unused_settings=("threads: OMP_NUM_THREADS=2 was never tried, the launch uses 1",),
        )
    )
    yield ev.BlockOpened(
        block="b0", purpose="calibration", candidates=(ORIGINAL,), incumbent=ORIGINAL, slots=16, commitment="c" * 64
    )
    runs = tuple(
        trial(2 + n, ORIGINAL, "calibration", "incumbent", 0.1172 + n % 4 * 0.0011, block="b0", slot=n) for n in range(16)
    )
    for facts in runs:
        yield from _run(facts, of=16)
    yield ev.BlockClosed(block="b0", trials=runs)
    yield ev.AlphaGranted(workload_key="dense-single-77ab", ordinal=2, alpha=0.00152, campaign="story")
    yield ev.Calibrated(
        noise=NoiseFacts(
            pair_scale=0.0243, run_cv=0.017, pairs=8, differences=(0.01, -0.02, 0.03, -0.01, 0.0, 0.02, -0.03, 0.01),
            smallest_provable=0.034, fingerprint="f00d" * 16,
        ),
        bands=(
            BandFacts(name="update size", limit=0.021, how="1.5 times the bf16 twin's largest error", harmless_max=0.014),
            BandFacts(name="learning rate direction", limit=5.0, how="t statistic", harmless_max=2.3, masked=("h.0.key.bias",)),
        ),
    )  # fmt: skip
    yield ev.StateChanged(state="baselined")
    yield ev.StateChanged(state="searching")


def _search() -> Iterator[Fact]:
    yield ev.Retrieved(
        role="director", query="attention backward dense cpu",
        hits=(
            RetrievedFacts(
                record="20261129-1/hypothesis/h2", kind="hypothesis", score=0.82,
                text="Scaled-dot-product attention shortens the step by 17 %",
                why="terms: attention; same workload, same hardware", used_for="tried first: proven in an earlier campaign",
            ),
            RetrievedFacts(
                record="20261129-1/failure/t31", kind="failure", score=0.61, text="micro-batch 8 ran out of memory",
                why="terms: memory; same limit",
            ),
        ),
        changed="attention comes before the optimizer; torch.compile was left out as a known failure",
    )  # fmt: skip
    yield _direction("d1", "Does attention spend its time in the materialised matrix?", "kernel", ("sdpa",), 0.17)
    yield from _round("h1", "d1", 1, "Scaled-dot-product attention shortens the step by 17 %", ("sdpa",), -0.19, SDPA_DIFF, "c1")
    yield _direction("d2", "How much of the step is the optimizer's loop over tensors?", "optimizer", ("fused-adamw",), 0.06)
    yield from _round("h2", "d2", 1, "A fused AdamW halves the optimizer's share", ("fused-adamw",), -0.06, FUSED_DIFF, "c2")
    hypothesis = _hypothesis("h3", "d2", 2, "foreach clipping saves another percent", ("foreach-clip",), -0.01)
    yield ev.HypothesisWritten(hypothesis=hypothesis)
    yield ev.CandidateRefused(
        hypothesis="h3", direction="d2", kind="duplicate",
        reason="the same change was slower on this stack and hardware in 20261129-1",
    )  # fmt: skip
    yield _direction("d3", "Is there room for a larger micro-batch, and do the threads help?", "memory", ("micro-batch",), 0.1)
    yield from _round(
        "h4", "d3", 1, "Micro-batch 8 halves the launches of small kernels", ("micro-batch",), -0.12, "", "c3", {"micro_batch": 8}
    )
    yield from _round("h5", "d3", 2, "Two threads use the second core", ("threads",), -0.4, "", "c4", {"threads": 2})
    yield _direction("d4", "Can accumulation be shortened?", "data", (), 0.4)
    yield ev.HypothesisWritten(
        hypothesis=_hypothesis("h6", "d4", 1, "Half of the micro-batches carry the same gradient", ("free",), -0.6)
    )
    yield ev.CandidateBuilt(candidate=_candidate("c5", ("free",), {}), hypothesis="h6", direction="d4", diff=CHEAT_DIFF)
    finding = FindingFacts(
        rule="fewer-tokens", severity="exploit", path="train.py", line=171, text="the loop runs over half of the micro-batches"
    )
    yield ev.Reviewed(
        review=ReviewFacts(
            candidate="c5", decision="invalid", findings=(finding,), summary="trains on half of the tokens of a step"
        )
    )
    yield ev.VerdictReached(
        verdict=VerdictFacts(
            candidate="c5", incumbent=ORIGINAL, verdict="invalid", reasons=("trains on half of the tokens of a step",), alpha=0.0
        )
    )


def _screening() -> Iterator[Fact]:
    yield ev.BlockOpened(
        block="b1", purpose="screen", candidates=("c1", "c2", "c3", "c4"), incumbent=ORIGINAL, slots=6, commitment="d" * 64
    )
    runs = (
        trial(20, "c2", "screen", "candidate", 0.1116, block="b1", slot=0),
        trial(21, ORIGINAL, "screen", "incumbent", 0.1181, block="b1", slot=1),
        trial(22, "c1", "screen", "candidate", 0.0986, block="b1", slot=2),
        failed_trial(23, "c3").model_copy(update={"block": "b1", "slot": 3}),
        trial(24, "c4", "screen", "candidate", 0.0781, block="b1", slot=4),
        trial(25, ORIGINAL, "screen", "incumbent", 0.1179, block="b1", slot=5),
    )
    for facts in runs:
        yield from _run(facts, of=6)
    yield ev.BlockClosed(block="b1", trials=runs)
    yield ev.Screened(
        results=(
            _screen("c1", math.log(0.0986 / 0.118), True, "faster than the noise"),
            _screen("c2", math.log(0.1116 / 0.118), True, "faster than the noise"),
            ScreenFacts(
                candidate="c3", incumbent=ORIGINAL, outcome="oom", log_ratio=None, batches=1, promoted=False,
                reason="the run was killed at its memory limit of 1.5 GiB", trials=("t23",),
            ),
            _screen("c4", math.log(0.0781 / 0.118), True, "faster than the noise"),
        )
    )  # fmt: skip
    for number, text in (("1", "SDPA pays on two cores"), ("2", "the optimizer's loop is a tenth of the step")):
        yield ev.DirectionClosed(
            direction=f"d{number}", reason="its last hypothesis is screened", candidates=1,
            lesson=LessonFacts(id=f"l{number}", direction=f"d{number}", text=text, conditions={"cores": "2"}, evidence=()),
        )  # fmt: skip
    yield ev.SearchEnded(reason="what is left is predicted to gain less than the noise")


def _verification(proven: bool) -> Iterator[Fact]:
    bundle = _candidate("c6", ("sdpa", "fused-adamw", "threads"), {"threads": 2}, members=("c1", "c2", "c4"))
    yield ev.CandidateBuilt(candidate=bundle, hypothesis="", direction="", diff=SDPA_DIFF + FUSED_DIFF)
    yield ev.Reviewed(review=ReviewFacts(candidate="c6", decision="pass"))
    yield ev.BlockOpened(block="v1", purpose="verify", candidates=("c6",), incumbent=ORIGINAL, slots=7, commitment="e" * 64)
    arms = ((ORIGINAL, "warmup"), *((ORIGINAL, "incumbent"), ("c6", "candidate")) * 3)
    runs = tuple(
        trial(
            30 + n, candidate, "verify", arm, 0.061 if candidate == "c6" else 0.118, block="v1", slot=n,
            peak_bytes=(640 if candidate == "c6" else 700) * 2**20,
        )
        for n, (candidate, arm) in enumerate(arms)
    )  # fmt: skip
    for n, facts in enumerate(runs):
        yield ev.TrialStarted(
            trial=facts.id, candidate="c6", kind="verify", arm="sealed", block="v1", slot=n, of=7, attempt=1
        )
        yield ev.TrialFinished(trial=facts.id, facts=None, commitment="ab" * 32)
    yield ev.BlockClosed(block="v1", trials=runs)
    block = BlockFacts(id="v1", order="ABABAB", evalue=2411.0, e_total=2411.0, trials=tuple(t.id for t in runs))
    yield ev.VerdictReached(
        verdict=VerdictFacts(
            candidate="c6", incumbent=ORIGINAL, verdict="adopted" if proven else "not_proven",
            reasons=("the e-value reached 1 / alpha",) if proven else ("the e-value stayed under 1 / alpha",),
            alpha=0.0005, evalue=2411.0 if proven else 3.1,
            speedup=Interval(estimate=1.934, low=1.79, high=2.07, confidence=0.99), log_ratio=-math.log(1.934),
            invariants=_invariants(), blocks=(block,), peak_bytes=640 * 2**20, incumbent_peak_bytes=700 * 2**20,
            mean_total_ratio=0.55, seconds=38.0,
        )
    )  # fmt: skip


def _end(proven: bool) -> Iterator[Fact]:
    if not proven:
        yield ev.StateChanged(state="finished", reason="nothing was proven")
        return
    yield ev.StateChanged(state="claiming")
    runs = tuple(
        trial(40 + n, ("c6", ORIGINAL)[n % 2], "claim", ("candidate", "incumbent")[n % 2], (0.0611, 0.1179)[n % 2], block="k1", slot=n)
        for n in range(16)
    )
    for facts in runs:
        yield from _run(facts, of=16)
    yield ev.Claimed(
        claim=ClaimFacts(
            candidate="c6", pairs=8, baseline_step_s=0.1179, candidate_step_s=0.0611,
            speedup=Interval(estimate=1.9296, low=1.8103, high=2.0218, confidence=0.99),
            total_wall_ratio=1.42, slope_ratio=1.91, baseline_peak_bytes=700 * 2**20, candidate_peak_bytes=640 * 2**20,
            slow_run_bound=0.31, invariants=_invariants(),
            attribution=(
                AttributionFacts(name="threads=2", kind="setting never switched on", log_ratio=-0.41, how="estimate from screening"),
                AttributionFacts(name="sdpa", kind="new code", log_ratio=-0.18, how="estimate from screening"),
                AttributionFacts(name="fused-adamw", kind="new code", log_ratio=-0.056, how="estimate from screening"),
            ),
            proven=True, trials=tuple(t.id for t in runs),
        )
    )  # fmt: skip
    yield ev.StateChanged(state="finished")
    yield ev.SecretsRevealed(blocks={"v1": {"order": "ABABAB", "seed": 71, "length": 33}})


def _run(facts: TrialFacts, of: int = 1) -> Iterator[Fact]:
    yield ev.TrialStarted(
        trial=facts.id, candidate=facts.candidate, kind=facts.kind, arm=facts.arm, block=facts.block, slot=facts.slot, of=of, attempt=1
    )
    yield ev.TrialFinished(trial=facts.id, facts=facts)


def _direction(name: str, question: str, layer: str, techniques: tuple[str, ...], gain: float) -> ev.DirectionOpened:
    return ev.DirectionOpened(
        direction=DirectionFacts.model_validate({
            "id": name, "question": question, "layer": layer, "start_kind": "original", "start": ORIGINAL,
            "techniques": techniques, "reason": "the profile gives this layer a large share of the step",
            "expected_gain": gain, "budget": 2, "closing_rule": "two rounds without a promotion",
            "evidence": ("20261129-1/hypothesis/h2", "backward") if name == "d1" else (),
        })
    )  # fmt: skip


def _hypothesis(
    name: str, direction: str, number: int, text: str, techniques: tuple[str, ...], time: float, **knobs: int | bool
) -> HypothesisFacts:
    return HypothesisFacts(
        id=name, direction=direction, round=number, parent=ORIGINAL, statement=text, techniques=techniques, knobs=dict(knobs),
        predicted_time=time, predicted_memory=-0.02, refuted_by="a step time within the noise of the incumbent's",
        evidence=("20261129-1/hypothesis/h2",) if name == "h1" else (),
    )  # fmt: skip


def _candidate(
    name: str, techniques: tuple[str, ...], knobs: dict[str, int | bool], members: tuple[str, ...] = ()
) -> CandidateFacts:
    return CandidateFacts(
        id=name, commit=name.ljust(40, "0"), base=BASE, parent=ORIGINAL, techniques=techniques,
        knobs=contract().defaults | knobs, members=members, diff_hash="", launch_fingerprint="",
    )  # fmt: skip


def _round(
    hypothesis: str,
    direction: str,
    number: int,
    text: str,
    techniques: tuple[str, ...],
    time: float,
    diff: str,
    candidate: str,
    knobs: dict[str, int | bool] | None = None,
) -> Iterator[Fact]:
    yield ev.HypothesisWritten(hypothesis=_hypothesis(hypothesis, direction, number, text, techniques, time, **(knobs or {})))
    facts = _candidate(candidate, techniques, knobs or {})
    yield ev.CandidateBuilt(candidate=facts, hypothesis=hypothesis, direction=direction, diff=diff)
    yield ev.Reviewed(review=ReviewFacts(candidate=candidate, decision="pass", summary="on its direction, nothing found"))


def _screen(candidate: str, ratio: float, promoted: bool, reason: str) -> ScreenFacts:
    return ScreenFacts(
        candidate=candidate, incumbent=ORIGINAL, outcome="ok", log_ratio=ratio, batches=1, promoted=promoted, reason=reason,
        peak_bytes=690 * 2**20, incumbent_peak_bytes=700 * 2**20, invariants=_invariants()[:1],
    )  # fmt: skip


def _invariants() -> tuple[InvariantFacts, ...]:
    return (
        InvariantFacts(name="update size", status="held", value=0.0112, limit=0.021, how="1.5 times the bf16 twin's largest error"),
        InvariantFacts(name="hidden validation loss", status="held", value=5.36, limit=5.42, how="largest of the incumbent runs + 1 %"),
        InvariantFacts(name="first moments", status="not_covered", value=None, limit=None, how="the checkpoint holds no optimizer state"),
    )
