#!/usr/bin/env bash
# Makes all that a machine with a GPU, PyTorch and no network needs to measure this project, in folders
# that fit one upload each.
#
#     scripts/gpu_pack.sh FOLDER
#
# FOLDER/p0 and FOLDER/p1: packages (scripts/gpu_bundle.sh). FOLDER/models: the models of the checks,
# skeletons of the others, and of three models to serve. FOLDER/run.sh: scripts/gpu_machine.sh.
set -euo pipefail
folder=${1:?folder}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# CTranslate2 converts its models here, and is measured there.
$python -m pip install --quiet --no-deps --target "$work/converter" ctranslate2==4.8.5
PYTHONPATH=$work/converter $python -m loadtest gpu-models
served=build/gpu/server-bundles
for name in smollm2 en-pt minilm; do
    [ -d $served/$name ] || $python -m triune export $name --out $served/$name --device cuda
done
rm -rf build/gpu/server-skeletons
$python - <<'END'
from pathlib import Path
from loadtest.gpu import skeletons

root = Path("build/gpu")
for name in ("smollm2", "en-pt", "minilm"):
    skeletons.pack(root / "server-bundles" / name / "1", root / "server-skeletons" / name)
END

scripts/gpu_bundle.sh "$work/packages" 3.12 45 90 ctranslate2==4.8.5
rm -rf "$folder/p0" "$folder/p1" "$folder/models"
mkdir -p "$folder/p0" "$folder/p1" "$folder/models" "$work/models/bundles/cuda" "$work/models/models"
mv "$work/packages/unpack.sh" "$work"/packages/site.tar.xz.part00 "$folder/p0/"
mv "$work"/packages/site.tar.xz.part* "$folder/p1/"
cp -r build/gpu/bundles/cuda/*check* "$work/models/bundles/cuda/"
cp -r build/gpu/models/*check* "$work/models/models/"
cp -r build/gpu/skeletons build/gpu/server-skeletons "$work/models/"
tar c --sort=name -C "$work/models" . | xz -T0 > "$folder/models/models.tar.xz"
cp scripts/gpu_machine.sh "$folder/run.sh"
ls -l "$folder" "$folder"/*
