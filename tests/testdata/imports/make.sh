#!/usr/bin/env bash
# Makes the files of the folders beside this script anew; README.md says with which versions.
#
#   tests/testdata/imports/make.sh inspect|lm-eval
#
# The program is expected in PATH, in an environment of its own.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model="$here/../../../samples/tiny-reasoner"
work=$(mktemp -d)
export HF_HUB_OFFLINE=1 HF_HOME="$work/hf" CUDA_VISIBLE_DEVICES=

case $1 in
inspect)
  python "$here/inspect/make.py" "$here/inspect"
  ;;
lm-eval)
  cd "$here"
  lm_eval run --tasks lm-eval/sums.yaml --model hf --apply_chat_template --log_samples --device cpu \
    --model_args "pretrained=$model,dtype=float32" --seed 1 --output_path "$work/chat"
  lm_eval run --tasks lm-eval/sums.yaml,lm-eval/options.yaml --model dummy --log_samples \
    --output_path "$work/plain"
  cp "$work"/chat/*/samples_sums_*.jsonl lm-eval/samples_sums.jsonl
  cp "$work"/plain/*/samples_sums_*.jsonl lm-eval/samples_plain.jsonl
  cp "$work"/plain/*/samples_options_*.jsonl lm-eval/samples_options.jsonl
  ;;
*)
  echo "make.sh: expected the name of a folder, got '$1'" >&2
  exit 2
  ;;
esac
rm -r "$work"
