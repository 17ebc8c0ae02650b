#!/usr/bin/env bash
# Writes the samples in this folder again; lm_eval is expected in PATH, in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
export HF_HUB_OFFLINE=1 HF_HOME="$work/hf" CUDA_VISIBLE_DEVICES=
lm_eval run --tasks lm-eval/sums.yaml --model hf --apply_chat_template --log_samples --device cpu \
  --model_args "pretrained=../../../samples/tiny-reasoner,dtype=float32" --seed 1 --output_path "$work/chat"
lm_eval run --tasks lm-eval/sums.yaml,lm-eval/options.yaml --model dummy --log_samples \
  --output_path "$work/plain"
cp "$work"/chat/*/samples_sums_*.jsonl lm-eval/samples_sums.jsonl
cp "$work"/plain/*/samples_sums_*.jsonl lm-eval/samples_plain.jsonl
cp "$work"/plain/*/samples_options_*.jsonl lm-eval/samples_options.jsonl
rm -r "$work"
