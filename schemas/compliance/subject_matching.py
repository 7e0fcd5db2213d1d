"""Finds the subject of a compliance request, a person or a shop, in texts.

An email address matches in any case and only as a whole: neither `bigjohn@…` nor `john@….au` is `john@…`. A phone number
matches by its digits in any grouping, with or without a country code. Ids and domains match as whole words: 191167 is not in
1911670. A text is searched as it is and with percent-encoding and HTML entities decoded; JSON by its names and values.

`patterns` are for LIKE on lower-case text: they match every mention whose letters and digits are not encoded, and few other
texts.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from schemas.compliance.requests import Subject
from schemas.intake.html_text import unescaped

#: A statement with more patterns than this costs more than reading the texts.
MAX_PATTERNS: Final = 100
#: Shorter numbers are extensions and years; they match as whole words only.
MIN_PHONE_DIGITS: Final = 7

#: Shorter ids are found in composed names as whole words only.
MIN_LOOSE_LENGTH: Final = 6

#: A word: letters and digits. An underscore joins words in programs, not in prose.
_WORD: Final = re.compile(r"[^\W_]+")
#: The key of ids that contain no word.
_NO_WORD: Final = ""
# Characters around an address that are not part of it: "...john@x.de", "_john@x.de_", "john@x.de."
_ADDRESS: Final = r"(?<![^\W_])(?<![^\W_][._+-]){}(?![^\W_])(?![.-][^\W_])"
_BETWEEN_DIGITS: Final = r"[\s().\-/\u00a0\u2010-\u2013]{0,3}"
#: Country codes of one, two and three digits (ITU-T E.164).
_COUNTRY: Final = re.compile(r"[17]|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|[0-9]{3}")
_CHUNKS: Final = re.compile(r"[a-z0-9]+")


class Mentions:
    """Recognizes a subject in texts."""

    def __init__(self, subject: Subject, words: Iterable[str] = ()) -> None:
        ids = [*filter(None, (subject.customer_id,)), *subject.order_ids, *words]
        phone = _Phone.read(subject.phone)
        if subject.phone and phone is None:
            ids.append(subject.phone)
        folded = [each.casefold() for each in ids]
        # There may be 50,000 ids: a regular expression of all of them, or a search for each, takes seconds for one text.
        self._words = {each for each in folded if _WORD.fullmatch(each)}
        self._phrases = _by_rarest_word({*folded} - self._words)
        patterns = [_ADDRESS.format(re.escape(subject.email.casefold()))] if subject.email else []
        if phone:
            patterns.append(phone.expression())
        self._expression = re.compile("|".join(patterns)) if patterns else None
        self._loose = {each for each in (*folded, (subject.email or "").casefold()) if len(each) >= MIN_LOOSE_LENGTH}
        self._loose_lengths = sorted({len(word) for word in self._loose})
        self._digits = phone.rest if phone else None
        self.patterns = _patterns([*ids, *filter(None, (subject.email,))], phone)

    def in_text(self, text: str) -> bool:
        """Return whether `text` mentions the subject."""
        return any(self._is_mentioned(each) for each in _readings(text))

    def in_name(self, name: str) -> bool:
        """Return whether a composed name such as `order-191167x` may contain an id, address or phone number of the subject.

        Ids of fewer than MIN_LOOSE_LENGTH characters must be whole words: any random key contains a 7.
        """
        digits = "".join(filter(str.isdecimal, name))
        is_phone = self._digits is not None and self._digits in digits
        return is_phone or any(self._has_loose(each) or self._is_mentioned(each) for each in _readings(name))

    def in_value(self, name: str, value: Any) -> dict[str, str]:
        """Return the texts of a JSON value that mention the subject, by their paths below `name`."""
        return {path: text for path, text in _texts(name, value) if self.in_text(text)}

    def _is_mentioned(self, reading: str) -> bool:
        words = {_NO_WORD, *_WORD.findall(reading)}
        return (
            not self._words.isdisjoint(words)
            or any(_has_phrase(reading, each) for word in self._phrases.keys() & words for each in self._phrases[word])
            or (self._expression is not None and bool(self._expression.search(reading)))
        )

    def _has_loose(self, reading: str) -> bool:
        # Compares by length, because 50,000 ids have few lengths: a search for each id would take milliseconds.
        return any(
            reading[at : at + length] in self._loose
            for length in self._loose_lengths
            for at in range(len(reading) - length + 1)
        )


class _Phone(NamedTuple):
    """The digits of a phone number: the country code, if the number has one, and the rest."""

    country: str | None
    rest: str

    @classmethod
    def read(cls, text: str | None) -> "_Phone | None":
        """Parse a phone number as people write it; None if it has too few digits to be distinguished from other numbers."""
        digits = "".join(re.findall(r"[0-9]", (text or "").replace("(0)", "")))
        is_international = (text or "").strip().startswith("+") or digits.startswith("00")
        digits = digits.removeprefix("00") if is_international else digits
        country = _COUNTRY.match(digits) if is_international else None
        rest = digits[country.end() :] if country else digits
        rest = rest.lstrip("0")
        return cls(country[0] if country else None, rest) if len(rest) >= MIN_PHONE_DIGITS else None

    def expression(self) -> str:
        """Return a pattern of the number in any grouping, with or without its country code or the zero that replaces it."""
        code = rf"(?:\+|00)?{self.country}" if self.country else r"(?:(?:\+|00)[0-9]{1,3}|1)"
        between = _BETWEEN_DIGITS
        return rf"(?<![0-9])(?:{code}{between})?(?:0{between})?{between.join(self.rest)}(?![0-9])"


def _by_rarest_word(phrases: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return ids of several words or signs by their rarest word among all ids: a text without this word lacks the id."""
    words = {each: {*_WORD.findall(each)} for each in phrases}
    numbers = Counter(word for found in words.values() for word in found)
    phrases_by_word: dict[str, list[str]] = defaultdict(list)
    for each, found in words.items():
        phrases_by_word[min(found, key=numbers.__getitem__, default=_NO_WORD)].append(each)
    return phrases_by_word


def _has_phrase(text: str, phrase: str) -> bool:
    """Return whether `text` has an id of several words or of signs, with neither a letter nor a digit on either side."""
    at = text.find(phrase)
    while at >= 0:
        end = at + len(phrase)
        if not (text[at - 1 : at].isalnum() or text[end : end + 1].isalnum()):
            return True
        at = text.find(phrase, at + 1)
    return False


def _patterns(words: Iterable[str], phone: _Phone | None) -> tuple[str, ...] | None:
    """Return a LIKE pattern for each of `words` and for the phone; None if patterns cannot narrow the search."""
    chunks = [max(_CHUNKS.findall(word.lower()), key=len, default="") for word in words]
    patterns = [f"%{chunk}%" for chunk in dict.fromkeys(chunks)]
    if phone:
        patterns.append(f"%{'%'.join(phone.rest)}%")
    return tuple(patterns) if "" not in chunks and len(patterns) <= MAX_PATTERNS else None


def _readings(text: str) -> Iterator[str]:
    """Yield the text as it is, and decoded once if that makes a difference."""
    yield text.casefold()
    decoded = unescaped(unquote(text))
    if decoded != text:
        yield decoded.casefold()


def _texts(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield f"{path}/{name}", name
            yield from _texts(f"{path}/{name}", member)
    elif isinstance(value, list):
        for place, entry in enumerate(value):
            yield from _texts(f"{path}/{place}", entry)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield path, str(value)
