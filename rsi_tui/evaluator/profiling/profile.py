"""One instrumented trial of a torch program, and the facts read from it. No verdict ever uses its times.

The program is not edited: `shim.py` is mounted as sitecustomize for this trial alone. A program in
which it sees no optimizer step (no torch, or an interpreter that ignores PYTHONPATH) is profiled as
one phase, `other`.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from statistics import fmean
from typing import Any

from rsi_tui.contract.model import Contract
from rsi_tui.evaluator.preflight import preflight
from rsi_tui.evaluator.profiling.settings import unused_settings
from rsi_tui.evaluator.trial import OUT, Instruments, TrialRequest, TrialResult, TrialRunner
from rsi_tui.journal.facts import (
    CommunicationFacts,
    MemoryFacts,
    OperatorFacts,
    PhaseFacts,
    ProfileFacts,
    TrialFacts,
)
from rsi_tui.launch.network import rate_bits
from rsi_tui.launch.spec import Mount

SHIM = Path(__file__).with_name("shim.py")
SHIM_EVENTS = Path(__file__).with_name("shim_events.py")
_SHIM_FOLDER = "/rsi/profile"
_PHASES = ("data", "forward", "backward", "communication", "optimizer", "host_sync", "compile", "other")
_TOP = 25


def run_profile(
    runner: TrialRunner, request: TrialRequest, cancel: threading.Event | None = None
) -> tuple[TrialFacts, ProfileFacts | None]:
    """Run one profile trial of at least warm-up + 3 steps; None when it failed, with one sentence in `detail`.

    The sentence is made for the person who wrote the contract: this is the first run of a campaign.
    The caller discards the trial.
    """
    warmup, clean, operators = _plan(request.steps, runner.contract.objective.warmup)
    instruments = Instruments(
        mounts=(
            Mount(SHIM, f"{_SHIM_FOLDER}/sitecustomize.py"),
            Mount(SHIM_EVENTS, f"{_SHIM_FOLDER}/rsi_profile_events.py"),
        ),
        env={
            "RSI_PROFILE_OUT": OUT,
            "RSI_PROFILE_PROGRESS": runner.contract.launch.progress,
            "RSI_PROFILE_WARMUP": str(warmup),
            "RSI_PROFILE_STEPS": str(clean),
            "RSI_PROFILE_OPERATOR_STEPS": str(operators),
        },
        pythonpath=_SHIM_FOLDER,
        collect=("rsi-profile-*.json",),
        patience=3.0,
        extra_memory_bytes=2**30,
    )
    result = runner.run(request, cancel, instruments)
    if result.facts.outcome != "ok":
        said = preflight(runner.contract, result) or result.facts.detail
        return result.facts.model_copy(update={"detail": said}), None
    return result.facts, _profile(runner, request, result)


def _plan(steps: int, warmup: int) -> tuple[int, int, int]:
    """(warm-up, clean steps, steps under the profiler): one for the operators, whatever the length.

    A step of many small operators leaves hundreds of MiB of events: three of them did not fit beside a model of 300 MiB.
    """
    warmup = min(warmup, max(1, steps // 3))
    return warmup, max(1, steps - warmup - 2), 1


def _profile(runner: TrialRunner, request: TrialRequest, result: TrialResult) -> ProfileFacts:
    contract = runner.contract
    unused = unused_settings(contract, runner.base_tree(request.candidate.commit))
    common: dict[str, Any] = {
        "tokens_per_step": contract.invariants.tokens_per_step,
        "unused_settings": unused,
    }
    seen = result.collected.get("rsi-profile-0.json") or next(iter(result.collected.values()), None)
    if seen is None:
        step_s = result.facts.step_s or result.facts.wall_s / max(1, request.steps)
        whole = (PhaseFacts(name="other", seconds=step_s, share=1.0),)
        return ProfileFacts(step_s=step_s, phases=whole, operators=(), peak_bytes=result.facts.peak_bytes, **common)
    return _with_link(read_profile(json.loads(seen), **common), contract, result.facts)


def _with_link(profile: ProfileFacts, contract: Contract, facts: TrialFacts) -> ProfileFacts:
    """The profile with what the link's own counter saw, a mean over the whole run, its start included."""
    if profile.communication is None:
        return profile
    sent = [node.sent_bytes for node in facts.nodes if node.sent_bytes is not None]
    seen = {
        "link_bytes": max(sent) / max(1, facts.steps) if sent else None,
        "link_rate": rate_bits(contract.launch.link) / 8 or None,
    }
    return profile.model_copy(update={"communication": profile.communication.model_copy(update=seen)})


