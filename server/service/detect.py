"""The DetectLanguages call: finds the languages that texts may be written in."""

from dataclasses import dataclass

from server.errors import InvalidArgumentError
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.translation_routes import TranslationRoutes
from server.text.language_detector import MAX_CHARACTERS, DetectedLanguage, detect_language


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectRequest:
    """A request. Its ``inputs`` are joined to one text, which has one language."""

    inputs: tuple[str, ...] = ()


async def detect_languages(
    request: DetectRequest, context: ServiceContext, caller: Caller
) -> list[DetectedLanguage]:
    """Scores the source languages of the served translation models, most likely first.

    Raises:
        ServeError: there is no text, it is too long, or no translation model is served.
    """
    validation.check_texts(request.inputs, context.config.max_input_bytes)
    sources = TranslationRoutes(context.registry).sources
    if not sources:
        raise InvalidArgumentError("source", "no translation model is served")
    text = ""
    for part in request.inputs:
        text += f"{part[:MAX_CHARACTERS]}\n"
        if len(text) >= MAX_CHARACTERS:
            break
    found = await context.in_thread(lambda: detect_language(text, sources), caller)
    if not found:
        raise InvalidArgumentError("source", "the detector knows none of the served languages")
    return found
