#!/usr/bin/env bash
# An S3 server on a loopback port, until it is killed:  tests/services/s3.sh 5000
# It is moto's, which keeps everything in memory and honours If-None-Match, on which Weir's commits rest.
set -euo pipefail
bin=$("$(dirname "$0")/python.sh")
exec "$bin/moto_server" --host 127.0.0.1 --port "$1"
