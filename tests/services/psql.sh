#!/usr/bin/env bash
# Prints the path of psql; installs Debian's client when there is none.
set -euo pipefail
if ! command -v psql >/dev/null; then
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    echo "installing postgresql-client" >&2
    $sudo apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends postgresql-client >&2
fi
command -v psql
