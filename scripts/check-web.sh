#!/usr/bin/env bash
# Checks the dashboard's types, runs its tests, and proves that the committed web/dist is what its sources build to.
set -euo pipefail
cd "$(dirname "$0")/../web"

if ! command -v npm >/dev/null; then
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    echo "installing nodejs npm"
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null
fi

npm ci --silent --no-audit --no-fund
npm run --silent check
npm test --silent

committed=$(mktemp -d)
trap 'rm -rf "$committed"' EXIT
cp -r dist/. "$committed"
npm run --silent build
if ! diff -rq "$committed" dist; then
    echo "web/dist is not what web/src builds to: run 'make web' and commit web/dist" >&2
    exit 1
fi
