"""LibreTranslate's API: ``/translate``, ``/detect``, ``/languages`` and ``/frontend/settings``."""

from functools import partial
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import BaseRoute

from server.bounds import MAX_TEXTS, Size
from server.errors import InvalidArgumentError
from server.frontends.http.body import json_decoder
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.failures import Failure
from server.frontends.http.form import FORM_TYPES, decode_form, media_type_of
from server.printable import quoted
from server.service.detect import DetectRequest
from server.service.translate_by_language import LanguageRequest

_NAMES = {"inputs": "q", "num_hypotheses": "alternatives"}
_FORMATS = {"text": False, "html": True}
_FRONTEND_TIMEOUT_MILLISECONDS = 500


class TranslateBody(msgspec.Struct, kw_only=True):
    """Texts to translate."""

    q: str | list[str]
    source: str
    target: str
    format: str | None = None
    alternatives: int = 0
    api_key: str | None = None


class KeyBody(msgspec.Struct, kw_only=True):
    """The optional body of GET routes; LibreTranslate's own client sends one."""

    api_key: str | None = None


class DetectBody(msgspec.Struct, kw_only=True):
    """Texts whose language is to be detected."""

    q: str | list[str]
    api_key: str | None = None


def routes(context: Context) -> list[BaseRoute]:
    """The routes."""
    api = Api(context=context, error=_error_response, body_token=_token)
    return [
        api.post("/translate", _decoder(TranslateBody), _translate, names=_NAMES, reads_query=True),
        api.post("/detect", _decoder(DetectBody), _detect, names=_NAMES, reads_query=True),
        api.get("/languages", _languages, decode=_decode_key),
        api.get("/frontend/settings", partial(_settings, context), decode=_decode_key),
        api.post("/translate_file", _ignore_body, partial(_refuse, "file translation")),
        api.post("/suggest", _ignore_body, partial(_refuse, "suggestions")),
    ]


def _error_response(failure: Failure) -> Response:
    return json_response({"error": failure.message})


def _token(body: Any) -> str | None:
    return getattr(body, "api_key", None)


def _decoder(kind: type[Any]) -> Any:
    """Returns a function that decodes a JSON body, or a form with the same fields.

    Numbers may be strings in both.
    """
    decode_json = json_decoder(kind, strict=False)

    def decode(data: bytes, headers: Headers) -> Any:
        if media_type_of(headers) in FORM_TYPES:
            return decode_form(data, headers, kind)
        return decode_json(data)

    return decode


_decode_key_body = _decoder(KeyBody)


def _decode_key(data: bytes, headers: Headers) -> KeyBody:
    decoded: KeyBody = _decode_key_body(data, headers) if data else KeyBody()
    return decoded


def _ignore_body(*_: Any) -> None:
    return None


async def _translate(call: Call[TranslateBody]) -> Response:
    body = call.body
    text_format = body.format or "text"
    if text_format not in _FORMATS:
        raise InvalidArgumentError("format", f"{quoted(text_format)} is neither text nor html")
    texts = [body.q] if isinstance(body.q, str) else body.q
    Size(MAX_TEXTS).check_count("inputs", texts)
    # Empty texts in a list are returned unchanged.
    indices = [index for index, text in enumerate(texts) if text.strip()]
    if not indices:
        return _untranslated(body)
    request = LanguageRequest(
        inputs=tuple(texts[index] for index in indices),
        source=body.source,
        target=body.target,
        num_alternatives=body.alternatives,
        is_html=_FORMATS[text_format],
    )
    result = await call.service.translate_by_language(request, call.caller)
    translated = list(texts)
    others: list[tuple[str, ...]] = [()] * len(texts)
    for index, text, alternatives in zip(indices, result.texts, result.alternatives, strict=True):
        translated[index], others[index] = text, alternatives
    is_list = not isinstance(body.q, str)
    answer: dict[str, Any] = {"translatedText": translated if is_list else translated[0]}
    if result.detected is not None:
        detected = {
            "confidence": round(100 * result.detected.confidence, 1),
            "language": result.detected.language,
        }
        answer["detectedLanguage"] = [detected] * len(texts) if is_list else detected
    if body.alternatives:
        answer["alternatives"] = others if is_list else others[0]
    return json_response(answer)


def _untranslated(body: TranslateBody) -> Response:
    """The answer for a list of empty texts, which needs no model."""
    if isinstance(body.q, str) or not body.q:
        raise InvalidArgumentError("inputs", "must not be empty")
    answer: dict[str, Any] = {"translatedText": body.q}
    if body.alternatives:
        answer["alternatives"] = [()] * len(body.q)
    return json_response(answer)


async def _detect(call: Call[DetectBody]) -> Response:
    body = call.body
    texts = (body.q,) if isinstance(body.q, str) else tuple(body.q)
    Size(MAX_TEXTS).check_count("inputs", texts)
    found = await call.service.detect_languages(DetectRequest(inputs=texts), call.caller)
    return json_response(
        [
            {"confidence": round(100 * each.confidence, 1), "language": each.language}
            for each in found
            if each is found[0] or each.confidence >= 0.01
        ]
    )


async def _languages(call: Call[KeyBody]) -> Response:
    return json_response(
        [
            {"code": each.code, "name": each.name, "targets": each.targets}
            for each in call.service.translation_languages()
        ]
    )


async def _settings(context: Context, call: Call[KeyBody]) -> Response:
    languages = call.service.translation_languages()
    names = {each.code: each.name for each in languages}
    pairs = ((each.code, target) for each in languages for target in each.targets)
    target = next((target for code, target in pairs if target != code), "")
    needs_token = context.access.needs_token
    return json_response(
        {
            "apiKeys": needs_token,
            "charLimit": context.settings.max_input_bytes,
            "filesTranslation": False,
            "frontendTimeout": _FRONTEND_TIMEOUT_MILLISECONDS,
            "keyRequired": needs_token,
            "language": {
                "source": {"code": "auto", "name": "Auto Detect"},
                "target": {"code": target, "name": names.get(target, "")},
            },
            "suggestions": False,
            "supportedFilesFormat": [],
        }
    )


async def _refuse(what: str, _: Call[Any]) -> Response:
    return json_response({"error": f"{what} is not available on this server"}, 403)
