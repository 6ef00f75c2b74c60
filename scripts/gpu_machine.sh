#!/usr/bin/env bash
# Measures on the machine that scripts/gpu_pack.sh packed for, in the repository's root, with the
# packed folder as .gpu: bash .gpu/run.sh STEP [BUDGET_SECONDS] [ONLY]
#   keep            copies the parts that are here (.gpu/p*, .gpu/models) to ~/w
#   unpack          packages and models; writes ~/w/env; warms the files of Python packages
#   checks steps profile encoders peers prefill caches options all
#                   parts of `python -m loadtest gpu`; the report continues in ~/w/gpu.json
#   server          python -m loadtest gpu-server, report ~/w/server.json
#   try CODE        runs a line of shell with the environment
# The first call has p0, the second p1, the third the models and the libraries of server/runtime.
# Logs, reports and traces go to $OUT, or ~/w/out.
set -uo pipefail
step=${1:?step}
budget=${2:-120}
only=${3:-}
w=$HOME/w
OUT=${OUT:-$w/out}
mkdir -p "$w" "$OUT"
begin=$(date +%s.%N)
say() { echo "[$(date +%s.%N | awk "{printf \"%.1f\", \$1 - $begin}") s] $*"; }

keep() {
    local file
    for file in .gpu/p0/* .gpu/p1/* .gpu/p2/* .gpu/models/*; do
        [ ! -f "$file" ] || cp -f "$file" "$w/"
    done
    ls -l "$w"
}

unpack() {
    rm -rf "$w/site"
    # Models of gigabytes are written and read in memory.
    mkdir -p "$w/gpu/random"
    mountpoint -q "$w/gpu/random" || ${NO_MOUNT:+false} mount -t tmpfs -o size=40g tmpfs "$w/gpu/random" || echo "random weights go to disk"
    bash "$w/unpack.sh" "$w/site" || { echo "unpack failed"; exit 1; }
    cat > "$w/env" <<END
export PYTHONPATH=$w/site LD_LIBRARY_PATH=$w/site/cuda12:\${LD_LIBRARY_PATH:-}
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TRANSFORMERS_VERBOSITY=error TOKENIZERS_PARALLELISM=false
export COLUMNS=150 PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$w/inductor CUDA_CACHE_MAXSIZE=4294967296
END
    # shellcheck disable=SC1091
    . "$w/env"
    (setsid python3 -c "import torch, transformers" > "$w/warm.log" 2>&1 &)
    python3 - <<'END'
import importlib, sys
for name in ("onnxruntime", "msgspec", "grpc", "llguidance", "starlette", "uvloop", "onnx", "tokenizers",
             "server.bench", "server.__main__", "loadtest.gpu.command", "ctranslate2"):
    try:
        module = importlib.import_module(name)
        print(name, getattr(module, "__version__", "ok"), flush=True)
    except Exception as error:
        print("MISSING", name, type(error).__name__, error, flush=True)
END
    models
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.used --format=csv,noheader
}

# Models may come with any later call.
models() {
    local file=.gpu/models/models.tar.xz
    [ -e $file ] || file=$w/models.tar.xz
    [ -e "$file" ] && ! cmp -s "$file" "$w/models.unpacked" || return 0
    mkdir -p "$w/gpu"
    xz --decompress --threads=0 --stdout "$file" | tar x -C "$w/gpu" && cp "$file" "$w/models.unpacked"
    du -sh "$w/gpu"
}

# report NAME COMMAND…: runs with ~/w/NAME.json copied to $OUT, continued there and copied back.
report() {
    local name=$1
    shift
    # shellcheck disable=SC1091
    . "$w/env"
    models
    [ ! -e "$w/$name.json" ] || cp "$w/$name.json" "$OUT/$name.json"
    (while sleep 5; do cp -f "$OUT/$name.json" "$w/$name.json" 2>/dev/null; done) & local copier=$!
    "$@" --out "$OUT/$name.json" --budget-s "$budget" 2>&1 | tee "$OUT/$step.log"
    local status=${PIPESTATUS[0]}
    kill $copier 2>/dev/null
    cp -f "$OUT/$name.json" "$w/$name.json"
    tar cz -C "$w/gpu" logs $([ -d "$w/gpu/traces" ] && echo traces) > "$OUT/$step-files.tar.gz" 2>/dev/null
    say "$step: status $status"
    return $status
}

loadtest() { report gpu python3 -m loadtest gpu --device "${DEVICE:-cuda}" --sizes "${SIZES:-full}" \
    --root "$w/gpu" ${1:+--only "$1"}; }

case $step in
keep) keep ;;
unpack) keep > /dev/null; unpack ;;
checks | steps | profile | encoders | peers | prefill | caches | options) loadtest "${only:-$step:}" ;;
all) loadtest "$only" ;;
server)
    report server python3 -m loadtest gpu-server --device "${DEVICE:-cuda}" --root "$w/gpu" \
        --bundles "$w/gpu/server-skeletons" ${only:+--only "$only"}
    ;;
try)
    # shellcheck disable=SC1091
    . "$w/env"
    models
    shift
    bash -c "$*"
    ;;
*) echo "unknown step $step" && exit 2 ;;
esac
status=$?
say "$step done"
exit $status
