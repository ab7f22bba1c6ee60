#!/usr/bin/env bash
# Prints the directory of a Python that has the clients the tests drive Weir with. Made once, under the tests' cache.
set -euo pipefail
venv=${WEIR_TEST_CACHE:-$HOME/.cache/weir}/venv
packages=("psycopg[binary]" sqlalchemy "moto[server,s3]")

complete() { "$venv/bin/python" -c 'import psycopg, sqlalchemy, moto.server' 2>/dev/null; }

if ! complete; then
    mkdir -p "$(dirname "$venv")"
    # Several tests may come here at once.
    exec 9>"$venv.lock"
    flock 9
    if ! complete; then
        if ! python3 -c 'import ensurepip' 2>/dev/null; then
            sudo=
            [ "$(id -u)" -eq 0 ] || sudo=sudo
            echo "installing python3-venv" >&2
            $sudo apt-get update -qq >&2
            DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends python3 python3-venv >&2
        fi
        python3 -m venv "$venv" >&2
        "$venv/bin/pip" install --quiet "${packages[@]}" >&2
    fi
fi
echo "$venv/bin"
