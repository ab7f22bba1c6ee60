#!/usr/bin/env bash
# Drives the dashboard of a running server in headless Chromium:  tests/browser/run.sh [http://127.0.0.1:4578]
# Installs what is missing (Debian's chromium, Node, one npm package), leaves the server with what it had before, and
# fails with a non-zero exit and a screenshot when a page does not do what it should.
set -euo pipefail
url=${1:-http://127.0.0.1:4578}
cd "$(dirname "$0")"

need=()
command -v chromium >/dev/null || need+=(chromium)
command -v node >/dev/null || need+=(nodejs)
command -v npm >/dev/null || need+=(npm)
if [ ${#need[@]} -gt 0 ]; then
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    echo "installing ${need[*]}"
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi
[ -d node_modules/playwright-core ] || npm ci --silent

exec node dashboard.mjs "$url"
