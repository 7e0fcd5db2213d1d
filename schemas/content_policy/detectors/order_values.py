"""Judges whether a value fits its part of an order record; the label of a form or a type of a schema does not."""

import re
from typing import Final

from schemas.content_policy.detectors.secret_values import is_placeholder
from schemas.content_policy.field_names import ADDRESS, EMAIL, NAME, TOTAL

_EMAIL: Final = re.compile(r"[^\s@,;]{1,200}@[^\s@,;]{1,200}\.[^\s@,;]{2,100}")
#: A digit, two letters in a row, and a space.
_ADDRESS: Final = re.compile(r"(?=.*[0-9])(?=.*[^\W\d_]{2}).*\s", re.DOTALL)
#: A name has letters, no digits, and no character of a path, an address or markup.
_NAME: Final = re.compile(r"[^\W\d_][^\d/@<>{}=]{1,100}")
_AMOUNT: Final = re.compile(r"[^\d\s]{0,4}\s?[0-9][0-9.,' ]{0,20}\s?[^\d\s]{0,4}")
_FITS: Final = {EMAIL: _EMAIL, ADDRESS: _ADDRESS, NAME: _NAME, TOTAL: _AMOUNT}


def plausible(part: str, value: str) -> bool:
    """Return whether `value` can be this part of an order; of line items, any text."""
    fits = _FITS.get(part)
    # Placeholders come last: they take the longest to tell.
    return bool(value) and (fits is None or fits.match(value) is not None) and not is_placeholder(value)
