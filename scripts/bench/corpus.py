"""Texts as campaigns leave them, made from the vocabulary of real techniques and failures: what the library is loaded with.

`texts(n)` are distinct and the same on every machine. `Perturbed` is an encoder for more of them than can be encoded in a
bench: it encodes `BASE` of them for real, and a text beyond those gets the vector of the one it is a variant of, with noise.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experience.encoder import DIMENSIONS, WEIGHTS_SHA256, MiniLM
from experience.records import Batch, CampaignRow, CandidateRow, Entry, EntryKind

BASE = 20_000
NOISE = 0.35
"""length of the noise added to a unit vector: variants of one text lie as far apart as its paraphrases do"""
IN_A_CAMPAIGN = 1000
_PART = 500
KINDS: tuple[EntryKind, ...] = ("hypothesis", "failure", "diff", "lesson", "knowledge")
SHARES = (40, 25, 17, 8, 10)
MODULES = (
    "CausalSelfAttention", "the MLP", "the router", "ExpertLayer", "the embedding", "lm_head", "RMSNorm", "RotaryEmbedding",
    "the residual stream", "DataLoader", "the optimizer step", "GradScaler", "the loss", "the checkpoint writer", "DistributedDataParallel",
    "the KV cache", "the token shuffle", "the tokenizer", "the learning-rate schedule", "the validation loop",
)  # fmt: skip
FUNCTIONS = (
    "forward", "backward", "configure_optimizers", "get_batch", "train_step", "all_reduce_gradients", "apply_rotary", "route_tokens",
    "dispatch", "combine", "save_checkpoint", "estimate_loss", "clip_grad_norm_", "scaled_dot_product_attention", "cross_entropy",
    "layer_norm", "gelu", "softmax", "index_add_", "scatter_add_", "topk", "einsum", "matmul", "baddbmm", "contiguous", "item",
)  # fmt: skip
FLAGS = (
    "--micro-batch", "--grad-accum", "--compile-mode", "--num-workers", "--prefetch-factor", "--dtype", "--block-size", "--capacity-factor",
    "--experts-per-token", "--bucket-cap-mb", "--activation-checkpointing", "--pin-memory", "--fused", "--foreach", "--log-every",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_BLOCKTIME", "GOMP_CPU_AFFINITY", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "PYTORCH_CUDA_ALLOC_CONF",
    "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_P2P_DISABLE", "GLOO_SOCKET_IFNAME", "TORCHINDUCTOR_FX_GRAPH_CACHE",
    "TORCHINDUCTOR_MAX_AUTOTUNE", "CUDA_LAUNCH_BLOCKING", "TOKENIZERS_PARALLELISM", "TORCH_COMPILE_DISABLE",
)  # fmt: skip
LINES = (
    "RuntimeError: CUDA out of memory. Tried to allocate {gib} GiB. GPU 0 has a total capacity of 79.1 GiB of which {mib} MiB is free",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:{n}] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate {big} bytes",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:{n}, unhandled system error",
    "[rank{r}]:[E] ProcessGroupNCCL.cpp:{n}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE)",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied ({n}x{m} and {m2}x{n})",
    "RuntimeError: expected scalar type BFloat16 but found Float in {function}",
    "torch._dynamo.exc.Unsupported: call_function BuiltinVariable(print) in {function}",
    "torch._inductor.exc.InductorError: LoweringException: AssertionError in {function}",
    "RuntimeError: Function 'MmBackward0' returned nan values in its 0th output, step {n}",
    "loss became nan at step {n}, gradient norm {m}",
    "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation in {function}",
    "KeyError: 'model.layers.{r}.mlp.experts.{m}.weight' while loading the checkpoint",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data/shard_{n}.bin'",
    "DataLoader worker (pid {n}) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory",
    "torch.multiprocessing.spawn.ProcessExitedException: process {r} terminated with signal SIGKILL",
    "Segmentation fault (core dumped) in {function}",
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one in {function}",
    "ImportError: libcudart.so.{r}: cannot open shared object file: No such file or directory",
    "ValueError: capacity factor {r}.{r} drops {m} tokens of expert {n}",
    "AssertionError: the update learned differs from the baseline's in {module}",
    "OSError: [Errno 28] No space left on device while writing step {n}",
)  # fmt: skip
ENDS = (
    "adopted, step time {minus} %: proven on fresh pairs", "slower, step time {plus} %: the gain is eaten by copies",
    "not_proven, step time {minus} %: below the margin after {n} runs", "failed, oom: it asked for {gib} GiB more than the limit leaves",
    "failed, crashed: {function} is not supported", "invalid: the learned update leaves its band at {module}", "screened, step time {plus} %: dropped",
)  # fmt: skip
OUTCOMES = ("adopted", "slower", "not_proven", "failed", "failed", "invalid", "screened")
WHY = (
    "the profile puts {share} % of a step into {function}", "{function} of {module} launches {n} small kernels", "{module} is bound by memory bandwidth",
    "each step waits for {function} on the host", "peak memory is set by {module}", "{share} % of the step is spent waiting for the slowest rank",
    "{module} allocates and frees {gib} GiB a step", "{module} recomputes what {function} has already",
)  # fmt: skip
IN_GENERAL = ("costs more than it saves", "was tried on another cluster", "needs a rewrite of the launcher", "helps late in a run", "is for later", "changes what is learned")
NOISE_WORDS = ("first", "second", "late", "every", "rare", "small", "large", "fused", "blocked", "warm", "cold", "pinned", "shared", "sparse")


@dataclass(frozen=True)
class Text:
    kind: EntryKind
    layer: str
    outcome: str
    text: str


def texts(count: int, seed: int = 1, ideas: tuple[str, ...] = ()) -> list[Text]:
    """So many distinct texts; about these ideas, or about the techniques."""
    return list(islice(_distinct(random.Random(seed), ideas), count))


def _distinct(rng: random.Random, ideas: tuple[str, ...]) -> Iterator[Text]:
    seen: set[str] = set()
    layers = ("data", "memory", "kernel", "communication", "optimizer")
    known = tuple((idea, layers[n % 5], tuple(f"{idea} {end}" for end in IN_GENERAL)) for n, idea in enumerate(ideas)) or _techniques()
    while True:
        made = _text(rng, known)
        if made.text not in seen:
            seen.add(made.text)
            yield made


@cache
def _techniques() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    from rsi_tui.techniques.registry import all_techniques

    return tuple((t.title, t.layer, (*_sentences(t.summary), t.risk, f"It applies when {t.applies_when}")) for t in all_techniques())


@cache
def _failures() -> tuple[tuple[str, str, str], ...]:
    from rsi_tui.evaluator.failure_rules import RULES

    return tuple((rule.cause, rule.says.split("{")[0].strip() or rule.cause, rule.advice) for rule in RULES)


def _sentences(text: str) -> list[str]:
    return [part.strip().rstrip(".") for part in text.split(". ") if part.strip()]


def filled(rng: random.Random, text: str) -> str:
    return text.format(
        gib=f"{rng.uniform(0.1, 40):.2f}", mib=rng.randint(1, 900), n=rng.randint(2, 9999), m=rng.randint(2, 512), m2=rng.randint(513, 4096),
        big=rng.randint(10**8, 10**11), r=rng.randint(0, 15), function=rng.choice(FUNCTIONS), module=rng.choice(MODULES),
        minus=f"-{rng.uniform(0.2, 25):.1f}", plus=f"+{rng.uniform(0.1, 30):.1f}", share=rng.randint(3, 70),
    )  # fmt: skip


def _text(rng: random.Random, known: tuple[tuple[str, str, tuple[str, ...]], ...]) -> Text:
    title, layer, sentences = rng.choice(known)
    kind = rng.choices(KINDS, SHARES)[0]
    outcome = rng.choice(OUTCOMES)
    where, function, flag = rng.choice(MODULES), rng.choice(FUNCTIONS), rng.choice(FLAGS)
    value = rng.choice(("1", "2", "4", "8", "16", "32", "off", "true", "bf16", "ring", "granularity=fine"))
    if kind == "hypothesis":
        ending = filled(rng, ENDS[OUTCOMES.index(outcome)])
        text = f"{title} in {where}: {filled(rng, rng.choice(WHY))}; {rng.choice(sentences)}\n{flag}={value}\n{ending}"
    elif kind == "failure":
        cause, says, advice = rng.choice(_failures())
        outcome = "oom" if "oom" in cause else "crashed"
        text = f"{outcome}, {cause}: {says}\ntried: {title} in {where} with {flag}={value}\n{filled(rng, rng.choice(LINES))}\n{advice}"
    elif kind == "diff":
        names = rng.sample(FUNCTIONS, 4)
        text = f"{title} ({outcome})\nfiles: train_{rng.randint(1, 99)}.py, model/{where.split()[-1].lower()}.py\nin: def {function}\nnew names: {names[0]}, {names[1]}\nremoved names: {names[2]}, {names[3]}"
    elif kind == "lesson":
        text = f"{title} {'pays' if outcome == 'adopted' else 'does not pay'} where {filled(rng, rng.choice(WHY))}: {rng.choice(sentences)}"
    else:
        text = f"{layer} > {title}\n{rng.choice(sentences)}. {filled(rng, rng.choice(WHY)).capitalize()}. See {flag} and {function} in the {rng.choice(NOISE_WORDS)} {rng.choice(NOISE_WORDS)} case"
    return Text(kind, layer, "" if kind == "knowledge" else outcome, text[:900])


class LaterError(Exception):
    """The time that was given is over."""


class Perturbed:
    """An encoder: some texts (kept in files) and all queries for real, variants of those texts by noise."""

    name = "all-MiniLM-L6-v2"
    sha256 = WEIGHTS_SHA256

    def __init__(self, kept: Path, base: Sequence[Text], until: float = float("inf")) -> None:
        """`base`: the texts that are encoded; `kept`: folder of their vectors. LaterError when not all could be made by `until` (of `time.monotonic`)."""
        self._real, self._base = MiniLM(), base
        self._known = {text.text: number for number, text in enumerate(self._base)}
        kept.mkdir(parents=True, exist_ok=True)
        self.vectors: NDArray[np.float32] = np.concatenate([self._part(kept, first, until) for first in range(0, len(base), _PART)])

    def _part(self, kept: Path, first: int, until: float) -> NDArray[np.float32]:
        """Vectors of some base texts, from their file or encoded now: an interrupted bench goes on."""
        wanted = [text.text for text in self._base[first : first + _PART]]
        path = kept / f"{hashlib.sha256(repr(wanted).encode()).hexdigest()[:16]}.npy"
        if not path.exists():
            if time.monotonic() > until:
                raise LaterError
            np.save(path.with_suffix(".new.npy"), self._real.encode(wanted).astype(np.float16))
            path.with_suffix(".new.npy").replace(path)
        stored: NDArray[np.float32] = np.load(path).astype(np.float32)
        return stored

    def load(self) -> None:
        return None

    def encode(self, wanted: Sequence[str]) -> Any:
        made = np.empty((len(wanted), DIMENSIONS), np.float32)
        for at, text in enumerate(wanted):
            base, variant, _ = text.rpartition("\nvariant ")
            number = self._known.get(base if variant else text)
            if number is None:
                made[at] = self._real.encode([text])[0]
            else:
                made[at] = self.vectors[number]
                if variant:
                    noise = np.random.default_rng(int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)).standard_normal(DIMENSIONS)
                    made[at] += NOISE * (noise / np.linalg.norm(noise)).astype(np.float32)
        return made / np.linalg.norm(made, axis=1, keepdims=True)


def batches(count: int, made: Sequence[Text]) -> Iterator[Batch]:
    """Campaigns of `IN_A_CAMPAIGN` entries: these texts first, then variants of them in turn."""
    for first in range(0, count, IN_A_CAMPAIGN):
        yield _campaign(first // IN_A_CAMPAIGN, [(n, made[n % len(made)], n // len(made)) for n in range(first, min(first + IN_A_CAMPAIGN, count))])


def _campaign(number: int, chosen: list[tuple[int, Text, int]]) -> Batch:
    name, at = f"2026{1 + number // 28 % 12:02d}{1 + number % 28:02d}-{number:06d}-0000", f"2026-{1 + number // 28 % 12:02d}-{1 + number % 28:02d}T10:00:00+00:00"
    hardware, software, key = f"cores {2 ** (1 + number % 6)}, cpu model {number % 7}", f"python 3.11.2, torch 2.{9 + number % 5}.0", f"workload{number % 40}"
    entries = tuple(
        Entry(
            id=f"{name}/{text.kind}/{n}", kind=text.kind, text=text.text + (f"\nvariant {variant}" if variant else ""), campaign=name, workload=key,
            workload_key=key, layer=text.layer, hardware=hardware, software=software, outcome=text.outcome, at=at, candidate=f"{name}/c{n % 50}",
        )
        for n, text, variant in chosen
    )  # fmt: skip
    rows = tuple(
        CandidateRow(
            id=f"{name}/c{n}", campaign=name, workload_key=key, parent=f"{name}/original", direction="", layer="kernel", statement=f"idea {n}",
            techniques=(f"technique-{n}",), knobs={"threads": n}, base_stack=(), base_knobs={}, diff_hash=f"{name}{n}", launch_fingerprint=f"{n}",
            predicted_time=-0.05, predicted_memory=0.0, log_ratio=0.01, peak_bytes=2**30, outcome="ok", verdict="slower", reason="slower",
            memory_limit_bytes=2**31, requested_bytes=None, hardware=hardware, software=software, at=at, base_commit="b", terms="t",
        )
        for n in range(50)
    )  # fmt: skip
    campaign = CampaignRow(
        id=name, workload=key, workload_key=key, state="finished", trust="A", preset="quick", mind="builtin", contract_hash="c",
        hardware=hardware, software=software, started_at=at, ended_at=at, candidates=50,
    )  # fmt: skip
    return Batch(campaign, last_seq=100, head=f"{number:064d}", candidates=rows, entries=entries)
