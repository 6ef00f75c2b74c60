#!/usr/bin/env bash
# Collects the packages that `loadtest gpu` needs on a machine with a GPU and without a network, for
# Linux on x86-64: one archive in pieces, so that each fits one upload. ONNX Runtime keeps only the
# code for GPUs of one compute capability (90: H100, H200), which makes it a quarter as large.
#
#     scripts/gpu_bundle.sh FOLDER [PYTHON_VERSION] [PIECE_MEGABYTES] [CAPABILITY] [PACKAGE==VERSION…]
#
# Further packages are peers to compare, such as ctranslate2; or av, which decodes audio.
#
# Carry server/runtime/libtriune_cuda.so too. On that machine: `bash FOLDER/unpack.sh TARGET`, then
# `PYTHONPATH=TARGET python3 -m loadtest gpu …`.
#
# Expected on that machine: PyTorch for CUDA 13 with its nvidia-* wheels, transformers, onnx, onnx-ir,
# onnxscript, ml-dtypes, numpy, tokenizers, safetensors, sentencepiece, pyyaml, jinja2,
# prometheus-client, typer, rich, uvloop. The stubs need grpcio and protobuf at least as new as the lock's.
set -euo pipefail

folder=${1:?folder for the wheels}
python=${2:-3.12}
piece=${3:-45}
capability=${4:-90}
more=("${@:5}")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Packages that such machines lack, in the versions of the lock.
packages="onnxruntime-gpu flatbuffers msgspec llguidance tenacity protobuf grpcio
    grpcio-health-checking grpcio-reflection googleapis-common-protos
    starlette uvicorn httptools python-multipart langcodes sentencex py3langid httpx2 httpcore2
    truststore"

mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
wanted=()
for package in $packages; do
    wanted+=("$(grep -oE "^$package==[^ ;]+" "$root/requirements/gpu.txt")")
done
wanted+=("$(grep -oE '^gguf==[^ ;]+' "$root/requirements/export.txt")")
wanted+=(${more[@]+"${more[@]}"})
platforms=()
for version in 39 35 34 31 28 27 24 17; do
    platforms+=(--platform "manylinux_2_${version}_x86_64")
done
"${PIP:-$root/.venv/bin/pip}" download --quiet --no-deps --only-binary=:all: \
    --python-version "$python" --implementation cp "${platforms[@]}" \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
    --dest "$work/wheels" "${wanted[@]}"

"${PIP:-$root/.venv/bin/pip}" install --quiet --no-index --no-deps --no-compile \
    --python-version "$python" --implementation cp "${platforms[@]}" --only-binary=:all: \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
    --target "$work/site" "$work"/wheels/*.whl
libraries=$work/site/onnxruntime/capi
# TensorRT is not used, and the bindings for Python contain the library for C.
rm -f "$libraries"/libonnxruntime_providers_tensorrt.so "$libraries"/libonnxruntime.so.*
for library in "$libraries/libonnxruntime_providers_cuda.so" \
    "$work"/site/ctranslate2.libs/libctranslate2*.so*; do
    [ ! -e "$library" ] || (cd "$root" && "${PYTHON:-.venv/bin/python}" \
        -m scripts.prune_gpu_code "$library" "$capability")
done
# Extension modules of some peers are fifty times as large as their code.
find "$work/site" -name '*.cpython-*.so' -exec strip --strip-debug {} +
tar --create --directory "$work/site" . | xz --threads 0 -6 |
    split --bytes "${piece}M" --numeric-suffixes --suffix-length 2 - "$folder/site.tar.xz.part"
cat > "$folder/unpack.sh" <<'END'
#!/usr/bin/env bash
# unpack.sh TARGET: unpacks the pieces to TARGET, a folder for PYTHONPATH.
set -euo pipefail
mkdir -p "$1"
cat "$(dirname "${BASH_SOURCE[0]}")"/site.tar.xz.part* | xz --decompress --threads 0 |
    tar --extract --directory "$1"
# ONNX Runtime looks for CUDA's libraries beside itself: link PyTorch's.
nvidia=$(python3 -c '
from importlib.util import find_spec
found = find_spec("nvidia")
print(next(iter(found.submodule_search_locations)) if found else "")')
[ -z "$nvidia" ] || ln -sfn "$nvidia" "$1/nvidia"
# CTranslate2 opens libcublas.so.12; the functions that it calls are the same in 13.
mkdir -p "$1/cuda12"
[ -z "$nvidia" ] || find "$nvidia/" -name 'libcublas*.so.13' | while read -r library; do
    ln -sfn "$library" "$1/cuda12/$(basename "$library" .13).12"
done
END
ls -l "$folder"
