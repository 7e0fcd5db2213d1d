"""International bank account numbers: a country, its length, and the check digits of ISO 13616."""

import re
from collections.abc import Mapping
from typing import Final

#: Length by country, from SWIFT's registry; accounts of the first group consist of digits alone.
_DIGITS_ONLY: Final = (
    "AE23 AT20 BA20 BE16 BI27 CR22 CZ24 DE22 DJ27 DK18 EE20 EG29 ES24 FI18 FO18 GL18 HR21 HU28 IL23 IS26 LT20 LY25 ME22 MN20"
    " MR27 NO15 PL28 PT25 RS22 SD18 SE24 SI19 SK24 SO23 ST25 TL23 TN24 VA22 XK20"
)
_WITH_LETTERS: Final = (
    "AD24 AL28 AZ28 BG22 BH22 BR29 BY28 CH21 CY28 DO28 FK18 FR27 GB22 GE22 GI23 GR27 GT28 HN28 IE22 IQ23 IT27 JO30 KW30 KZ20"
    " LB28 LC32 LI21 LU20 LV21 MC27 MD24 MK19 MT31 MU30 NI28 NL18 OM23 PK24 PS29 QA29 RO24 RU33 SA24 SC31 SM27 SV28 TR26"
    " UA29 VG24 YE30"
)
_LENGTHS: Final[Mapping[str, int]] = {each[:2]: int(each[2:]) for each in f"{_DIGITS_ONLY} {_WITH_LETTERS}".split()}
_NUMERIC: Final = frozenset(each[:2] for each in _DIGITS_ONLY.split())
#: Separators that people write between groups, one character each.
_BETWEEN: Final = "[ \\-.\u00a0\u2009\u202f]?"
#: The pattern begins with the check digits, because digits are rarer than letters: they follow a country code at the
#: beginning of a word, and digits and letters follow them, at most thirty.
_CANDIDATE: Final = re.compile(
    rf"[0-9]{{2}}(?<=[A-Za-z][A-Za-z]..)(?<![0-9A-Za-z_]....)(?=((?:{_BETWEEN}[0-9A-Za-z]){{11,30}}))"
)
_NO_SEPARATORS: Final = str.maketrans("", "", " -.\u00a0\u2009\u202f")


def found_in(text: str) -> bool:
    """Return whether `text` holds an IBAN with the right length and check digits, in one piece or in groups."""
    return any(_is_iban(text[found.start() - 2 : found.end(1)]) for found in _CANDIDATE.finditer(text))


def _is_iban(written: str) -> bool:
    """Return whether a match begins with an IBAN: the next word of a text may follow the number."""
    bare = written.translate(_NO_SEPARATORS).upper()
    length = _LENGTHS.get(bare[:2], 0)
    number = bare[:length]
    # A following letter or digit without a separator belongs to a longer id.
    if not length or not re.match(rf"(?:[0-9A-Za-z]{_BETWEEN}){{{length - 1}}}[0-9A-Za-z](?![0-9A-Za-z])", written):
        return False
    if bare[:2] in _NUMERIC and not number[2:].isdecimal():
        return False
    digits = "".join(str(int(character, 36)) for character in number[4:] + number[:4])
    return int(digits) % 97 == 1
