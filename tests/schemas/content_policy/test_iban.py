"""Bank account numbers: the length of each country, the check digits, and the text around them."""

from typing import Final

import pytest

from schemas.content_policy.detectors.iban import found_in

#: The lengths from SWIFT's registry: for account numbers of digits only, and for those with letters.
_DIGITS: Final = (
    "AE23 AT20 BA20 BE16 BI27 CR22 CZ24 DE22 DJ27 DK18 EE20 EG29 ES24 FI18 FO18 GL18 HR21 HU28 IL23 IS26 LT20 LY25 ME22 MN20"
    " MR27 NO15 PL28 PT25 RS22 SD18 SE24 SI19 SK24 SO23 ST25 TL23 TN24 VA22 XK20"
)
_LETTERS: Final = (
    "AD24 AL28 AZ28 BG22 BH22 BR29 BY28 CH21 CY28 DO28 FK18 FR27 GB22 GE22 GI23 GR27 GT28 HN28 IE22 IQ23 IT27 JO30 KW30 KZ20"
    " LB28 LC32 LI21 LU20 LV21 MC27 MD24 MK19 MT31 MU30 NI28 NL18 OM23 PK24 PS29 QA29 RO24 RU33 SA24 SC31 SM27 SV28 TR26"
    " UA29 VG24 YE30"
)
DIGITS: Final = _DIGITS.split()
LETTERS: Final = _LETTERS.split()


def _account(country: str, length: int, end: str = "0") -> str:
    """Return an account number of a country with check digits as defined by ISO 13616."""
    account = "1234567890123456789012345678901"[: length - 5] + end
    digits = "".join(str(int(each, 36)) for each in f"{account}{country}00")
    return f"{country}{98 - int(digits) % 97:02}{account}"


@pytest.mark.parametrize("entry", [*DIGITS, *LETTERS])
def test_an_account_has_the_length_of_its_country(entry: str) -> None:
    country, length = entry[:2], int(entry[2:])
    found = {each for each in range(15, 35) if found_in(_account(country, each))}
    assert found == {length}


@pytest.mark.parametrize("entry", [*DIGITS, *LETTERS])
def test_an_iban_has_letters_only_in_some_countries(entry: str) -> None:
    assert found_in(_account(entry[:2], int(entry[2:]), end="K")) is (entry in LETTERS)


@pytest.mark.parametrize(
    ("text", "is_account"),
    [
        ("DE89370400440532013000", True),
        ("de89 3704 0044 0532 0130 00", True),
        ("DE89-3704-0044-0532-0130-00", True),
        ("DE89.3704.0044.0532.0130.00", True),
        ("DE89\u00a03704\u20090044\u202f0532 0130 00", True),
        ("DE89  3704 0044 0532 0130 00", False),  # at most one character between groups
        ("DE89 3704 0044 0532 0130 00 now", True),
        ("DE89 3704 0044 0532 0130 00, thanks", True),
        ("DE89370400440532013000a", False),
        ("DE893704004405320130001", False),
        ("XDE89370400440532013000", False),
        ("_DE89370400440532013000", False),
        ("1DE89370400440532013000", False),
        ("(DE89370400440532013000)", True),
        ("DE88370400440532013000", False),
        ("ZZ89370400440532013000", False),
    ],
)
def test_an_account_number_is_found_in_every_usual_notation(text: str, is_account: bool) -> None:
    assert found_in(text) is is_account
