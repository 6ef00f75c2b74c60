"""Finds the models that translate from one language to another."""

from collections.abc import Iterable
from dataclasses import dataclass

from model.bundle import Task
from server.errors import InvalidArgumentError
from server.models.registry import Registry
from server.printable import quoted
from server.text.languages import base_language, language_name, match_language

_PIVOT = "en"


@dataclass(frozen=True, slots=True)
class Hop:
    """One translation by ``model``. ``source`` and ``target`` are the model's language codes."""

    model: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class ServedLanguage:
    """A language of a model, and its target languages."""

    code: str
    name: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Translator:
    """A served model. A multilingual one translates between all of its languages."""

    model: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]

    def hop(self, source: str, target: str) -> Hop | None:
        own_source = match_language(source, self.sources)
        own_target = match_language(target, self.targets)
        if own_source is None or own_target is None or own_source == own_target:
            return None
        return Hop(self.model, own_source, own_target)


class TranslationRoutes:
    """The languages of a server's translation models. Codes are those of the models."""

    def __init__(self, registry: Registry) -> None:
        self._translators: list[_Translator] = []
        # A language says nothing of an adapter: calls that want one name it.
        for name in sorted({model.manifest.name for model in registry.models}):
            manifest = registry.get(name, "").manifest
            languages = tuple(manifest.languages)
            sources = languages or _given(manifest.source_language)
            targets = languages or _given(manifest.target_language)
            if Task.TRANSLATE in manifest.tasks and sources and targets:
                self._translators.append(_Translator(name, sources, targets))

    @property
    def sources(self) -> tuple[str, ...]:
        """The codes of all source languages, sorted."""
        return tuple(sorted({code for each in self._translators for code in each.sources}))

    @property
    def targets(self) -> tuple[str, ...]:
        """The codes of all target languages, sorted."""
        return tuple(sorted({code for each in self._translators for code in each.targets}))

    def languages(self) -> tuple[ServedLanguage, ...]:
        """All languages with their target languages, which include the language itself."""
        return tuple(
            ServedLanguage(code, language_name(code), tuple(sorted(self._reachable(code))))
            for code in sorted({*self.sources, *self.targets})
        )

    def find(self, source: str, target: str) -> tuple[Hop, ...]:
        """The model for two languages, or two models via English; none if they are equal.

        Raises:
            InvalidArgumentError: a language or the pair is not served; the error names the field.
        """
        own_source = match_language(source, self.sources)
        own_target = match_language(target, self.targets)
        is_same = base_language(own_source or source) == base_language(target)
        if own_source is None:
            if is_same and own_target is not None:
                return ()
            raise _unknown("source", source, self.sources)
        if own_target is None and not is_same:
            raise _unknown("target", target, self.targets)
        direct = self._hop(source, target)
        if direct is not None:
            return (direct,)
        if is_same:
            return ()
        first, second = self._hop(source, _PIVOT), self._hop(_PIVOT, target)
        if first is None or second is None:
            raise InvalidArgumentError(
                "target",
                f"{language_name(target)} ({target}) is not available as a target language from "
                f"{language_name(source)} ({source})",
            )
        return (first, second)

    def _reachable(self, source: str) -> set[str]:
        direct = self._direct_targets(source)
        pivot = match_language(_PIVOT, direct)
        return {source} | direct | (set() if pivot is None else self._direct_targets(pivot))

    def _direct_targets(self, source: str) -> set[str]:
        return {
            target
            for each in self._translators
            if match_language(source, each.sources) is not None
            for target in each.targets
        }

    def _hop(self, source: str, target: str) -> Hop | None:
        """The direct translation.

        Bilingual models have precedence over multilingual ones, then those with the best codes.
        """
        hops = [
            (len(each.sources), hop)
            for each in self._translators
            if (hop := each.hop(source, target)) is not None
        ]
        if not hops:
            return None
        least = min(num_sources for num_sources, _ in hops)
        found = [hop for num_sources, hop in hops if num_sources == least]
        best_target = match_language(target, [hop.target for hop in found])
        found = [hop for hop in found if hop.target == best_target]
        best_source = match_language(source, [hop.source for hop in found])
        return next(hop for hop in found if hop.source == best_source)


def _given(language: str | None) -> tuple[str, ...]:
    return (language,) if language else ()


def _unknown(field: str, code: str, known: Iterable[str]) -> InvalidArgumentError:
    names = ", ".join(known) or "no translation model is served"
    return InvalidArgumentError(field, f"{quoted(code)} is not a language served here: {names}")
