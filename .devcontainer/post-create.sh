#!/usr/bin/env bash
# What a new container runs once: the environment, the model, and a look at what there is.
# PIP_ARGS: extra arguments for pip; without them, PyTorch's build for the CPU is taken on Linux.
set -euo pipefail
cd "$(dirname "$0")/.."

make env PIP_ARGS="${PIP_ARGS---extra-index-url https://download.pytorch.org/whl/cpu}"
.venv/bin/inferlab fetch smollm2 ||
  echo "== inferlab: no model now. Measuring cells will say so. Later: inferlab fetch smollm2"
.venv/bin/inferlab doctor || echo "== inferlab: what is missing stands above"
echo "== inferlab: ready. In a terminal: source .venv/bin/activate, then inferlab lab"
