#!/bin/sh
# Sets up the development environment, then checks style, types, rules of imports and every promise that
# a test holds, two files at a time. Arguments go to pytest, which then runs one test after the other:
# scripts/test.sh tests/repo -k mirror, or -m slow for long ones, which measure.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
"$root/scripts/setup.sh" dev
cd "$root"
.venv/bin/ruff check .
.venv/bin/mypy
.venv/bin/lint-imports
if [ $# = 0 ]; then
    # In the order of the files: else files of few, long tests come last, and one of the two waits for the other.
    exec .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
fi
exec .venv/bin/python -m pytest "$@"
