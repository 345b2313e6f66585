#!/bin/sh
# Makes or renews Airflow's environment, exactly what airflow_dags/requirements.lock pins, and prints its python.
#
# For the tests and for `make airflow`; it goes below build/ and is apart from ours, whose packages need other versions.
# Nothing is done when it is up to date: its stamp holds the checksum of the pins, the interpreter and the folder. Of two
# that come at once, one builds. $PYTHON names the interpreter that makes it (default: that of $VENV).
set -eu
cd "$(dirname "$0")/.."
pins=airflow_dags/requirements.lock
folder=build/airflow
python=${PYTHON:-${VENV:-.venv}/bin/python}

fail() { echo "airflow.sh: $1" >&2; exit 1; }
command -v flock >/dev/null 2>&1 || fail "flock is missing: install util-linux"
command -v "$python" >/dev/null 2>&1 || fail "there is no $python: run make venv, or set PYTHON=/path/to/python"
mkdir -p build
exec 9>build/airflow.lock
flock 9

stamp="$(cksum <"$pins") $("$python" -c 'import sys; print(sys.version)' | tr '\n' ' ') in $(pwd)"
if [ "$(cat "$folder/headwater.stamp" 2>/dev/null)" != "$stamp" ]; then
    echo "Making $folder: the packages of Airflow (once; about 300 MB)" >&2
    rm -rf "$folder"
    "$python" -m venv "$folder" >&2 || fail "$python has no venv module: install it (Debian: apt install python3-venv)"
    "$folder/bin/python" -m pip --disable-pip-version-check --no-input install -q --require-hashes -r "$pins" >&2 ||
        fail "pip could not install $pins (above): check the network and the disk, then run this again"
    printf '%s\n' "$stamp" >"$folder/headwater.stamp"
fi
echo "$(pwd)/$folder/bin/python"
