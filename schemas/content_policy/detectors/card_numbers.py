"""Payment card numbers in text: issuer range, length, grouping and check digit together.

One of ten timestamps, barcodes and database ids has a valid check digit by chance. A number counts if it is grouped as its
issuer prints it, or if it has 15 or 16 digits without separators. Without separators, 14 digits of Diners Club and 19 of
UnionPay count if they are free-standing: not in a URL, a list of numbers or after the name of an id (variant, GTIN, order),
and without a barcode's check digit. Other lengths count after a word for a card. Thirteen digits never count: they are EANs.
The digits of a fraction never count without separators. Numbers of few distinct digits count: 4242 4242 4242 4242 is a card
number. Digits of every script count.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

#: First and last prefix (padded to six digits) of an issuer, and the lengths of its numbers; sorted and without overlaps.
_RANGES: Final[tuple[tuple[int, int, tuple[int, ...]], ...]] = (
    (220000, 220499, (16, 19)),  # Mir
    (222100, 272099, (16,)),  # Mastercard, second series
    (300000, 305999, (14, 16, 19)),  # Diners Club
    (309500, 309599, (14, 16, 19)),  # Diners Club
    (340000, 349999, (15,)),  # American Express
    (352800, 358999, (16, 19)),  # JCB
    (360000, 369999, (14, 16, 19)),  # Diners Club
    (370000, 379999, (15,)),  # American Express
    (380000, 399999, (14, 16, 19)),  # Diners Club, and Hipercard among them
    (400000, 499999, (16, 19)),  # Visa
    (501800, 501999, (16, 18, 19)),  # Maestro, Dankort
    (502000, 502099, (16, 18, 19)),  # Maestro
    (503800, 503899, (16, 18, 19)),  # Maestro
    (504175, 504175, (16,)),  # Elo
    (506099, 506198, (16, 19)),  # Verve
    (506699, 506778, (16,)),  # Elo
    (507865, 507964, (16, 19)),  # Verve
    (508500, 508999, (16,)),  # RuPay
    (509000, 509999, (16,)),  # Elo
    (510000, 559999, (16,)),  # Mastercard
    (589300, 589399, (16, 18, 19)),  # Maestro
    (601100, 601199, (16, 19)),  # Discover
    (606282, 606282, (16, 19)),  # Hipercard
    (606985, 608500, (16,)),  # RuPay
    (620000, 629999, (16, 17, 18, 19)),  # UnionPay
    (630400, 630499, (16, 18, 19)),  # Maestro
    (636297, 636297, (16,)),  # Elo
    (636368, 636368, (16,)),  # Elo
    (637000, 637999, (16,)),  # Hiper
    (644000, 659999, (16, 19)),  # Discover
    (675900, 675999, (16, 18, 19)),  # Maestro
    (676100, 676399, (16, 18, 19)),  # Maestro
    (979200, 979299, (16,)),  # Troy
)
_FIRSTS: Final = [first for first, _, _ in _RANGES]
#: Separators of groups: space, hyphen, dot, plus (a space in form data), slash, and their typographic variants, including
#: invisible ones.
_BETWEEN: Final = r"[ \-.+/\t\u00a0\u00ad\u2000-\u200b\u202f\u2010-\u2015\u2060\u2212\u3000\ufeff\uff0d]{1,3}"
#: Groups as they are printed: fours; four, six and the rest; six and thirteen. Digits without separators come last. The
#: pattern begins with four digits for speed and checks the characters before them afterwards: a letter, digit or underscore
#: means a digest, an id or a file name.
_CANDIDATE: Final = re.compile(
    rf"""[2-69][0-9]{{3}} (?<![0-9A-Za-z_]....)
    (?: ({_BETWEEN})
          (?: [0-9]{{4}} \1 [0-9]{{4}} \1 [0-9]{{3,4}} (?: \1 [0-9]{{3}} (?![0-9]) )?
            | [0-9]{{6}} \1 [0-9]{{4,5}} )
      | [0-9]{{2}} ({_BETWEEN}) [0-9]{{13}}
      | [0-9]{{10,15}} )
    (?![0-9A-Za-z_])""",
    re.VERBOSE,
)
#: A line break between two groups of a number, as mail programs wrap lines and quote them.
_WRAP: Final = re.compile(r"([0-9]{4})([ -]?)[ \t]{0,8}\r?\n[> \t]{0,8}(?=[0-9]{3})")
#: The separator of the groups next to a line break.
_SEPARATED_BEFORE: Final = re.compile(r"(?<=[0-9])[ -](?=[0-9]{4}\Z)")
_SEPARATED_AFTER: Final = re.compile(r"(?<=[0-9]{4})[ -](?=[0-9])")
#: The number in the first track of a magnetic stripe.
_TRACK: Final = re.compile(r"%B([0-9]{13,19})\^")
#: The text before the digits of a fraction. Digits and a comma also precede the next number of a list or of a table's row,
#: so before a comma only a zero by itself counts.
_FRACTION_BEFORE: Final = re.compile(r"[0-9]\.\Z|(?<![\w.,])0,\Z")
#: A point and digits after a number.
_FRACTION_AFTER: Final = re.compile(r"\.[0-9]")
#: The end of an IBAN's first group, or of a group before the supposed first group of a card.
_INSIDE_LONGER: Final = re.compile(rf"[0-9A-Z]{{2}}[0-9]{{2}}(?:{_BETWEEN})\Z")
#: Numbers of these lengths without separators are mostly cards; most numbers of other lengths are ids.
_PLAIN_LENGTHS: Final = frozenset({15, 16})
_SAYS_CARD: Final = re.compile(r"(?i)card|karte|carte|tarjeta|cart[aã]o|kort\b|\bpan\b|diners|maestro|union ?pay|visa\b")
#: Prefixes by further lengths; without separators, such numbers count if they are free-standing.
_FREE_RANGES: Final[Mapping[int, tuple[str, ...]]] = {14: ("30", "36", "38", "39"), 19: ("62",)}
#: The text before an id in a URL, a selector, an expression or a name.
_ID_BEFORE: Final = re.compile(
    r"[\w/=#&?@$%:.\[({<>+-]\Z|[0-9],\Z"
    r"|(?i:(?:\b|_)(?:ids?|gid|variants?|products?|skus?|gtin|ean|upc|isbn|barcode|orders?|bestell\w{0,9}|commande|invoices?"
    r"|rechnung\w{0,9}|tickets?|refs?|reference|tracking|parcel|sendung\w{0,9}|shipment|articles?|artikel\w{0,9}|items?|serial"
    r"|imei|phone|telefon|tel|fax|account|konto\w{0,9}|customer|kunden\w{0,9}|timestamps?|time|at|builds?|version|snowflake"
    r"|posts?|pages?|users?|media|file|image|numbers?|nr|no)[\"']?\W{0,3}(?:(?:id|no|nr|number|nummer|code)\W{0,4})?)\Z"
)
_ID_AFTER: Final = re.compile(r"[\w/=#&?@$%-]|[.:][\w/]|,[0-9]")
#: Characters before a number that are searched for such a word: a label and a little punctuation.
_LABEL_CHARACTERS: Final = 40
#: The Luhn value of a doubled digit, both as bytes.
_DOUBLED: Final = bytes.maketrans(b"0123456789", b"0246813579")
_ZERO: Final = ord("0")
#: JSON integers of these lengths are checked. Others are ids: there is no text that shows that the number is a card's.
_MAX_NUMBER: Final = 10**16
_MIN_NUMBER: Final = 10**14


def found_in(text: str) -> bool:
    """Return whether `text` holds a card number, plain or grouped, also one that a line break divides between two groups."""
    if any(_is_card(text, candidate) for candidate in _CANDIDATE.finditer(text)):
        return True
    if any(_has_check_digit(found[1]) and _is_in_a_range(found[1]) for found in _TRACK.finditer(text)):
        return True
    return any(map(_is_wrapped_card, _WRAP.finditer(text)))


def as_text(number: float) -> tuple[str, ...]:
    """Return the digits of a JSON number, without its sign; none if it cannot be a card number."""
    if not _MIN_NUMBER <= abs(number) < _MAX_NUMBER or number != int(number):
        return ()
    return (str(abs(int(number))),)


def _is_card(text: str, candidate: re.Match[str]) -> bool:
    """Return whether the whole match is a card number, or its first sixteen digits: three more may be the security code.

    The check digit is checked first: this is the cheapest check, and nine of ten numbers fail it.
    """
    written, after = candidate[0], text[candidate.end() : candidate.end() + 2]
    if written.isdecimal():
        return _has_check_digit(written) and _is_plain_card(written, _before(text, candidate), after)
    if "." in candidate.groups() and (_FRACTION_AFTER.match(after) or _FRACTION_BEFORE.search(_before(text, candidate))):
        # Part of a longer number with points, such as an object identifier.
        return False
    digits = "".join(filter(str.isdigit, written))
    forms = [form for form in ({digits, digits[:16]} if len(digits) == 19 else {digits}) if _has_check_digit(form)]
    return any(map(_is_in_a_range, forms)) and not _INSIDE_LONGER.search(_before(text, candidate))


def _is_wrapped_card(wrap: re.Match[str]) -> bool:
    """Return whether two lines form a card number when the separator of the groups next to the break joins them."""
    before = wrap.string[max(0, wrap.start() - _LABEL_CHARACTERS) : wrap.end(1)].rpartition("\n")[2]
    after = wrap.string[wrap.end() : wrap.end() + _LABEL_CHARACTERS].partition("\n")[0]
    separator = wrap[2] or (_SEPARATED_BEFORE.search(before) or _SEPARATED_AFTER.match(after) or " ")[0]
    joined = f"{before}{separator}{after}"
    spanning = (each for each in _CANDIDATE.finditer(joined) if each.start() < len(before) < each.end())
    return any(_is_card(joined, candidate) for candidate in spanning)


def _before(text: str, candidate: re.Match[str]) -> str:
    return text[max(0, candidate.start() - _LABEL_CHARACTERS) : candidate.start()]


def _is_plain_card(digits: str, before: str, after: str) -> bool:
    if not _is_in_a_range(digits) or _FRACTION_BEFORE.search(before) or _FRACTION_AFTER.match(after):
        return False
    if len(digits) not in _PLAIN_LENGTHS and not _SAYS_CARD.search(before):
        return _is_free_standing(digits, before, after)
    # Fifteen digits after a plus are a telephone number with its country code.
    return not (len(digits) == 15 and before.endswith("+"))  # a length of American Express, and E.164's maximum


def _is_free_standing(digits: str, before: str, after: str) -> bool:
    """Return whether a number is free-standing, by its issuer and the text around it; few cards have its length."""
    if not digits.startswith(_FREE_RANGES.get(len(digits), ())) or _is_barcode(digits):
        return False
    return not _ID_BEFORE.search(before) and not _ID_AFTER.match(after)


def _is_barcode(digits: str) -> bool:
    """Return whether 14 digits end with a GTIN's check digit."""
    weighted = sum(int(digit) * (3 if place % 2 == 0 else 1) for place, digit in enumerate(digits))
    return len(digits) == 14 and weighted % 10 == 0


def _is_in_a_range(digits: str) -> bool:
    prefix = int(digits[:6])
    first, last, lengths = _RANGES[bisect_right(_FIRSTS, prefix) - 1]
    return first <= prefix <= last and len(digits) in lengths


def _has_check_digit(digits: str) -> bool:
    """Return whether the check digit of ISO/IEC 7812 (Luhn) is correct."""
    numbers = digits.encode()[::-1]
    # Bytes of digits: single digits count as they are, doubled ones by their Luhn value.
    return (sum(numbers[::2]) + sum(numbers[1::2].translate(_DOUBLED)) - len(numbers) * _ZERO) % 10 == 0
