#!/usr/bin/env bash
# Collects the wheels that `loadtest gpu` needs on a machine with a GPU and without a network, for
# Linux on x86-64. Large wheels are split into pieces, so that each fits one upload.
#
#     scripts/gpu_bundle.sh FOLDER [PYTHON_VERSION] [PIECE_MEGABYTES]
#
# On that machine: `bash FOLDER/unpack.sh TARGET`, then `PYTHONPATH=TARGET python3 -m loadtest gpu …`.
#
# Expected on that machine: PyTorch for CUDA 13 with its nvidia-* wheels, transformers, onnx, onnx-ir,
# onnxscript, ml-dtypes, numpy, tokenizers, safetensors, sentencepiece, pyyaml, jinja2,
# prometheus-client, typer, rich, uvloop. The stubs need grpcio and protobuf at least as new as the lock's.
set -euo pipefail

folder=${1:?folder for the wheels}
python=${2:-3.12}
piece=${3:-45}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Packages that such machines lack, in the versions of the lock.
packages="onnxruntime-gpu flatbuffers msgspec llguidance tenacity protobuf grpcio
    grpcio-health-checking grpcio-reflection googleapis-common-protos
    starlette uvicorn httptools python-multipart langcodes sentencex"

mkdir -p "$folder"
wanted=()
for package in $packages; do
    wanted+=("$(grep -oE "^$package==[^ ;]+" "$root/requirements/gpu.txt")")
done
wanted+=("$(grep -oE '^gguf==[^ ;]+' "$root/requirements/export.txt")")
platforms=()
for version in 39 35 34 31 28 27 24 17; do
    platforms+=(--platform "manylinux_2_${version}_x86_64")
done
"${PIP:-$root/.venv/bin/pip}" download --quiet --no-deps --only-binary=:all: \
    --python-version "$python" --implementation cp "${platforms[@]}" \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
    --dest "$folder" "${wanted[@]}"

for wheel in "$folder"/*.whl; do
    if [ "$(stat -c %s "$wheel")" -gt $((piece << 20)) ]; then
        split --bytes "${piece}M" --numeric-suffixes --suffix-length 2 "$wheel" "$wheel.part"
        rm "$wheel"
    fi
done
cat > "$folder/unpack.sh" <<'END'
#!/usr/bin/env bash
# unpack.sh TARGET: joins the pieces to wheels and installs them to TARGET, a folder for PYTHONPATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wheels=$(mktemp -d)
for first in "$here"/*.whl.part00; do
    [ -e "$first" ] || continue
    whole=$(basename "${first%.part00}")
    cat "$here/$whole".part* > "$wheels/$whole"
done
find "$here" -maxdepth 1 -name '*.whl' -exec cp {} "$wheels" \;
python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$1" "$wheels"/*.whl
rm -r "$wheels"
# ONNX Runtime looks for CUDA's libraries beside itself: link PyTorch's.
nvidia=$(python3 -c '
from importlib.util import find_spec
found = find_spec("nvidia")
print(next(iter(found.submodule_search_locations)) if found else "")')
[ -z "$nvidia" ] || ln -sfn "$nvidia" "$1/nvidia"
END
ls -l "$folder"
