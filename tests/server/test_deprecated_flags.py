"""Flags that were renamed work for one more version, with a warning."""

import subprocess
import sys
from pathlib import Path


def test_max_step_tokens_warns_and_is_accepted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "server", "--bundles", str(tmp_path)]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--http", "none"]
    command += ["--max-step-tokens", "64"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "--max-step-tokens is deprecated: use --max-batched-tokens" in completed.stderr
    assert "no bundle" in completed.stderr  # it went on to look for bundles
