#!/bin/sh
# Puts the environment in .venv and, as root, the Debian packages that trials use. Run by try.sh and
# test.sh; can be run again at any time and is done at once when nothing has changed.
#
#   scripts/setup.sh         what `rsi` needs
#   scripts/setup.sh dev     and what its tests need
#
# PYTHON names the interpreter to build with (default: the first python3 of at least 3.11). pip's own
# settings (PIP_*, pip.conf) hold.
set -eu

extra=${1:-}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
cd "$root"

say() { printf 'setup: %s\n' "$*" >&2; }

# One set-up at a time: a second one waits and then finds everything done.
if command -v flock >/dev/null 2>&1; then
    exec 9<"$root/scripts/setup.sh"
    flock 9
fi

# --- system packages --------------------------------------------------------------------------

has_tcmalloc() {
    for folder in /usr/lib /usr/lib64 /usr/local/lib /usr/lib/*-linux-gnu; do
        if [ -e "$folder/libtcmalloc_minimal.so.4" ]; then return 0; fi
    done
    return 1
}

missing_packages() {
    PATH=$PATH:/usr/sbin:/sbin
    command -v bwrap >/dev/null 2>&1 || printf 'bubblewrap '
    { command -v ip && command -v tc; } >/dev/null 2>&1 || printf 'iproute2 '
    has_tcmalloc || printf 'libtcmalloc-minimal4 '
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    # A machine without network must not hang here: every step has a limit, and failing is no end.
    timeout 120 apt-get -qq -o Acquire::Retries=1 -o DPkg::Lock::Timeout=60 update &&
        timeout 300 apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=60 install "$@"
}

missing=$(missing_packages)
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    say "installing $missing(apt-get)"
    # shellcheck disable=SC2086  # a list of names
    install_packages $missing >/dev/null || say "apt-get could not install all of: $missing"
    missing=$(missing_packages)
fi
if [ -n "$missing" ]; then
    say "not installed: $missing- going on without; \`rsi doctor\` says what that costs. To mend it:"
    say "    apt-get install $missing"
fi

# --- Python -----------------------------------------------------------------------------------

good_python() { "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

python=
for candidate in "${PYTHON:-python3}" python3.11 python3.12 python3.13; do
    if good_python "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    say "Python 3.11 or newer is needed; install it, or name it with PYTHON=/path/to/python3."
    exit 2
fi

# The stamp holds all that an environment depends on, the folder too: an environment can't be moved.
wanted=$({ cat pyproject.toml; echo "$root"; "$python" -c 'import sys; print(sys.version, sys.base_prefix)'; } | sha256sum | cut -d' ' -f1)
is_done() { [ "$(cat ".venv/rsi-setup-$1" 2>/dev/null)" = "$wanted" ] && good_python .venv/bin/python; }

if is_done dev || { [ "$extra" != dev ] && is_done base; }; then
    exit 0
fi
say "building .venv; the first time this takes some minutes"
if ! is_done base || ! good_python .venv/bin/python; then
    rm -f .venv/rsi-setup-*
    # An environment of an older pyproject is brought up to date; one that is broken, moved or of another
    # Python is made anew.
    if ! good_python .venv/bin/python || [ "$(cat .venv/rsi-root 2>/dev/null)" != "$root" ] ||
        [ "$(.venv/bin/python -c 'import sys; print(sys.version)')" != "$("$python" -c 'import sys; print(sys.version)')" ]; then
        "$python" -m venv --clear .venv || {
            say "python3 -m venv failed; on Debian: apt-get install python3-venv."
            exit 2
        }
        printf '%s\n' "$root" >.venv/rsi-root
    fi
fi
if [ "$extra" = dev ]; then what='.[dev]'; else what=.; fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input -e "$what" || {
    say "pip could not install $what; its message above says why. Run this again when that is mended."
    exit 1
}
printf '%s\n' "$wanted" >".venv/rsi-setup-${extra:-base}"
