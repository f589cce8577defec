"""Patches that change the syntax tree of a program and nothing that it computes, of many kinds.

Each is what a person or a mind might commit without effect: helpers nobody calls, names, order, redundant
forms. Applied to the bundled dense workload; a patch that no longer fits the source raises ValueError, so
that the count of patches is never smaller than it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from scripts.bench.scripted import Patch

Sources = Mapping[str, str]


def replaced(path: str, old: str, new: str) -> Callable[[Sources], dict[str, str]]:
    """A function that makes this one replacement, which must fit exactly once."""

    def apply(sources: Sources) -> dict[str, str]:
        if sources[path].count(old) != 1:
            raise ValueError(f"{old!r} occurs {sources[path].count(old)} times in {path}")
        return {path: sources[path].replace(old, new)}

    return apply


def appended(path: str, text: str) -> Callable[[Sources], dict[str, str]]:
    return lambda sources: {path: sources[path] + text}


REWRITTEN: tuple[tuple[str, Callable[[Sources], dict[str, str]]], ...] = (
    ("a condition that is always true", replaced("train.py", "    model.train()\n", "    if True:\n        model.train()\n")),
    ("a local with another name", replaced(
        "train.py", "    accumulation = batch_size // args.micro_batch\n",
        "    pieces = batch_size // args.micro_batch\n    accumulation = pieces\n")),
    ("an assertion that holds", replaced("train.py", "    model.train()\n", "    assert accumulation >= 1\n    model.train()\n")),
    ("a comparison turned round", replaced("train.py", "    if step < warmup_steps:", "    if warmup_steps > step:")),
    ("a sum in another order", replaced("train.py", "range(first_step, first_step + args.steps)", "range(first_step, args.steps + first_step)")),
    ("zero_grad says what it does anyway", replaced("train.py", "optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=True)")),
    ("a factor of one", replaced("train.py", "learning_rate = 1e-3", "learning_rate = 1e-3 * 1.0")),
    ("a constant as a product", replaced("train.py", "decay_steps = 20000", "decay_steps = 2 * 10000")),
    ("a tuple as a list's tuple", replaced("train.py", "betas = (0.9, 0.95)", "betas = tuple([0.9, 0.95])")),
    ("the step's loss starts as an int product", replaced("train.py", "        step_loss = 0.0\n", "        step_loss = 0.0 * accumulation\n")),
    ("a loop's slice named first", replaced(
        "train.py", "            rows = slice(i * args.micro_batch, (i + 1) * args.micro_batch)\n",
        "            start = i * args.micro_batch\n            rows = slice(start, start + args.micro_batch)\n")),
    ("an empty try", replaced("train.py", "    model.train()\n", "    try:\n        model.train()\n    finally:\n        pass\n")),
    ("makedirs by keyword", replaced("train.py", "os.makedirs(args.out, exist_ok=True)", "os.makedirs(name=args.out, exist_ok=True)")),
    ("one more pass", replaced("train.py", "        x, y = batches[step]\n", "        pass\n        x, y = batches[step]\n")),
    ("the device as a constant expression", replaced("train.py", 'else "cpu"\n', 'else "c" + "pu"\n')),
    ("a lambda that nobody calls", replaced("train.py", "    model.train()\n", "    unused = lambda value: value  # noqa\n    model.train()\n")),
    ("warm-up written as a fraction", replaced(
        "train.py", "learning_rate * (step + 1) / warmup_steps", "learning_rate * (1 + step) / warmup_steps")),
    ("a list made and dropped", replaced("train.py", "        x, y = batches[step]\n", "        x, y = batches[step]\n        len([step])\n")),
)  # fmt: skip
"""each fits the bundled dense workload exactly once"""


def helpers(count: int) -> Iterator[tuple[str, Callable[[Sources], dict[str, str]]]]:
    """Code that is defined and never used, of six forms."""
    forms = (
        ("a function", "\n\ndef helper_{n}(value):\n    return value + {n}\n"),
        ("a class", "\n\nclass Holder{n}:\n    size = {n}\n\n    def get(self):\n        return self.size\n"),
        ("a constant", "\n\nUNUSED_{n} = {n}\n"),
        ("a table", "\n\nTABLE_{n} = {{name: len(name) for name in ('a', 'bc', '{n}')}}\n"),
        ("a generator", "\n\ndef walk_{n}(items):\n    for item in items:\n        yield item, {n}\n"),
        ("a dead branch", "\n\nif False:\n    NEVER_{n} = {n}\n"),
    )
    for n in range(count):
        what, text = forms[n % len(forms)]
        yield f"{what} that nobody uses ({n})", appended(("model.py", "train.py")[n % 2], text.format(n=n))


def no_ops(sources: Sources, count: int) -> list[Patch]:
    """`count` different patches of these sources. Raises ValueError when one does not fit."""
    every = [*REWRITTEN, *helpers(max(0, count - len(REWRITTEN)))]
    return [Patch(name, apply(sources)) for name, apply in every[:count]]
