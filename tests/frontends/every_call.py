"""A request of every call that the front ends have, for models that do not answer it."""

from typing import Any

import httpx2

from protos.triune.v1 import inference_pb2 as pb

TEXTS = ["a cat"]
QUESTION = {"type": "predicate", "instructions": "Is it a cat?"}
CHAT = [{"role": "user", "content": "a cat"}]
TENSOR = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": TEXTS}

# Bodies by route. Those below {model} have no field for it.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/completions": {"prompt": "a cat"},
    "/v1/responses": {"input": "a cat"},
    "/v1/messages": {"messages": CHAT, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": CHAT},
    "/api/chat": {"messages": CHAT},
    "/api/generate": {"prompt": "a cat"},
    "/api/embed": {"input": TEXTS},
    "/api/embeddings": {"prompt": "a cat"},
    "/v1/embeddings": {"input": TEXTS},
    "/v1/decisions": {"input": "a cat", "questions": [QUESTION]},
    "/v1/multi-vector": {"input": TEXTS},
    "/pooling": {"input": TEXTS},
    "/v2/embed": {"input_type": "search_query", "texts": TEXTS},
    "/v1/embed": {"texts": TEXTS},
    "/v2/rerank": {"query": "cat", "documents": TEXTS},
    "/v1/rerank": {"query": "cat", "documents": TEXTS},
    "/rerank": {"query": "cat", "documents": TEXTS, "max_tokens_per_doc": 4},
    "/score": {"text_1": "cat", "text_2": TEXTS},
    "/v1/score": {"text_1": "cat", "text_2": TEXTS},
    "/classify": {"input": TEXTS},
    "/tokenize": {"prompt": "a cat"},
    "/detokenize": {"tokens": [1, 2]},
    "/v2/models/{model}/infer": {"inputs": [TENSOR]},
    "/v2/models/{model}/generate": {"text_input": "a cat"},
    "/v2/models/{model}/generate_stream": {"text_input": "a cat"},
    "/v2/models/{model}/versions/{version}/infer": {"inputs": [TENSOR]},
    "/v2/models/{model}/versions/{version}/generate": {"text_input": "a cat"},
    "/v2/models/{model}/versions/{version}/generate_stream": {"text_input": "a cat"},
    "/{model}/embed": {"inputs": TEXTS},
    "/{model}/embed_all": {"inputs": TEXTS},
    "/{model}/embed_sparse": {"inputs": TEXTS},
    "/{model}/predict": {"inputs": [["a cat"]]},
    "/{model}/rerank": {"query": "cat", "texts": TEXTS},
    "/{model}/similarity": {"inputs": {"source_sentence": "cat", "sentences": TEXTS}},
    "/{model}/tokenize": {"inputs": TEXTS},
    "/{model}/decode": {"ids": [1, 2]},
    "/{model}/v1/chat/completions": {"model": "tgi", "messages": CHAT},
}
# As forms, with a file.
AUDIO = ("/v1/audio/transcriptions", "/v1/audio/translations")
STREAMS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
# They find a model by languages, and no model of images has any.
LANGUAGES = {
    "/translate": {"q": "a cat", "source": "en", "target": "de"},
    "/detect": {"q": "a cat"},
}
# They name no model, or take no text, or whatever the model takes.
OTHERS = {
    "/{model}",
    "/translate_file",
    "/suggest",
    "/api/show",
    "/api/pull",
    "/api/push",
    "/api/create",
    "/api/copy",
    "/api/blobs/{digest}",
    "/v2/repository/index",
    "/v2/repository/models/{model}/load",
    "/v2/repository/models/{model}/unload",
    "/v2/trace/setting",
    "/v2/models/{model}/trace/setting",
    "/v2/logging",
    "/v2/systemsharedmemory/{call:path}",
    "/v2/cudasharedmemory/{call:path}",
}
CALLS: dict[str, Any] = {
    "Generate": pb.GenerateRequest(inputs=TEXTS),
    "GenerateStream": pb.GenerateStreamRequest(inputs=TEXTS),
    "Translate": pb.TranslateRequest(inputs=TEXTS),
    "TranslateStream": pb.TranslateStreamRequest(inputs=TEXTS),
    "Embed": pb.EmbedRequest(inputs=TEXTS),
    "EmbedStream": pb.EmbedStreamRequest(inputs=TEXTS),
    "Classify": pb.ClassifyRequest(inputs=TEXTS),
    "Score": pb.ScoreRequest(inputs=[pb.ScoreInput(context="a", target="cat")]),
    "Tag": pb.TagRequest(inputs=TEXTS),
    "FillMask": pb.FillMaskRequest(inputs=TEXTS),
    "Answer": pb.AnswerRequest(questions=[pb.Question(question="a", context="b")]),
    "Rerank": pb.RerankRequest(query="cat", documents=TEXTS),
    "Correct": pb.CorrectRequest(inputs=TEXTS),
    "Attend": pb.AttendRequest(inputs=TEXTS),
    "Tokenize": pb.TokenizeRequest(inputs=TEXTS),
    "Transcribe": pb.TranscribeRequest(audio=b"RIFF"),
    "TranscribeStream": pb.TranscribeStreamRequest(audio=b"RIFF"),
}
SENT_AS_STREAMS = ("EmbedStream", "TranscribeStream")
TASKS = ("generate", "translate", "embed", "classify", "tag", "fill_mask", "correct")


def with_model(request: Any, model: str) -> Any:
    """A copy of ``request`` to ``model``."""
    copy = type(request)()
    copy.CopyFrom(request)
    copy.model = model
    return copy


def own_message(path: str, answer: httpx2.Response) -> str:
    """The message of an error, which has the shape of the route's protocol."""
    body = answer.json()
    if path.startswith(("/v2/models", "/api/")) or path in LANGUAGES:
        assert set(body) == {"error"}
        message = body["error"]
    elif path.startswith("/{model}") and "/v1/" not in path:
        assert body["error_type"] in ("Validation", "Backend")
        assert answer.status_code == {"Validation": 413, "Backend": 424}[body["error_type"]]
        message = body["error"]
    elif path.startswith("/v1/messages"):
        assert body["error"]["type"] == "invalid_request_error"
        message = body["error"]["message"]
    elif path.endswith("rerank") or path.endswith("/embed"):
        assert set(body) == {"message"}
        message = body["message"]
    else:
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["param"]
        message = body["error"]["message"]
    return str(message)
