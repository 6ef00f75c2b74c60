"""Measures the host's time per step of a server on a GPU, without a GPU: runs ``loadtest
gpu-server`` on stand-ins of NVIDIA's libraries. Kernels compute nothing and take a given time.

    python -m tests.cuda.host_time build/host.json --bundles build/gpu/server-bundles
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cuda.libraries import build_all, environment, onnxruntime_for_gpus


def main() -> int:
    """Returns the exit code of ``loadtest gpu-server``."""
    parser = argparse.ArgumentParser(description="The host's part of a server on a GPU.")
    parser.add_argument("out", help="report; an existing one is continued")
    parser.add_argument("--bundles", required=True, help="folder of bundles or skeletons")
    parser.add_argument("--kernel-ns", type=int, default=3000, help="nanoseconds of a kernel")
    arguments, others = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        build_all(Path(folder))
        needed = environment(Path(folder), onnxruntime_for_gpus(), computes=False)
        needed["STAND_IN_NANOSECONDS"] = str(arguments.kernel_ns)
        command = (sys.executable, "-m", "loadtest", "gpu-server", "--only", "loads")
        given = ("--bundles", arguments.bundles, "--out", arguments.out, *others)
        return subprocess.run([*command, *given], env=os.environ | needed, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
