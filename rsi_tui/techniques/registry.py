"""All techniques, in the fixed order in which a candidate with several of them is built.

Graph-changing code first, then what wraps it, then settings. The order is part of a candidate's
identity: the same set of techniques always gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache

from rsi_tui.contract.model import Contract, KnobValue
from rsi_tui.errors import PatchError
from rsi_tui.techniques.base import Change, Effect, Situation, Technique


@lru_cache(maxsize=1)
def all_techniques() -> tuple[Technique, ...]:
    """Every technique with a name of its own; a contract's single settings come on top (`settings_of`)."""
    from rsi_tui.techniques.communication.averaging import BucketedAllReduce, OverlappedAllReduce, SyncOnce
    from rsi_tui.techniques.communication.ddp import (
        BucketSize,
        DdpNoSync,
        FindUnusedOff,
        GradientAsBucketView,
        StaticGraph,
    )
    from rsi_tui.techniques.communication.expert_parallel import ExpertParallel
    from rsi_tui.techniques.communication.precision import Bf16Gradients
    from rsi_tui.techniques.communication.scalars import FewerScalarSyncs
    from rsi_tui.techniques.compiler.compile import TorchCompile
    from rsi_tui.techniques.compiler.regional import CompileMode, RegionalCompile
    from rsi_tui.techniques.data.host_sync import DeferHostSync
    from rsi_tui.techniques.data.loaders import LoaderWorkers, PinnedMemory
    from rsi_tui.techniques.data.placement import CreateOnDevice, ReadBackWhenShown
    from rsi_tui.techniques.kernel.activations import FusedActivation, InPlaceActivation
    from rsi_tui.techniques.kernel.autocast import Bf16Autocast
    from rsi_tui.techniques.kernel.autocast_cache import AutocastCacheKept
    from rsi_tui.techniques.kernel.causal_blocks import CausalBlocks
    from rsi_tui.techniques.kernel.channels import ChannelsLast
    from rsi_tui.techniques.kernel.constants import ConstantsMadeOnce
    from rsi_tui.techniques.kernel.fused_qkv import FusedQkv
    from rsi_tui.techniques.kernel.gated import FusedGateUp
    from rsi_tui.techniques.kernel.moe_capacity import NoCapacityPadding
    from rsi_tui.techniques.kernel.moe_counts import RoutingCounts
    from rsi_tui.techniques.kernel.moe_experts import BatchedExperts, SortedExperts
    from rsi_tui.techniques.kernel.norms import FusedLayerNorm, FusedRmsNorm
    from rsi_tui.techniques.kernel.positions import CountedRowsHead, OnePositionHead
    from rsi_tui.techniques.kernel.sdpa import Sdpa
    from rsi_tui.techniques.kernel.switches import NoAnomalyDetection, Tf32
    from rsi_tui.techniques.knobs import (
        CachingAllocator,
        LargerMicroBatch,
        PassiveWaiting,
        SmallerMicroBatch,
        ThreadCount,
    )
    from rsi_tui.techniques.launch.denormals import FlushDenormals
    from rsi_tui.techniques.launch.environment import ExpandableSegments, GlibcKeepsPages, HugePages, PinThreads
    from rsi_tui.techniques.launch.garbage import GcFreeze
    from rsi_tui.techniques.memory.checkpointing import ActivationCheckpointing, NoActivationCheckpointing
    from rsi_tui.techniques.memory.cross_entropy import ChunkedCrossEntropy, LinearCrossEntropy
    from rsi_tui.techniques.memory.emptying import NoCacheEmptying
    from rsi_tui.techniques.memory.releasing import EarlyRelease, EarlyZeroGrad
    from rsi_tui.techniques.memory.selective import SelectiveCheckpointing
    from rsi_tui.techniques.optimizer.clipping import ClipForeach, ZeroGradToNone
    from rsi_tui.techniques.optimizer.updates import ForeachOptimizer, FusedOptimizer

    return (
        NoActivationCheckpointing(),
        Sdpa(),
        CausalBlocks(),
        FusedQkv(),
        BatchedExperts(),
        SortedExperts(),
        NoCapacityPadding(),
        RoutingCounts(),
        FusedRmsNorm(),
        FusedLayerNorm(),
        FusedGateUp(),
        FusedActivation(),
        InPlaceActivation(),
        ConstantsMadeOnce(),
        CreateOnDevice(),
        OnePositionHead(),
        CountedRowsHead(),
        LinearCrossEntropy(),
        ChunkedCrossEntropy(),
        FusedOptimizer(),
        ForeachOptimizer(),
        ClipForeach(),
        ZeroGradToNone(),
        ActivationCheckpointing(),
        SelectiveCheckpointing(),
        NoCacheEmptying(),
        EarlyZeroGrad(),
        EarlyRelease(),
        PinnedMemory(),
        LoaderWorkers(),
        DeferHostSync(),
        ExpertParallel(),
        SyncOnce(),
        BucketedAllReduce(),
        OverlappedAllReduce(),
        DdpNoSync(),
        GradientAsBucketView(),
        StaticGraph(),
        BucketSize(),
        FindUnusedOff(),
        Bf16Gradients(),
        FewerScalarSyncs(),
        ReadBackWhenShown(),
        ChannelsLast(),
        TorchCompile(),
        RegionalCompile(),
        CompileMode(),
        Bf16Autocast(),
        AutocastCacheKept(),
        Tf32(),
        NoAnomalyDetection(),
        FlushDenormals(),
        GcFreeze(),
        CachingAllocator(),
        GlibcKeepsPages(),
        HugePages(),
        ExpandableSegments(),
        PassiveWaiting(),
        PinThreads(),
        ThreadCount(),
        LargerMicroBatch(),
        SmallerMicroBatch(),
    )


