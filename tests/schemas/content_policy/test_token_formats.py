"""Every token format: an example with the minimum length is rejected, and shorter or longer texts are not."""

from typing import Final

import pytest

from schemas.content_policy.detectors.token_formats import found_in

#: Random letters and digits, so that this file contains no complete token.
BODY: Final = "aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC" * 9
HEX: Final = "0b1d3f5a7c9e2048d6af" * 9
CAPITALS: Final = "A7BC3DEF5GHJ2KLM9NPQ4RST6UVW" * 4
SMALL: Final = "a7bc3def5ghj2klm9npq4rst6uvw" * 4
DIGITS: Final = "314159265358979323846264"
LETTERS: Final = "aBcDeFgHiJkLmNoPqRsTuVwXyZAbCdEfGhIj"
UUID: Final = "0b1d3f5a-7c9e-2048-d6af-0b1d3f5a7c9e"

#: Columns: a prefix; what must follow it. A longer text is not a token.
FIXED: Final = [
    ("rrt_", BODY[:33]),
    ("A3-", f"{CAPITALS[:6]}-{CAPITALS[:11]}-{CAPITALS[:5]}-{CAPITALS[5:10]}-{CAPITALS[10:15]}"),
    ("A3-", f"{CAPITALS[:6]}-{CAPITALS[:6]}-{CAPITALS[6:11]}-{CAPITALS[:5]}-{CAPITALS[5:10]}-{CAPITALS[10:15]}"),
    ("AGE-SECRET-KEY-1", f"{'QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L'}{'9X8GF2TVDW0S3JN54KHCE6MUA7'}"),
    ("LTAI", BODY[:20]),
    ("AKCp", BODY[:69]),
    ("cmVmdGtu", BODY[:56]),
    ("AKIA", "Q3EGR7WXZ5TBCDNM"),
    ("ASIA", "Q3EGR7WXZ5TBCDNM"),
    ("CCIPAT_", f"{BODY[:22]}_{HEX[:40]}"),
    ("CLOJARS_", SMALL[:60]),
    ("CFPAT-", BODY[:43]),
    ("dapi", HEX[:32]),
    ("dop_v1_", HEX[:64]),
    ("doo_v1_", HEX[:64]),
    ("dor_v1_", HEX[:64]),
    ("FLWSECK", f"-{SMALL[:32]}-X"),
    ("FLWSECK_TEST", f"-{SMALL[:32]}-X"),
    ("fo1_", BODY[:43]),
    ("github_pat_", f"{BODY[:22]}_{BODY[:59]}"),
    ("glptt-", HEX[:40]),
    ("gloas-", BODY[:64]),
    ("GR1348941", BODY[:20]),
    ("GOCSPX-", BODY[:28]),
    ("glsa_", f"{BODY[:32]}_{HEX[:8]}"),
    ("gsk_", BODY[:52]),
    ("pat-na1-", UUID),
    ("pat-eu1-", UUID),
    ("hf_", LETTERS[:34]),
    ("sdk-", UUID),
    ("lin_api_", BODY[:40]),
    ("NRAK-", CAPITALS[:27]),
    ("npm_", BODY[:36]),
    ("ntn_", f"{DIGITS[:11]}{BODY[:35]}"),
    ("secret_", BODY[:43]),
    ("oy2", SMALL[:43]),
    ("API-", CAPITALS[:26]),
    ("sk-", BODY[:48]),
    ("sk-or-v1-", HEX[:64]),
    ("pplx-", BODY[:48]),
    ("PMAK-", f"{HEX[:24]}-{HEX[:34]}"),
    ("pnu_", BODY[:36]),
    ("pul-", HEX[:40]),
    ("r8_", BODY[:37]),
    ("rubygems_", HEX[:48]),
    ("xkeysib-", f"{HEX[:64]}-{BODY[:16]}"),
    ("sntryu_", HEX[:64]),
    ("shippo_live_", HEX[:40]),
    ("shippo_test_", HEX[:40]),
    *((f"shp{kind}_", HEX[:32]) for kind in ("at", "ca", "pa", "ss", "ua")),
    ("xoxa-", f"2-{DIGITS[:10]}-{DIGITS[:10]}-{DIGITS[:10]}-{HEX[:32]}"),
    ("xapp-", f"1-{CAPITALS[:9]}-{DIGITS[:10]}-{(HEX * 2)[:64]}"),
    ("squ_", HEX[:40]),
    ("sqp_", HEX[:40]),
    ("sgp_", HEX[:40]),
    ("sgp_", f"{HEX[:16]}_{HEX[:40]}"),
    ("sgp_local_", HEX[:40]),
    ("sq0atp-", BODY[:22]),
    ("sq0csp-", BODY[:43]),
    ("EAAA", BODY[:60]),
    ("sbp_", HEX[:40]),
    ("SK", HEX[:32]),
    ("xai-", BODY[:80]),
    ("s-s4t2ud-", HEX[:64]),
    ("s-s4t2af-", HEX[:64]),
    ("pat", f"{BODY[:14]}.{HEX[:64]}"),
    ("access_token$production$", f"{SMALL[:16]}${HEX[:32]}"),
    ("v1.0-", f"{HEX[:24]}-{HEX[:146]}"),
    ("dt0c01.", f"{CAPITALS[:24]}.{CAPITALS[:64]}"),
    ("s.", BODY[:24]),
    ("sha256~", BODY[:43]),
    ("SG.", f"{BODY[:22]}.{BODY[:43]}"),
    ("", f"123456789:AA{BODY[:33]}"),
    ("", f"123456789012345|{BODY[:27]}"),
]
#: Columns: a prefix; the shortest text that must follow it. A longer text is also a token.
OPEN: Final = [
    ("sk-ant-api03-", f"{BODY[:93]}AA"),
    ("ATBB", BODY[:28]),
    ("dckr_pat_", BODY[:27]),
    ("dckr_oat_", BODY[:27]),
    ("EAA", BODY[:100]),
    ("figd_", BODY[:40]),
    *((f"gh{kind}_", BODY[:36]) for kind in "pousr"),
    *((f"gl{kind}-", BODY[:20]) for kind in ("dt", "cbt", "ft", "imt")),
    ("glagent-", BODY[:50]),
    ("HRKU-", BODY[:58]),
    *((f"sk-{kind}-", BODY[:40]) for kind in ("proj", "svcacct", "admin")),
    ("pypi-AgE", BODY[:50]),
    ("xoxb-", f"{DIGITS[:8]}-{BODY[:18]}"),
    ("xoxb-", f"{DIGITS[:8]}-{DIGITS[:8]}-{BODY[:18]}"),
    *((f"xox{kind}-", f"{DIGITS[:10]}-{DIGITS[:10]}-{DIGITS[:10]}-{BODY[:28]}") for kind in "pe"),
    *((f"xox{kind}-", f"1-{BODY[:140]}") for kind in "ear"),
    *((f"{kind}k_{mode}_", BODY[:11]) for kind in "sr" for mode in ("live", "test")),
    ("sb_secret_", BODY[:30]),
    *((f"tskey-{kind}-", f"k1-{BODY[:20]}") for kind in ("api", "auth", "client", "scim", "webhook")),
    ("ops_eyJ", BODY[:250]),
    ("ATATT3", BODY[:100]),
    ("ABSK", BODY[:109]),
    *((f"dp.{kind}.", BODY[:40]) for kind in ("pt", "st", "ct", "sa", "scim", "audit")),
    ("dp.st.dev.", BODY[:40]),
    ("sl.", BODY[:130]),
    ("sl.u.", BODY[:130]),
    ("fm2_", BODY[:100]),
    ("glpat-", BODY[:20]),
    ("glrt-", BODY[:20]),
    ("ya29.", BODY[:30]),
    ("1//0", BODY[:40]),
    ("glc_", BODY[:32]),
    ("hvs.", BODY[:90]),
    ("hvb.", BODY[:130]),
    ("sk.eyJ", f"{BODY[:20]}.{BODY[:20]}"),
    *((f"pscale_{kind}_", BODY[:32]) for kind in ("tkn", "oauth", "pw")),
    ("sntrys_eyJ", BODY[:50]),
    *((f"xoxe.xox{kind}-", f"1-{BODY[:140]}") for kind in "bp"),
    ("hooks.slack.com/services/", f"T{CAPITALS[:8]}/B{CAPITALS[:8]}/{BODY[:23]}"),
    ("hooks.slack.com/workflows/", BODY[:40]),
    ("hooks.slack.com/triggers/", BODY[:40]),
    ("discord.com/api/webhooks/", f"{DIGITS[:17]}/{BODY[:60]}"),
    ("discordapp.com/api/webhooks/", f"{DIGITS[:17]}/{BODY[:60]}"),
    ("whsec_", BODY[:32]),
    ("tfp_", BODY[:40]),
    ("", f"aB18Q~{BODY[:31]}"),
    ("", f"{BODY[:14]}.atlasv1.{BODY[:60]}"),
    ("", f"AccountKey={BODY[:86]}=="),
]
_ids = [prefix or body[:16] for prefix, body in [*FIXED, *OPEN]]


@pytest.mark.parametrize(("prefix", "body"), [*FIXED, *OPEN], ids=_ids)
def test_the_shortest_token_of_a_format_is_refused_and_a_shorter_one_passes(prefix: str, body: str) -> None:
    assert found_in(prefix + body)
    assert found_in(f"It says '{prefix}{body}'.")
    assert not found_in(prefix + body[:-1])


@pytest.mark.parametrize(("prefix", "body"), FIXED, ids=_ids[: len(FIXED)])
def test_a_token_of_a_fixed_length_has_no_more_characters(prefix: str, body: str) -> None:
    assert not found_in(f"{prefix}{body}b")


@pytest.mark.parametrize(("prefix", "body"), [each for each in [*FIXED, *OPEN] if each[0]])
def test_a_token_with_another_prefix_passes(prefix: str, body: str) -> None:
    assert not found_in(f"z{prefix}{body}")
    assert not found_in(f"{chr(ord(prefix[0]) ^ 32)}{prefix[1:]}{body}")
