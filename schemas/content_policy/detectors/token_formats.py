"""The well-known formats of tokens, by the prefixes their vendors gave them so that they can be found.

Not detected: keys intended for public pages (`pk_live_…`, browser keys beginning with `AIza`, `pk.eyJ…`), account names that
grant no access by themselves, and formats that look like any digest. A token that is mostly runs of one character is an
example.
"""

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Final

from schemas.content_policy.detectors.secret_values import is_filler
from schemas.content_policy.text_parts import alphabet, long_runs, parts_with_run

_HEX: Final = "[0-9a-f]"
_UUID: Final = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"

#: A literal prefix, then a pattern of the rest; all characters are letters, digits, `_`, `-`, `+` and `~`.
_FORMATS: Final[tuple[tuple[str, str], ...]] = (
    ("rrt_", "[0-9A-Za-z]{33}"),  # RiskRelay
    ("A3-", "[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}"),  # 1Password
    ("AGE-SECRET-KEY-1", "[02-9AC-HJ-NP-Z]{58}"),  # age
    ("LTAI", "(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20}"),  # Alibaba
    ("sk-ant-", r"[a-z]+[0-9]{2}-[\w-]{93}AA"),  # Anthropic
    ("AKCp", "[A-Za-z0-9]{69}"),  # Artifactory
    ("cmVmdGtu", "[A-Za-z0-9]{56}"),  # Artifactory
    ("ATBB", "[A-Za-z0-9]{28,}"),  # Bitbucket
    ("AKIA", "(?![A-Z0-9]{9}EXAMPLE)[A-Z2-7]{16}"),  # AWS
    ("ASIA", "(?=[A-Z]*[2-7])(?![A-Z0-9]{9}EXAMPLE)[A-Z2-7]{16}"),  # AWS
    ("CCIPAT_", r"\w{22}_[0-9a-f]{40}"),  # CircleCI
    ("CLOJARS_", "[a-z0-9]{60}"),  # Clojars
    ("CFPAT-", r"[\w-]{43}"),  # Contentful
    ("dapi", "[0-9a-f]{32}(?:-[0-9])?"),  # Databricks
    *((f"do{kind}_v1_", "[0-9a-f]{64}") for kind in "opr"),  # DigitalOcean
    ("dckr_", r"(?:pat|oat)_[\w-]{27,}"),  # Docker
    ("EAA", "[A-Za-z0-9]{100,}"),  # Facebook
    ("figd_", r"[\w-]{40,}"),  # Figma
    ("FLWSECK", "(?:_TEST)?-[0-9a-z]{32}-X"),  # Flutterwave
    ("fo1_", r"[\w-]{43}"),  # Fly.io
    *((f"gh{kind}_", "[A-Za-z0-9]{36,}") for kind in "pousr"),  # GitHub
    ("github_pat_", r"[A-Za-z0-9]{22}_\w{59}"),  # GitHub
    ("glptt-", "[0-9a-f]{40}"),  # GitLab
    *((f"gl{kind}-", r"[\w-]{20,}") for kind in ("dt", "cbt", "ft", "imt")),  # GitLab
    ("glagent-", r"[\w-]{50,}"),  # GitLab
    ("gloas-", r"[\w-]{64}"),  # GitLab
    ("GR1348941", r"(?=[0-9_-]{0,19}[A-Za-z])[\w-]{20}"),  # GitLab
    ("GOCSPX-", r"[\w-]{28}"),  # Google
    ("glsa_", "[A-Za-z0-9]{32}_[0-9A-Fa-f]{8}"),  # Grafana
    ("gsk_", "[A-Za-z0-9]{52}"),  # Groq
    ("HRKU-", r"[\w-]{58,}"),  # Heroku
    ("pat-", rf"(?:na|eu)[0-9]-{_UUID}"),  # HubSpot
    # Only letters, as in an identifier; but in a token, half of the letters are capitals.
    ("hf_", "(?=(?:[a-z]*[A-Z]){8})[A-Za-z]{34}"),  # Hugging Face
    ("sdk-", _UUID),  # LaunchDarkly
    ("lin_api_", "[A-Za-z0-9]{40}"),  # Linear
    ("NRAK-", "[A-Z0-9]{27}"),  # New Relic
    ("npm_", "[A-Za-z0-9]{36}"),  # npm
    ("ntn_", "[0-9]{11}(?=[0-9]*[A-Za-z])[A-Za-z0-9]{35}"),  # Notion
    ("secret_", "(?=[A-Za-z]*[0-9])[A-Za-z0-9]{43}"),  # Notion
    ("oy2", "[a-z0-9]{43}"),  # NuGet
    ("API-", "(?=[A-Z]*[0-9])[A-Z0-9]{26}"),  # Octopus Deploy
    *((f"sk-{kind}-", r"[\w-]{40,}") for kind in ("proj", "svcacct", "admin")),  # OpenAI
    ("sk-", "(?:(?=[A-Za-z]*[0-9])[A-Za-z0-9]{48}|or-v1-[0-9a-f]{64})"),  # OpenAI and its relatives
    ("pplx-", "[A-Za-z0-9]{48}"),  # Perplexity
    ("PMAK-", "[0-9a-f]{24}-[0-9a-f]{34}"),  # Postman
    ("pnu_", "[A-Za-z0-9]{36}"),  # Prefect
    ("pul-", "[0-9a-f]{40}"),  # Pulumi
    ("pypi-AgE", r"[\w-]{50,}"),  # PyPI
    ("r8_", "[A-Za-z0-9]{37}"),  # Replicate
    ("rubygems_", "[0-9a-f]{48}"),  # RubyGems
    ("xkeysib-", "[0-9a-f]{64}-[A-Za-z0-9]{16}"),  # Brevo
    ("sntryu_", "[0-9a-f]{64}"),  # Sentry
    ("shippo_", "(?:live|test)_[0-9a-f]{40}"),  # Shippo
    *((f"shp{kind}_", "[0-9A-Fa-f]{32}") for kind in ("at", "ca", "pa", "ss", "ua")),  # Shopify
    ("xoxb-", "[0-9]{8,14}-(?:[0-9]{8,14}-)?(?=[A-Za-z]*[0-9]|[a-z]*[A-Z]+[a-z])[A-Za-z0-9]{18,26}"),  # Slack
    *((f"xox{kind}-", "(?:[0-9]{10,13}-){3}[A-Za-z0-9-]{28,34}") for kind in "pe"),  # Slack
    *((f"xox{kind}-", "[0-9]-[A-Za-z0-9]{140,}") for kind in "ear"),  # Slack
    ("xoxa-", "[0-9]-[0-9]{10,13}-[0-9]{10,13}-[0-9]{10,13}-[0-9a-f]{32}"),  # Slack
    ("xapp-", "[0-9]-[A-Z0-9]{9,}-[0-9]{10,}-[0-9a-z]{64}"),  # Slack
    *((f"sq{kind}_", "[0-9a-f]{40}") for kind in "up"),  # Sonar
    ("sgp_", "(?:(?:[0-9A-Fa-f]{16}|local)_)?[0-9A-Fa-f]{40}"),  # Sourcegraph
    ("sq0atp-", r"[\w-]{22}"),  # Square
    ("sq0csp-", r"[\w-]{43}"),  # Square
    ("EAAA", r"[\w-]{60}"),  # Square
    *((f"{kind}k_{mode}_", "[A-Za-z0-9]{10,}") for kind in "sr" for mode in ("live", "test")),  # Stripe
    ("sbp_", "[0-9a-f]{40}"),  # Supabase
    ("sb_secret_", r"[\w-]{30,}"),  # Supabase
    ("tskey-", "(?:api|auth|client|scim|webhook)-[A-Za-z0-9]+-[A-Za-z0-9]{20,}"),  # Tailscale
    ("SK", "[0-9a-f]{32}"),  # Twilio
    ("xai-", "[A-Za-z0-9]{80}"),  # xAI
    *((f"s-s4t2{kind}-", "[0-9a-f]{64}") for kind in ("ud", "af")),  # 42
)
#: Formats with other characters inside: the whole text is searched for each prefix.
_BROKEN_FORMATS: Final[tuple[tuple[str, str], ...]] = (
    ("ops_eyJ", "[A-Za-z0-9+/]{250,}"),  # 1Password
    ("pat", r"[A-Za-z0-9]{14}\.[0-9a-f]{64}"),  # Airtable
    ("ATATT3", r"[\w=-]{100,}"),  # Atlassian
    ("ABSK", "[A-Za-z0-9+/]{109,269}={0,2}(?![A-Za-z0-9+/=])"),  # AWS
    ("access_token$production$", rf"[0-9a-z]{{16}}\${_HEX}{{32}}"),  # Braintree
    ("v1.0-", "[0-9a-f]{24}-[0-9a-f]{146}"),  # Cloudflare
    ("dp.", r"(?:pt|st|ct|sa|scim|audit)\.(?:\w{1,35}\.)?[A-Za-z0-9]{40,44}"),  # Doppler
    ("sl.", r"(?:u\.)?[\w-]{130,}"),  # Dropbox
    ("dt0c01.", r"[A-Z0-9]{24}\.[A-Z0-9]{64}"),  # Dynatrace
    ("fm2_", "[A-Za-z0-9+/]{100,}"),  # Fly.io
    ("glpat-", r"[\w.-]{20,}"),  # GitLab
    ("glrt-", r"[\w.-]{20,}"),  # GitLab
    ("ya29.", r"[\w-]{30,}"),  # Google
    ("1//0", r"[\w-]{40,}"),  # Google
    ("glc_", "(?=[0-9]*[A-Za-z])[A-Za-z0-9+/]{32,}"),  # Grafana
    ("hvs.", r"[\w-]{90,}"),  # HashiCorp Vault
    ("hvb.", r"[\w-]{130,}"),  # HashiCorp Vault
    ("s.", "(?=(?:[A-Za-z]*[0-9]){3})(?=[0-9A-Z]*[a-z])(?=[0-9a-z]*[A-Z])[A-Za-z0-9]{24}"),  # HashiCorp Vault, before 1.10
    ("sk.eyJ", r"[\w-]{20,}\.[\w-]{20,}"),  # Mapbox
    ("sha256~", r"[\w-]{43}"),  # OpenShift
    ("pscale_", r"(?:tkn|oauth|pw)_[\w=.-]{32,}"),  # PlanetScale
    ("SG.", r"[\w-]{22}\.[\w-]{43}"),  # SendGrid
    ("sntrys_eyJ", r"[\w=+/-]{50,}"),  # Sentry
    ("xoxe.xox", "[bp]-[0-9]-[A-Za-z0-9]{140,}"),  # Slack
    ("hooks.slack.com/", r"(?:services/T\w{8,}/B\w{8,}/[A-Za-z0-9]{23,25}|(?:workflows|triggers)/[\w+/]{40,})"),  # Slack
    *((f"discord{end}.com/api/webhooks/", r"[0-9]{17,20}/[\w-]{60,}") for end in ("", "app")),  # Discord
    ("whsec_", "[A-Za-z0-9+/=]{32,}"),  # Stripe, Standard Webhooks
    ("tfp_", r"[\w.-]{40,}"),  # Typeform
)
#: Formats without a fixed prefix; a mark inside the token identifies them.
_MARKED_FORMATS: Final[tuple[tuple[str, str], ...]] = (
    ("Q~", r"(?<![\w~.-])[\w~.]{3}[0-9]Q~[\w~.-]{31,34}(?![\w~.-])"),  # Azure AD
    (":AA", r"(?<![0-9])[0-9]{8,10}:AA[\w-]{33}(?![\w-])"),  # Telegram
    ("|", r"(?<![0-9])[0-9]{15,16}\|[\w-]{27}(?![\w-])"),  # Facebook
    (".atlasv1.", r"(?<![\w-])[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,}"),  # Terraform
    ("AccountKey=", "AccountKey=[A-Za-z0-9+/]{86}=="),  # Azure Storage
)
#: A token is an example if more than this share of its characters repeat the one before: `ghp_xxxx…`, also around words. A
#: tenth repeats by chance.
_FILLING: Final = 0.35


