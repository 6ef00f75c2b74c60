"""infinity's own server; arguments are its own."""

import sys
from typing import Any
from unittest.mock import MagicMock

from torch.onnx import symbolic_opset14

# optimum's exporter, which is loaded but not used, looks for names that torch no longer has.
_GONE = (
    "_attention_scale",
    "_causal_attention_mask",
    "_onnx_symbolic",
    "_type_utils",
    "jit_utils",
    "symbolic_helper",
)
opset: Any = symbolic_opset14
for name in _GONE:
    if not hasattr(opset, name):
        setattr(opset, name, MagicMock())

from infinity_emb.cli import cli  # noqa: E402

sys.exit(cli())
