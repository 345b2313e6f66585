#!/bin/sh
# Makes or renews the Python environment of this tree: $VENV (default .venv), exactly what requirements.lock pins.
#
# $PYTHON names the interpreter; else the newest python3.14..3.11 on PATH, else python3. Nothing is done when the
# environment is up to date: its stamp holds the checksums of the lock and of pyproject.toml and the folder it stands in
# (an environment does not survive being moved).
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
stamp=$venv/headwater.stamp

fail() { echo "$1" >&2; exit 1; }
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

lock="lock $(cksum <requirements.lock)"
project="project $(cksum <pyproject.toml) in $(pwd)"
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$lock
$project" ]; then
    exit 0
fi

moved() { [ -f "$stamp" ] && ! grep -qF " in $(pwd)" "$stamp"; }
if ! new_enough "$venv/bin/python" || moved; then
    python=
    for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
        if command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate"; then python=$candidate; break; fi
    done
    if [ -z "$python" ]; then
        found=$(${PYTHON:-python3} --version 2>/dev/null || echo "none")
        fail "Headwater needs Python 3.11 or newer (found: $found): install python3.11 (Debian: apt install python3 python3-venv) or set PYTHON=/path/to/python."
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$("$python" --version) has no venv module: install it (Debian and Ubuntu: apt install python3-venv), then run make again."
    echo "Making $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

# An environment made by another tool may lack pip.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip --upgrade >/dev/null
# Old pips install source packages by their setup.py and complain about it; new ones ignore the variable.
pip() { PIP_USE_PEP517=1 "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }

if ! grep -qxF "$lock" "$stamp" 2>/dev/null || moved; then
    rm -f "$stamp"
    echo "Installing the packages of requirements.lock (once; Spark alone is about 400 MB)"
    pip install -q --require-hashes -r requirements.lock
fi
rm -f "$stamp"
pip install -q --no-deps --no-build-isolation -e .
# As pip does it for every package it copies. Python itself would do it at the first start, unless it is told to write no
# bytecode (PYTHONDONTWRITEBYTECODE): then every start of `headwater` compiles every module anew.
"$venv/bin/python" -m compileall -qq platform logtier pipelines api || :
printf '%s\n%s\n' "$lock" "$project" >"$stamp"
