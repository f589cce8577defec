#!/bin/sh
# Sets up the development environment, then checks style, types, rules of imports and every promise that
# a test holds. Arguments go to pytest: scripts/test.sh tests/repo -k mirror, or -m slow for long ones.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
"$root/scripts/setup.sh" dev
cd "$root"
.venv/bin/ruff check .
.venv/bin/mypy
.venv/bin/lint-imports
exec .venv/bin/python -m pytest "$@"
