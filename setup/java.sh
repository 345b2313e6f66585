#!/bin/sh
# Says in one line when there is no Java that Spark can run on: $JAVA_HOME/bin/java, else java on PATH, 17 or newer.
set -eu
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
want="Headwater needs Java 17 or newer for Spark"
hint="install one (Debian and Ubuntu: apt install openjdk-17-jre-headless) or set JAVA_HOME"
command -v "$java" >/dev/null 2>&1 || { echo "$want (found none at $java): $hint." >&2; exit 1; }
version=$("$java" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1)
major=${version%%[!0-9]*}
case $major in '') major=0 ;; esac
[ "$major" -ge 17 ] || { echo "$want (found ${version:-an unknown version} at $java): $hint." >&2; exit 1; }
