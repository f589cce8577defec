"""DataLoader: batches in pinned memory, and prepared beside the step."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from rsi_tui.contract.model import Layer
from rsi_tui.techniques.base import Change, Effect, Situation
from rsi_tui.techniques.codemod import Codemod, faster
from rsi_tui.techniques.idioms import flow
from rsi_tui.techniques.idioms.ops import integer
from rsi_tui.techniques.idioms.program import Program, SourceFile
from rsi_tui.techniques.idioms.training import training_loops
from rsi_tui.techniques.idioms.tree import Edits, code, keyword, walk, with_keyword

LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
WORKERS = 1
"""each keeps two batches ready; more make torch complain where a process has one core"""
_RANDOM = {
    "random", "rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "uniform", "choice", "shuffle",
    "sample", "default_rng", "RandomState", "seed", "manual_seed", "transforms", "IterableDataset", "worker_init_fn",
    "get_worker_info",
}  # fmt: skip
"""words of code that draws random numbers, which workers draw otherwise"""


def loader_calls(file: SourceFile) -> Iterator[cst.Call]:
    """Constructor calls of DataLoader whose arguments are all visible."""
    for node in walk(file.module):
        if isinstance(node, cst.Call) and file.qualified(node.func) in LOADERS and not any(a.star for a in node.args):
            yield node


class PinnedMemory(Codemod):
    id = "pinned-memory"
    title = "Batches in pinned memory"
    layer: Layer = "data"
    summary = (
        "Lets a DataLoader put batches into page-locked memory and copies them to the GPU without waiting: the copy runs "
        "beside the kernels that are under way. Without a GPU nothing changes."
    )
    applies_when = "a DataLoader is made without pin_memory, its batches go to a GPU by .to(device)"
    risk = "None to the numbers; pinned memory can't be swapped out."
    source = "PyTorch tutorial, 'A guide on good usage of non_blocking and pin_memory()'"
    words = ("DataLoader", ".to(")

    def apply(self, situation: Situation) -> Change:
        if situation.profile is not None and situation.profile.device == "cpu":
            return Change()
        return super().apply(situation)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        loaders = {n for f in program.files.values() for n in _loader_names(f)}
        moved = [call for _, loop in training_loops(file) for call in _moves(loop, loaders)]
        pinned = [c for c in loader_calls(file) if keyword(c, "pin_memory") is None and len([a for a in c.args if a.keyword is None]) < 8]
        if not any(".to(" in f.text or ".cuda(" in f.text for f in program.files.values()):
            return
        for call in pinned:
            edits.replace(call, with_keyword(call, "pin_memory", f"{file.spell('torch.cuda.is_available', edits)}()"))
        for call in moved:
            edits.replace(call, with_keyword(call, "non_blocking", "True"))

    def predict(self, situation: Situation) -> Effect:
        if situation.profile is None or situation.profile.device == "cpu":
            return Effect(time=0.0)
        return Effect(faster(situation.profile.share("data"), 0.3))


def _loader_names(file: SourceFile) -> Iterator[str]:
    """Texts such as `loader` or `self.loader` that are given a DataLoader."""
    for node in walk(file.module):
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=target)], value=cst.Call(func=func)):
                if file.qualified(func) in LOADERS:
                    yield code(target)


def _moves(loop: cst.CSTNode, loaders: set[str]) -> Iterator[cst.Call]:
    """`x.to(device)` of names that a loop over a loader binds: what it yields lies on the host, and only goes to the device."""
    for node in walk(loop):
        if not isinstance(node, cst.For) or not any(code(n) in loaders for n in walk(node.iter) if isinstance(n, cst.Name | cst.Attribute)):
            continue
        batch = {n.value for n in walk(node.target) if isinstance(n, cst.Name)}
        for call in walk(node.body):
            match call:
                case cst.Call(
                    func=cst.Attribute(value=cst.Name(value=name), attr=cst.Name(value="to")),
                    args=[cst.Arg(keyword=None, star="", value=cst.Name() | cst.Attribute() as device)],
                ) if name in batch and "dtype" not in code(device):
                    yield call


class LoaderWorkers(Codemod):
    id = "loader-workers"
    title = "Batches prepared by a worker process"
    layer: Layer = "data"
    summary = (
        "Lets a DataLoader fetch and stack batches in a worker process while the step "
        "runs. It pays where reading a batch takes long and cores are idle."
    )
    applies_when = "a DataLoader works in the training process itself, its data sets draw no random numbers, and data take part of the step"
    risk = "The same batches in the same order; a process more, with its memory, on a core that the step may need."
    source = "PyTorch performance tuning guide, 'Enable asynchronous data loading and augmentation'"
    words = ("DataLoader",)

    def edit(self, file: SourceFile, program: Program, situation: Situation, edits: Edits) -> None:
        if any(_draws(f) for f in program.files.values()):
            return
        for call in loader_calls(file):
            workers = keyword(call, "num_workers")
            if workers is not None and integer(workers) != 0:
                continue
            if any(keyword(call, k) is not None for k in ("worker_init_fn", "multiprocessing_context", "prefetch_factor", "timeout")):
                continue
            if len([a for a in call.args if a.keyword is None]) > 5:
                continue
            new = with_keyword(call, "num_workers", str(WORKERS))
            edits.replace(call, with_keyword(new, "multiprocessing_context", '"fork"'))

    def predict(self, situation: Situation) -> Effect:
        profile = situation.profile
        if profile is None:
            return Effect(time=0.0, memory=0.1)
        idle = situation.contract.launch.threads > 1 or profile.device != "cpu"
        # handing a batch over costs a little where there was nothing to wait for
        return Effect(faster(profile.share("data"), 0.8 if idle else 0.0) + 0.005, memory=0.15)


def _draws(file: SourceFile) -> bool:
    """Whether a class of the file that is indexed, or a function handed to a loader, could draw random numbers."""
    for cls in file.classes.values():
        if any(isinstance(s, cst.FunctionDef) and s.name.value in ("__getitem__", "__getitems__", "__iter__") for s in cls.node.body.body):
            read = flow.names(cls.node).read
            words = {n.attr.value for n in walk(cls.node) if isinstance(n, cst.Attribute)} | set(read)
            if words & _RANDOM:
                return True
    foreign = any(q.startswith(("torchvision", "albumentations")) for q in file.imports.values())
    return foreign or any(keyword(c, "collate_fn") is not None for c in loader_calls(file))
