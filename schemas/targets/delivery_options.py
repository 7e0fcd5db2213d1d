"""How requests to a target are made, besides its URL and secret."""

from typing import Final, NamedTuple

from schemas.trackers.registry import GENERIC_WEBHOOK


class DeliveryOptions(NamedTuple):
    """Options of requests to a target as its row has them: `provider_settings` is JSON, the vault decrypts sealed values."""

    provider_key: str = GENERIC_WEBHOOK
    provider_settings: str = "{}"
    signature: str = "service"
    format: str = "ticket"
    headers_sealed: bytes | None = None
    standard_secret_sealed: bytes | None = None
    certificate_sealed: bytes | None = None


#: The options of nearly every target; a comparison with them costs less than new options for each delivery.
DEFAULT_OPTIONS: Final = DeliveryOptions()
