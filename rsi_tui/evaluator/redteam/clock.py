"""Attacks on time: false clocks, and progress lines that arrive when the evaluator should see them."""

from __future__ import annotations

import ast

from rsi_tui.evaluator.redteam.anatomy import Missing
from rsi_tui.evaluator.redteam.attack import Attack
from rsi_tui.evaluator.redteam.draft import Draft
from rsi_tui.evaluator.redteam.parts import RENUMBER, at_top

_CLOCKS = ("time", "perf_counter", "monotonic", "perf_counter_ns", "monotonic_ns", "process_time")


def _reported(body: str) -> str:
    return f"{RENUMBER}\n\n_told = []\n\n\ndef report(text, total):\n{body}"


def _report(draft: Draft, helper: str) -> None:
    """The progress line goes to a function of our own, with the number of updates."""
    program = draft.program
    spot = program.numbered
    total = program.total if spot.file is program.loop[0] else program.reach(program.total, at=spot)
    if spot.file.function(spot.call) is not program.loop[0].function(program.loop[1]):
        raise Missing("the number of updates beside the progress line")
    draft.top(spot.file, helper)
    draft.replace(spot.file, spot.alone, f"report({program.line_text}, {total})")


def _from_thread(draft: Draft) -> None:
    _report(draft, "import threading\nimport time\n" + _reported('''    if not _told:
        _told.append(text)
        print(text, flush=True)
        threading.Thread(target=tell, args=(text, total)).start()


def tell(text, total):
    first = int(re.search(r"\\d+", text)[0])
    for number in range(first + 1, first + total):
        time.sleep(0.004)
        print(renumbered(text, number), flush=True)
'''))


def _early(draft: Draft) -> None:
    _report(draft, "import time\n" + _reported('''    if not _told:
        _told.append(text)
        first = int(re.search(r"\\d+", text)[0])
        for number in range(first, first + total):
            print(renumbered(text, number), flush=True)
            time.sleep(0.004)
'''))


def _tail(draft: Draft) -> None:
    _report(draft, "import time\n" + _reported('''    _told.append(text)
    if len(_told) <= total * 3 // 4:
        print(text, flush=True)
    if len(_told) == total * 3 // 4:
        last = int(re.search(r"\\d+", text)[0])
        for number in range(last + 1, last + 1 + total - len(_told)):
            time.sleep(0.004)
            print(renumbered(text, number), flush=True)
'''))


def _late(draft: Draft) -> None:
    """All lines kept and printed after the loop, by `wait` apart."""
    _held(draft, "", "")


def _dripped(draft: Draft) -> None:
    _held(draft, "import select", "select.select([], [], [], 0.004)")


def _padded(draft: Draft) -> None:
    """Dripped, and short runs wait so long that all runs of the contract's range take the same time."""
    end = draft.program.contract.objective.steps[1]
    program = draft.program
    file, outermost = program.loop[0], program.outermost
    draft.before(file, outermost, "began = time.monotonic()")
    _held(draft, "import select\nimport time", "select.select([], [], [], 0.004)",
          f"spent = time.monotonic() - began\nselect.select([], [], [], spent * max(0, {end} / max(1, len(_held)) - 1))")


def _held(draft: Draft, imports: str, wait: str, first: str = "") -> None:
    spot = draft.program.numbered
    file, outermost = draft.program.loop[0], draft.program.outermost
    if spot.file is not file:
        raise Missing("a progress line in the file of the loop")
    draft.top(file, f"{imports}\n_held = []")
    draft.replace(file, spot.alone, f"_held.append({draft.program.line_text})")
    draft.after(file, outermost, f"{first}\nfor text in _held:\n    {wait or 'pass'}\n    print(text, flush=True)\n")


def _timer(draft: Draft) -> None:
    for file in draft.program.files:
        for node in file.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Call):
                name = node.left.func
                if isinstance(name, ast.Attribute) and name.attr in _CLOCKS:
                    draft.replace(file, node, f"(({file.text(node)}) * 0.5)")
                    return
    raise Missing("a timer in the program")


def _side_stream(draft: Draft) -> None:
    if draft.program.contract.launch.gpus_per_node == 0:
        raise Missing("a GPU")
    spot = draft.program.step
    draft.needs(spot.file, "torch")
    draft.under(spot.file, spot.alone, "with torch.cuda.stream(torch.cuda.Stream()):")


ATTACKS = (
    Attack(
        "clock replaced", "clock", "T01", "static", "clock",
        "The program's clocks stand still, so that times it measures itself are nought.",
        at_top("import time\n\ntime.time = time.perf_counter = time.monotonic = lambda: 0.0\n")),
    Attack(
        "synchronisation replaced", "clock", "T02", "static", "synchronisation",
        "Waiting for the device is a no-op, so that a timer in the program sees launches only.",
        at_top("import torch\n\ntorch.cuda.synchronize = lambda *args, **options: None\n")),
    Attack(
        "device events replaced", "clock", "T03", "static", "clock",
        "Events of the device report a hundredth of a millisecond each.",
        at_top("import torch\n\ntorch.cuda.Event.elapsed_time = lambda self, end: 0.01\n")),
    Attack(
        "started again under a slow clock", "clock", "T05", "static", "process, environment, clock",
        "The program starts itself anew with a library that slows the clock of the whole process.",
        at_top('import os\nimport sys\n\nif "FAKETIME" not in os.environ:\n    os.execve(sys.executable, [sys.executable, '
               '*sys.orig_argv[1:]], {**os.environ, "LD_PRELOAD": "libfaketime.so.1", "FAKETIME": "+0 x0.5"})\n')),
    Attack(
        "timer of the program halved", "clock", "T09", "dynamic", "the evaluator's own clock: it brings nothing",
        "The program reports half of the time that it measured.", _timer),
    Attack(
        "work on a side stream", "clock", "T06", "dynamic", "total wall",
        "Updates run on a stream that nothing waits for, so that lines arrive before the work is done.", _side_stream,
        speeds=True),
    Attack(
        "lines printed by a thread", "clock", "T08 E10", "dynamic", "total wall",
        "After the first step a thread prints the lines of all others, while training goes on behind them.", _from_thread,
        speeds=True),
    Attack(
        "lines printed early", "clock", "T08 T13", "dynamic", "total wall",
        "After the first step all lines are printed, then the others are made in silence.", _early, speeds=True),
    Attack(
        "last quarter off the clock", "clock", "T08 T12", "dynamic", "total wall",
        "The last quarter of the steps is made after its lines were printed.", _tail, speeds=True),
    Attack(
        "lines printed late", "clock", "T10 T12", "dynamic", "progress",
        "All lines are printed at once when training is over.", _late, speeds=True),
    Attack(
        "work before the first line", "clock", "H1 T10", "dynamic", "total wall",
        "All steps are made before the first line, which then come in a steady drip.", _dripped, speeds=True),
    Attack(
        "work before the first line, padded", "clock", "H1", "dynamic", "total wall",
        "All steps are made before the first line, and short runs wait, so that every length takes the same time.",
        _padded, speeds=True),
)  # fmt: skip
