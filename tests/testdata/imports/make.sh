#!/usr/bin/env bash
# Makes the files of the folders beside this script anew; README.md says with which versions.
#
#   tests/testdata/imports/make.sh inspect|lm-eval|lighteval|promptfoo|openai-batch
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
lighteval)
  mkdir "$work/data"
  cp "$here/sums.jsonl" "$work/data/test.jsonl"
  cd "$work"
  python "$here/lighteval/make.py" custom scripted "$here/lighteval/model.py" "sums|0" \
    --custom-tasks "$here/lighteval/task.py" --save-details --no-remove-reasoning-tags \
    --output-dir "$work/out"
  cp out/details/scripted/*/details_*.parquet "$here/lighteval/details_sums.parquet"
  ;;
promptfoo)
  cd "$here/promptfoo"
  PROMPTFOO_CONFIG_DIR="$work" PROMPTFOO_DISABLE_TELEMETRY=1 PROMPTFOO_DISABLE_UPDATE=1 \
    promptfoo eval --no-cache -o results.json || test $? = 100 # some of its checks fail
  python server.py &
  PROMPTFOO_CONFIG_DIR="$work" PROMPTFOO_DISABLE_TELEMETRY=1 PROMPTFOO_DISABLE_UPDATE=1 \
    promptfoo eval --no-cache -c openai.yaml -o results_openai.json || true
  kill $!
  ;;
openai-batch)
  cd "$here/openai-batch"
  VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1 vllm run-batch -i input.jsonl -o output.jsonl \
    --model "$model" --served-model-name tiny-reasoner --dtype float32 --max-model-len 1024 \
    --reasoning-parser qwen3
  ;;
*)
  echo "make.sh: expected the name of a folder, got '$1'" >&2
  exit 2
  ;;
esac
rm -r "$work"
