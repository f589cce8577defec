#!/bin/sh
# From a fresh clone to a proven speed-up: sets everything up, then runs the main job on the bundled
# dense workload. Needs Python 3.11, git and gcc; no key, and no network once it is installed.
#
#   scripts/try.sh [options of `rsi run`]        for example --candidates 4, or --resume
#
# RSI_HOME says where campaigns are kept (default: $XDG_DATA_HOME/rsi). Ends with the exit code of `rsi run`.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
start=$(date +%s)
"$root/scripts/setup.sh"
printf 'Set-up took %s s.\n\n' "$(($(date +%s) - start))"
cd "$root"
exec .venv/bin/rsi run workloads/dense_single --preset quick "$@"