def settings_of(contract: Contract) -> tuple[Technique, ...]:
    """`setting:NAME=VALUE` for every value of every knob but the defaults."""
    from rsi_tui.techniques.knobs import settings

    return settings(contract)


def get(technique_id: str, contract: Contract | None = None) -> Technique:
    """The technique of that id; settings need the contract that lists them.

    Raises PatchError when there is none.
    """
    known = {t.id: t for t in (*all_techniques(), *(settings_of(contract) if contract else ()))}
    if technique_id in known:
        return known[technique_id]
    near = get_close_matches(technique_id, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else "; docs/techniques.md lists those there are."
    raise PatchError(f"there is no technique {technique_id}{hint}")


def applicable(situation: Situation) -> list[tuple[Technique, Change, Effect]]:
    """Every technique that would change something here, with its change and predicted effect, in registry order.

    A setting that a recipe with a name of its own would choose, alone or with others, is left out.
    """
    found: list[tuple[Technique, Change, Effect]] = []
    for technique in (*all_techniques(), *settings_of(situation.contract)):
        change = technique.apply(situation)
        if change.empty:
            continue
        is_covered = technique.id.startswith("setting:") and any(
            not other.sources and change.knobs.items() <= other.knobs.items() for _, other, _ in found
        )
        if not is_covered:
            found.append((technique, change, technique.predict(situation)))
    return found


def ordered(ids: Iterable[str], contract: Contract) -> tuple[Technique, ...]:
    """The techniques of a set of ids in registry order, each once.

    Raises PatchError for unknown ids and for two that exclude each other.
    """
    rank = {t.id: i for i, t in enumerate((*all_techniques(), *settings_of(contract)))}
    chosen = sorted({i: get(i, contract) for i in ids}.values(), key=lambda t: rank[t.id])
    names = {t.id for t in chosen}
    for technique in chosen:
        if clash := sorted(names & set(technique.conflicts)):
            raise PatchError(f"{technique.id} and {clash[0]} exclude each other; choose one of them.")
    return tuple(chosen)


def apply_all(ids: Iterable[str], situation: Situation) -> Change:
    """The change that all of the techniques make together, each applied to what the ones before it left.

    Raises PatchError, naming the technique, when one finds nothing to change, when two exclude each
    other, or when two set a knob to different values.
    """
    sources: dict[str, str] = {}
    knobs: dict[str, KnobValue] = {}
    for technique in ordered(ids, situation.contract):
        now = replace(
            situation, sources={**situation.sources, **sources}, knobs={**situation.knobs, **knobs}
        )
        change = technique.apply(now)
        if change.empty:
            raise PatchError(f"{technique.id} finds nothing to change here: {technique.applies_when}.")
        for name, value in change.knobs.items():
            if name in knobs and knobs[name] != value:
                raise PatchError(f"{technique.id} would set {name} to {value}, which is set to {knobs[name]} already.")
        sources.update(change.sources)
        knobs.update(change.knobs)
    return Change(sources=sources, knobs=knobs)
