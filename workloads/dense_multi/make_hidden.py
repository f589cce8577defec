"""Write validation data that exists nowhere else: functions of the training text with their names changed.

    python make_hidden.py --seed SECRET --out hidden

The secret selects functions of the standard library and a new name for each of their identifiers. A
name keeps its length, its underscores and its capitals, and is put together from words of other names
where such words exist, so that the text still reads like Python and a model's loss on it means
something. Keywords, built-ins, `self`, `cls` and dunder names stay. One identifier gets the same new
name everywhere.
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
import sysconfig

import numpy as np

from data import Vocabulary, read_text, source_files
from model import GPTConfig

WINDOWS = 64  # of block_size + 1 tokens
MIN_LINES, MAX_LINES = 8, 80
KEPT = set(keyword.kwlist) | set(keyword.softkwlist) | set(dir(builtins)) | {"self", "cls"}
WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
PART = re.compile(r"[a-z]+|[A-Z]+|[0-9]+|_+")


def is_renamed(name):
    return name not in KEPT and not (name.startswith("__") and name.endswith("__")) and name.isascii()


def identifiers(tree):
    """Every name that the code of a syntax tree defines or uses."""
    names = set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                names.update(value.split("."))
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            names.update(node.names)
    return {name for name in names if is_renamed(name)}


def parse(path):
    with open(path, "rb") as f:
        source = f.read()
    try:
        return source.decode("utf-8"), ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def functions(source, tree):
    """Source and syntax tree of the functions that are worth testing on; nested ones belong to the outer one."""
    lines = source.splitlines(keepends=True)
    stack = list(reversed(tree.body))
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            count = node.end_lineno - node.lineno + 1
            if MIN_LINES <= count <= MAX_LINES and is_renamed(node.name):
                yield "".join(lines[node.lineno - 1 : node.end_lineno]), node
        elif isinstance(node, ast.ClassDef):
            stack.extend(reversed(node.body))


class Renaming:
    """One new name for each identifier, drawn by the secret alone."""

    def __init__(self, secret, taken):
        self.secret = secret
        self.taken = taken
        self.used = set()
        self.names = {}
        self.words = {}
        for word in sorted({part.lower() for name in taken for part in PART.findall(name) if part.isalpha()}):
            self.words.setdefault(len(word), []).append(word)

    def __call__(self, name):
        if name not in self.names:
            self.names[name] = self.draw(name)
        return self.names[name]

    def draw(self, name):
        rng = random.Random(f"{self.secret}/{name}")
        for attempt in range(1000):
            new = PART.sub(lambda match: self.part(match.group(), rng, attempt), name)
            if new not in self.taken and new not in self.used and new not in KEPT:
                break
            # names of one or two letters run out; they say little about the text
            if len(name) <= 2 and attempt > 50 and new != name and new not in KEPT:
                break
        self.used.add(new)
        return new

    def part(self, old, rng, attempt):
        if not old.isalpha():
            return old
        words = self.words.get(len(old), ())
        if len(words) < 20 or attempt > 20:
            words = ["".join(rng.choice(string.ascii_lowercase) for _ in old)]
        new = rng.choice(words)
        return new.upper() if old.isupper() else new


def rename(source, names, renaming):
    return WORD.sub(lambda match: renaming(match.group()) if match.group() in names else match.group(), source)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", required=True, help="the secret; any text")
    parser.add_argument("--out", required=True, help="folder that tokens.npy is written to")
    args = parser.parse_args()

    root = sysconfig.get_paths()["stdlib"]
    paths = source_files(root)
    rng = random.Random(hashlib.sha256(args.seed.encode()).hexdigest())
    rng.shuffle(paths)
    need = WINDOWS * (GPTConfig.block_size + 1)

    text = read_text()
    picked, taken, size = [], set(re.findall(r"\bdef +(\w+)", text.decode("latin-1"), re.ASCII)), 0
    for path in paths:
        if (parsed := parse(os.path.join(root, path))) is None:
            continue
        taken |= identifiers(parsed[1])
        found = list(functions(*parsed))
        # at most four from a file, so that the data comes from many files
        for source, node in rng.sample(found, min(4, len(found))):
            picked.append((source, identifiers(node), node.name))
            size += len(source.encode()) + 2
        if size >= 2 * need:
            break

    renaming = Renaming(args.seed, taken)
    defined = {name for _, _, name in picked}  # renamed everywhere, so that no docstring gives them away
    texts = [rename(source, names | defined, renaming) for source, names, _ in picked]
    tokens = Vocabulary(text).encode("\n\n".join(texts).encode())[:need]

    os.makedirs(args.out, exist_ok=True)
    np.save(os.path.join(args.out, "tokens.npy"), tokens)
    print(f"hidden {len(tokens)} tokens of {len(picked)} functions", flush=True)


if __name__ == "__main__":
    main()
