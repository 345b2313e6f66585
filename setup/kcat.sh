#!/bin/sh
# Installs kcat, a Kafka client that some tests use as its users do, where it is missing and apt and root are there to do it.
# Otherwise says in one line what is to be installed; those tests are skipped then, with the same line.
set -u
command -v kcat >/dev/null 2>&1 && exit 0
hint="kcat is missing: its tests are skipped (Debian and Ubuntu: apt install kcat)"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "$hint." >&2
    exit 0
fi
echo "Installing kcat for the tests"
export DEBIAN_FRONTEND=noninteractive
install() { timeout 120 apt-get install -y --no-install-recommends kcat >/dev/null 2>&1; }
install || { timeout 120 apt-get update >/dev/null 2>&1 && install; } || echo "$hint; apt could not install it." >&2
exit 0
