"""The configuration of a recurrent encoder-decoder, as frozen values. Imports no torch."""

from enum import StrEnum

from model.position_config import ConfigStruct


class CellKind(StrEnum):
    GRU = "gru"  # Cho et al. 2014; the reset gate multiplies the product, as in cuDNN
    LSTM = "lstm"  # Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000


class AlignmentKind(StrEnum):
    """The score of a decoder state and a source vector (Luong et al. 2015, section 3.1)."""

    ADDITIVE = "additive"  # Bahdanau et al. 2015, appendix A.1.2; Luong's "concat"
    DOT = "dot"
    GENERAL = "general"


class BridgeKind(StrEnum):
    """How the encoder's last states initialize the decoder."""

    ZERO = "zero"
    COPY = "copy"  # Sutskever et al. 2014: that of the same layer, both directions concatenated
    DENSE = "dense"  # Bahdanau et al. 2015, appendix A.2.2: ``tanh(W h)``, h the top layer's


class ReadoutKind(StrEnum):
    """The decoder's output from a step's state ``h``, context ``c`` and token ``y``."""

    TANH = "tanh"  # ``tanh(W [h; c])``, h after the step: Luong et al. 2015, equation 5
    # Maxout of pairs (Goodfellow et al. 2013) of ``W [h; c; y]``, h before the step: Bahdanau et
    # al. 2015, appendix A.2.2
    MAXOUT = "maxout"


class AlignmentConfig(ConfigStruct, frozen=True, kw_only=True):
    """The attention of a recurrent decoder.

    Attributes:
        size: size of the additive score's hidden layer; other scores ignore it.
        from_previous: the state before the step attends, and the step reads the context (Bahdanau
            et al. 2015); otherwise, the state after the step attends (Luong et al. 2015).
    """

    kind: AlignmentKind
    size: int = 0
    from_previous: bool = False


class RecurrentConfig(ConfigStruct, frozen=True, kw_only=True):
    """An encoder-decoder of recurrent layers.

    Attributes:
        encoder_size: size of one direction.
        source_size: encoder outputs are mapped linearly to this size; None: they are not mapped.
        alignment: None for a fixed context (Sutskever et al. 2014).
        readout: whether the decoder's output is of ``readout_kind`` and ``hidden_size``; otherwise,
            it is ``[h; c]``. There is no context ``c`` without ``alignment``.
        input_feeding: whether a step also reads the last step's output (Luong et al. 2015, section
            3.3).
    """

    cell: CellKind
    encoder_size: int
    decoder_size: int
    num_encoder_layers: int = 1
    num_decoder_layers: int = 1
    bidirectional: bool = False
    bridge: BridgeKind = BridgeKind.COPY
    source_size: int | None = None
    alignment: AlignmentConfig | None = None
    readout: bool = True
    readout_kind: ReadoutKind = ReadoutKind.TANH
    input_feeding: bool = False

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def vector_size(self) -> int:
        """The size of the source vectors that the decoder attends to."""
        return self.source_size or self.num_directions * self.encoder_size

    @property
    def context_size(self) -> int:
        return 0 if self.alignment is None else self.vector_size
