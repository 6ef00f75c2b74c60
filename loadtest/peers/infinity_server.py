"""infinity's own server, with its own arguments."""

import sys
from typing import Any
from unittest.mock import MagicMock

from torch.onnx import symbolic_opset14

# optimum imports its exporter, which is not used, and needs names that torch has removed.
_REMOVED = (
    "_attention_scale",
    "_causal_attention_mask",
    "_onnx_symbolic",
    "_type_utils",
    "jit_utils",
    "symbolic_helper",
)
opset: Any = symbolic_opset14
for name in _REMOVED:
    if not hasattr(opset, name):
        setattr(opset, name, MagicMock())

from infinity_emb.cli import cli  # noqa: E402

sys.exit(cli())