def read_profile(document: dict[str, Any], **common: Any) -> ProfileFacts:
    """Facts of one process's record: means over the steps after warm-up that ran without the profiler.

    MFU is the matrix products that were counted / (step time * GEMM peak of the type computed in). Where none
    were seen (a compiled program), it is 6 * parameters * tokens of a step, the usual estimate for a dense
    transformer (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    """
    first = document["warmup"]
    chosen = slice(first, first + document["clean_steps"])
    steps = document["steps"][chosen] or document["steps"]
    seconds = {name: fmean(step.get(name, 0.0) for step in steps) for name in _PHASES}
    seconds["other"] += fmean(step.get("between", 0.0) for step in steps)
    step_s = sum(seconds.values())
    dtype = document["dtype"]
    peak = document["peaks"].get("float32" if dtype == "float32" else "bfloat16") or None
    talk = document.get("communication") or {}
    profiled = max(1, document["operator_steps"])
    counted = document.get("flops", 0) / profiled
    work = counted or 6.0 * document["parameters"] * common.get("tokens_per_step", 0) / talk.get("world_size", 1)
    faults = document["faults"][chosen]
    return ProfileFacts(
        step_s=step_s,
        phases=tuple(PhaseFacts.model_validate({"name": name, "seconds": spent, "share": spent / step_s}) for name, spent in seconds.items() if spent > 0),
        operators=_operators(document),
        peak_bytes=document.get("peak_bytes") or None,
        page_faults_per_step=fmean(faults) if faults else None,
        parameters=document["parameters"] or None,
        mfu=work / (step_s * peak) if peak and work and step_s else None,
        peak_flops=peak,
        dtype=dtype,
        device=document["device"],
        communication=_communication(talk, profiled, step_s, document["operator_seconds"] / profiled) if talk else None,
        memory=_memory(document),
        flops_per_step=counted or None,
        **common,
    )


def _communication(talk: dict[str, Any], steps: int, step_s: float, profiled_s: float) -> CommunicationFacts:
    """A step's share; times are scaled from profiled steps to clean ones, which the profiler does not slow down."""
    scale = step_s / profiled_s / steps if profiled_s else 1 / steps
    return CommunicationFacts(
        backend=talk["backend"],
        world_size=talk["world_size"],
        calls=talk["calls"] / steps,
        payload_bytes=talk["payload_bytes"] / steps,
        exposed_s=talk["exposed_s"] * scale,
        overlapped_s=talk["overlapped_s"] * scale,
    )


def _memory(document: dict[str, Any]) -> MemoryFacts | None:
    held, points = document.get("held"), document.get("memory") or []
    if not held:
        return None
    return MemoryFacts(
        parameters_bytes=held["parameters"],
        gradients_bytes=held["gradients"],
        optimizer_bytes=held["optimizer"],
        activations_bytes=max((int(size) for _, size in points), default=0),
        timeline=tuple((at, int(size)) for at, size in points),
    )


def _operators(document: dict[str, Any]) -> tuple[OperatorFacts, ...]:
    """Self times a step; shares of the time that the profiled steps took, the profiler's own cost included."""
    steps, whole = document["operator_steps"], document["operator_seconds"]
    if not steps or not whole:
        return ()
    return tuple(
        OperatorFacts(name=name, self_s=own / steps, share=own / whole, calls=calls / steps, peak_output_bytes=largest)
        for name, own, calls, largest in document["operators"][:_TOP]
    )
