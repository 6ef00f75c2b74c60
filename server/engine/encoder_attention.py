"""Computes the attention weights of an encoder with the graph ``attend_encode``."""

from collections.abc import Collection, Mapping

import numpy as np

from model.bundle import AttentionKind, GraphSpec
from server.constraint import Floats
from server.engine.decoding.options import AttentionSelection
from server.runtime.contract import Graph
from server.runtime.memory import Array

_HEAD_WEIGHTS = "head_weights"


def encoder_attention_shape(spec: GraphSpec) -> tuple[int, int]:
    """Returns the number of layers and the number of heads of an ``attend_encode`` graph."""
    prefix = f"{AttentionKind.ENCODER}."
    num_layers = sum(tensor.name.startswith(prefix) for tensor in spec.outputs)
    (heads,) = (tensor.shape[1] for tensor in spec.inputs if tensor.name == _HEAD_WEIGHTS)
    return num_layers, int(heads)


class EncoderAttention:
    """Runs an ``attend_encode`` graph over one text at a time. For one thread.

    Args:
        spec: the graph's entry in the manifest.
        graph: the loaded graph.
    """

    def __init__(self, spec: GraphSpec, graph: Graph) -> None:
        self._graph = graph
        _, self._num_heads = encoder_attention_shape(spec)

    def run(
        self,
        inputs: Mapping[str, Array],
        selection: AttentionSelection,
        more_outputs: Collection[str] = (),
    ) -> tuple[Floats, dict[str, Array]]:
        """Runs one row, without padding.

        Args:
            inputs: the inputs of the ``encode`` graph.
            selection: the layers and heads whose weights to return.
            more_outputs: names of further outputs to compute.

        Returns:
            The weights ``[token, layers, heads, token]`` of the selection, or ``[token, 1, 1,
            token]`` for the mean; and the further outputs, valid until the next run.
        """
        names = [f"{AttentionKind.ENCODER}.{layer}" for layer in selection.layers]
        bound = self._graph.bind({}, {*names, *more_outputs})
        outputs = bound.run({**inputs, _HEAD_WEIGHTS: self._head_weights(selection)})
        if selection.average:
            mean = sum((outputs[name][0] for name in names[1:]), outputs[names[0]][0])
            weights = (mean / len(names))[None]
        else:
            weights = np.stack([outputs[name][0] for name in names])  # [layers, heads, n, n]
        return weights.transpose(2, 0, 1, 3), {name: outputs[name] for name in more_outputs}

    def _head_weights(self, selection: AttentionSelection) -> Floats:
        """Returns ``[chosen, heads]``: a row that selects each head, or one row for their mean."""
        rows = np.zeros((len(selection.heads), self._num_heads), np.float32)
        rows[np.arange(len(selection.heads)), selection.heads] = 1
        return rows.mean(0, keepdims=True) if selection.average else rows
