"""Names that callers import from the client stay where they are."""

from client import encoder_types, types

TYPES = {
    *("Alignment", "Attention", "AttentionKind", "AttentionMatrix", "AttentionOptions", "Choices"),
    *("EarlyStopping", "EmbeddingInfo", "FinishReason", "GenerationOptions", "Grammar"),
    *("Hypothesis", "JsonSchema", "Lark", "Message", "Model", "ModelKind", "ModelState", "Parity"),
    *("Piece", "Regex", "Result", "ScoreOptions", "ScoreResult", "Scored", "Text", "TextResult"),
    *("Timing", "TokenLogprob", "Tokenization", "TokenizeResult", "Usage"),
    *("AudioInfo", "Segment", "TranscribeResult", "TranscriptionFinish", "TranscriptionOptions"),
    *("TranscriptionPiece", "Word"),
}
ENCODER_TYPES = {
    *("Aggregation", "AnswerOptions", "AnswerResult", "AnswerSpan", "Answers", "Classification"),
    *("ClassifyOptions", "ClassifyResult", "EmbedBatch", "EmbedOptions", "EmbedResult"),
    *("Embedding", "EncodingFormat", "Entity", "FillMaskOptions", "FillMaskResult", "FilledMask"),
    *("InputType", "SparseVector", "EmbeddingKind"),
    *("LabelScore", "LengthOptions", "LongInput", "MaskCandidate", "MaskFilling", "Question"),
    *("RankedDocument", "Reading", "RerankOptions", "RerankResult", "ScoreFunction"),
    *("TagOptions", "TagResult", "Tagging", "TokenEmbedding"),
}


def test_types() -> None:
    assert set(types.__all__) >= TYPES
    assert all(hasattr(types, name) for name in types.__all__)


def test_encoder_types() -> None:
    assert set(encoder_types.__all__) >= ENCODER_TYPES
    assert all(hasattr(encoder_types, name) for name in encoder_types.__all__)