def _grouped(formats: Iterable[tuple[str, str]]) -> str:
    """Return one pattern of all formats, which tests each first letter once, not once for each format."""
    by_letter = groupby(sorted(formats), key=lambda each: each[0][0])
    groups = (
        (letter, "|".join(f"{re.escape(prefix[1:])}{rest}" for prefix, rest in formats)) for letter, formats in by_letter
    )
    return "|".join(f"{letter}(?:{rests})" for letter, rests in groups)


def _prefixed(prefix: str, rest: str) -> str:
    """Return a pattern that begins with its literal prefix, for speed; the character before it is checked afterwards."""
    return rf"{re.escape(prefix)}(?<![A-Za-z0-9_]{re.escape(prefix)})(?:{rest})(?![A-Za-z0-9])"


_RUN: Final = alphabet("_-+~")
_TOKEN: Final = re.compile(rf"(?<![A-Za-z0-9_])(?:{_grouped(_FORMATS)})(?![A-Za-z0-9])", re.ASCII)
_BROKEN: Final = tuple((prefix, re.compile(_prefixed(prefix, rest), re.ASCII)) for prefix, rest in _BROKEN_FORMATS)
_MARKED: Final = tuple((mark, re.compile(pattern, re.ASCII)) for mark, pattern in _MARKED_FORMATS)


def found_in(text: str) -> bool:
    """Return whether `text` holds a token of a known format that is not an example."""
    return _has_long_token(text) or _has_any(_MARKED, text)


def _has_long_token(text: str) -> bool:
    """Return whether a long run is a token, or a part that has a long run contains a token with other characters inside."""
    dense = parts_with_run(text, _RUN)
    return bool(dense) and (_holds(_TOKEN, b" ".join(long_runs(dense, _RUN)).decode()) or _has_any(_BROKEN, dense))


def _has_any(formats: Iterable[tuple[str, re.Pattern[str]]], text: str) -> bool:
    return any(mark in text and _holds(pattern, text) for mark, pattern in formats)


def _holds(pattern: re.Pattern[str], text: str) -> bool:
    return any(not is_filler(token[0], _FILLING) for token in pattern.finditer(text))
