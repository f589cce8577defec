"""Write validation data that exists nowhere else: functions of the training text with their names changed.

    python make_hidden.py --seed SECRET --out hidden

The secret picks functions of the standard library and a new name for each of their identifiers. A new
name keeps the length, the underscores and the capitals of the old one and is made of words of other
names where there are any, so that the text still reads like Python and a model's loss on it means
something. Keywords, built-ins, `self`, `cls` and dunder names stay. The same identifier gets the same
new name everywhere.
"""

import argparse
import ast
import builtins
import hashlib
import keyword
import os
import random
import re
import string

import numpy as np

from data import Vocabulary, read_text, source_files
from model import MoEConfig

WINDOWS = 64  # of block_size + 1 tokens
MIN_LINES, MAX_LINES = 8, 80
FUNCTIONS_PER_FILE = 4  # so that the data comes from many files
KEPT = {"self", "cls", *keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
PART = re.compile(r"[a-z]+|[A-Z]+|[0-9]+|_+")
NAMED_FIELDS = ("id", "attr", "arg", "name", "asname", "module")


def may_be_renamed(name):
    dunder = name.startswith("__") and name.endswith("__")
    return name.isascii() and not dunder and name not in KEPT


def identifiers(tree):
    """Every name that the code of a syntax tree defines or uses."""
    names = set()
    for node in ast.walk(tree):
        for field in NAMED_FIELDS:
            value = getattr(node, field, None)
            if isinstance(value, str):
                names.update(value.split("."))
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            names.update(node.names)
    return set(filter(may_be_renamed, names))


def parse(path):
    """Source and syntax tree of a file; None where there is no such thing."""
    try:
        source = path.read_bytes().decode("utf-8")
        return source, ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def functions(source, tree):
    """Source and syntax tree of the functions that are worth testing on; nested ones belong to the outer one."""
    lines = source.splitlines(keepends=True)

    def visit(body):
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from visit(node.body)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = node.end_lineno - node.lineno + 1
                if MIN_LINES <= length <= MAX_LINES and may_be_renamed(node.name):
                    yield "".join(lines[node.lineno - 1 : node.end_lineno]), node

    return list(visit(tree.body))


class Renaming:
    """One new name for each identifier, drawn by the secret alone."""

    def __init__(self, secret, taken):
        self.secret = secret
        self.taken = taken  # names that somebody has already
        self.given = {}
        self.words = {}  # by length
        for word in sorted({part.lower() for name in taken for part in PART.findall(name) if part.isalpha()}):
            self.words.setdefault(len(word), []).append(word)

    def __call__(self, name):
        if name not in self.given:
            self.given[name] = self.draw(name, set(self.given.values()))
        return self.given[name]

    def draw(self, name, used):
        rng = random.Random(f"{self.secret}/{name}")
        for attempt in range(1000):
            new = PART.sub(lambda match: self.part(match.group(), rng, attempt), name)
            if new in KEPT:
                continue
            if new not in self.taken and new not in used:
                break
            # names of one or two letters run out; they say little about the text
            if len(name) <= 2 and attempt > 50 and new != name:
                break
        return new

    def part(self, old, rng, attempt):
        if not old.isalpha():
            return old
        words = self.words.get(len(old), ())
        if len(words) < 20 or attempt > 20:
            words = ["".join(rng.choice(string.ascii_lowercase) for _ in old)]
        new = rng.choice(words)
        return new.upper() if old.isupper() else new


def pick(secret, size):
    """Functions whose sources hold at least that many bytes, and every name of the files that were read."""
    root, paths = source_files()
    rng = random.Random(hashlib.sha256(secret.encode()).hexdigest())
    rng.shuffle(paths)
    picked, names = [], set()
    for path in paths:
        if (parsed := parse(root / path)) is None:
            continue
        names |= identifiers(parsed[1])
        found = functions(*parsed)
        picked += rng.sample(found, min(FUNCTIONS_PER_FILE, len(found)))
        if sum(len(source.encode()) + 2 for source, _ in picked) >= size:
            break
    return picked, names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", required=True, help="the secret; any text")
    parser.add_argument("--out", required=True, help="folder that tokens.npy is written to")
    args = parser.parse_args()

    need = WINDOWS * (MoEConfig.block_size + 1)  # tokens, of two bytes each
    picked, names = pick(args.seed, 2 * need)
    text = read_text()
    defined = set(re.findall(r"\bdef +(\w+)", text.decode("latin-1"), re.ASCII))
    renaming = Renaming(args.seed, names | defined)
    picked_names = {node.name for _, node in picked}  # renamed everywhere, so that no docstring gives them away

    texts = []
    for source, node in picked:
        ours = identifiers(node) | picked_names
        texts.append(WORD.sub(lambda match: renaming(match.group()) if match.group() in ours else match.group(), source))
    tokens = Vocabulary(text).encode("\n\n".join(texts).encode())[:need]

    os.makedirs(args.out, exist_ok=True)
    np.save(os.path.join(args.out, "tokens.npy"), tokens)
    print(f"hidden {len(tokens)} tokens of {len(picked)} functions", flush=True)


if __name__ == "__main__":
    main()
