#!/usr/bin/env bash
# Installs the Debian packages that building Weir needs and that this machine lacks: a C++ compiler and libclang for
# RocksDB's bindings, mold for linking. Does nothing, and asks for nothing, when all are there.
set -euo pipefail

need=()
command -v g++ >/dev/null || need+=(g++)
command -v make >/dev/null || need+=(make)
command -v mold >/dev/null || need+=(mold)
command -v pkg-config >/dev/null || need+=(pkg-config)
compgen -G '/usr/lib/*/libclang*.so*' >/dev/null || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || need+=(clang libclang-dev)
if ! command -v cargo >/dev/null; then
    echo "cargo is missing: install Rust from https://rustup.rs, then run this again" >&2
    exit 1
fi
[ ${#need[@]} -eq 0 ] && exit 0

sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
echo "installing ${need[*]}"
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
