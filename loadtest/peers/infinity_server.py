"""infinity's own server; arguments are its own."""

import sys
from typing import Any

from torch.onnx import symbolic_opset14

# optimum's exporter, which is loaded but not used, looks for names that torch no longer has.
opset: Any = symbolic_opset14
for name in ("_attention_scale", "_causal_attention_mask"):
    if not hasattr(opset, name):
        setattr(opset, name, None)

from infinity_emb.cli import cli  # noqa: E402

sys.exit(cli())
