"""Rows of invented campaigns, and a reader that gives them: what the library is tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experience.errors import UnreadableJournalError
from experience.interface import HOME, Head
from experience.records import Batch, CampaignRow, CandidateRow, DirectionRow, Entry, TrialRow

HERE = "cores 2, cpu xeon, memory 8"
THERE = "cores 96, gpu h100, memory 2048"
SOFTWARE = "python 3.11.2, torch 2.13.0"
GIB = 2**30

IDEAS = (
    ("h1", "Scaled-dot-product attention avoids the materialised score matrix", "kernel", "adopted"),
    ("h2", "A fused AdamW step replaces thousands of tiny launches", "optimizer", "slower"),
    ("h3", "torch.compile(mode='max-autotune') fuses the pointwise operators", "compiler", "failed"),
    ("h4", "Setting --micro-batch to 8 amortises the launch overhead", "memory", "failed"),
    ("h5", "TORCH_NCCL_ASYNC_ERROR_HANDLING off shortens each all-reduce", "communication", "not_proven"),
    ("h6", "Pinned memory and prefetch_factor=4 hide the loader behind the backward pass", "data", "screened"),
)


def candidate(campaign: str, local: str, **more: object) -> CandidateRow:
    base = CandidateRow(
        id=f"{campaign}/{local}", campaign=campaign, workload_key="dense", parent=f"{campaign}/original", direction="",
        layer="kernel", statement="faster", techniques=("sdpa",), knobs={"threads": 2}, base_stack=(), base_knobs={},
        diff_hash="d1", launch_fingerprint="l1", predicted_time=-0.1, predicted_memory=0.0, log_ratio=0.02,
        peak_bytes=GIB, outcome="ok", verdict="slower", reason="slower by 2 %", memory_limit_bytes=2 * GIB,
        requested_bytes=None, hardware=HERE, software=SOFTWARE, at="2026-11-01T10:00:00+00:00", base_commit="b1", terms="t1",
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


def entry(campaign: str, kind: str, local: str, text: str, **more: object) -> Entry:
    base = Entry(
        id=f"{campaign}/{kind}/{local}", kind="note", text=text, campaign=campaign, workload="dense", workload_key="dense",
        hardware=HERE, software=SOFTWARE, at="2026-11-01T10:00:00+00:00",
    )  # fmt: skip
    return replace(base, kind=kind, **more)  # type: ignore[arg-type]


def batch(campaign: str = "20261101-1", last_seq: int = 40, **more: object) -> Batch:
    """A finished campaign with six ideas, one failure with its log, one lesson."""
    ideas = tuple(
        entry(campaign, "hypothesis", local, text, layer=layer, outcome=outcome)
        for local, text, layer, outcome in IDEAS
    )
    failure = entry(
        campaign, "failure", "t9",
        "oom, gpu_oom: out of memory\nRuntimeError: CUDA out of memory. Tried to allocate 2.50 GiB\nnn.CrossEntropyLoss",
        layer="memory", outcome="oom",
    )  # fmt: skip
    lesson = entry(campaign, "lesson", "l1", "Attention pays on two cores, the optimizer does not", layer="kernel")
    base = Batch(
        campaign=CampaignRow(
            id=campaign, workload="dense", workload_key="dense", state="finished", trust="A", preset="quick", mind="builtin",
            contract_hash="c0", hardware=HERE, software=SOFTWARE, started_at=f"{campaign[:4]}-11-01T09:00:00+00:00",
            candidates=2, trials_ok=1, profile={"forward": 0.4, "backward": 0.6},
        ),
        last_seq=last_seq,
        head=f"{last_seq:064d}",
        directions=(
            DirectionRow(
                id=f"{campaign}/d1", campaign=campaign, question="where does attention spend its time?", layer="kernel",
                start_kind="original", start="original", reason="largest share", expected_gain=0.2, budget=4, closed="", lesson="",
                at="2026-11-01T09:10:00+00:00",
            ),
        ),
        candidates=(
            candidate(campaign, "c1", verdict="adopted", log_ratio=-0.3, diff_hash="proven"),
            candidate(campaign, "c2", diff_hash="slow", techniques=("fused-adamw",)),
        ),
        trials=(
            TrialRow(
                id=f"{campaign}/t9", campaign=campaign, candidate=f"{campaign}/c2", kind="screen", arm="candidate", block="b1",
                steps=20, outcome="oom", cause="gpu_oom", detail="out of memory", wall_s=3.5, step_s=None, score_s=None,
                peak_bytes=None, at="2026-11-01T10:00:00+00:00",
            ),
        ),
        entries=(*ideas, failure, lesson),
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


class Journals:
    """A reader over batches in memory; `damaged` names campaigns that can't be read."""

    def __init__(self, batches: Sequence[Batch] = (), knowledge: Sequence[Entry] = (), damaged: str = "") -> None:
        self.batches = {b.campaign.id: b for b in batches}
        self.notes = list(knowledge)
        self.damaged = damaged
        self.read: list[str] = []
        """campaigns that were asked for"""

    def heads(self) -> list[Head]:
        heads = [Head(b.campaign.id, b.last_seq, b.head) for b in self.batches.values()]
        return [*heads, Head(HOME, len(self.notes), "home")] if self.notes else heads

    def batch(self, campaign: str) -> Batch:
        self.read.append(campaign)
        if campaign == self.damaged:
            raise UnreadableJournalError(f"{campaign} is missing from the library: line 3 is damaged.")
        return self.batches[campaign]

    def knowledge(self) -> list[Entry]:
        return self.notes
