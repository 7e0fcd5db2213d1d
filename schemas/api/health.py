"""The health of the service and of what it depends on."""

from typing import Final

from schemas.api import response_fields as field
from schemas.api.response_fields import ResponseSchema

#: The results of a check of `/readyz`.
_FINDINGS: Final = ("ok", "unavailable", "unknown", "not_current", "wrong")


class HealthResponse(ResponseSchema):
    """The process responds."""

    status = field.constant("ok", "Always `ok`.")
    installation = field.text(
        "An id of the installation, by which `doctor` recognizes the service",
        null="without ENCRYPTION_KEYS",
        example="3f1f2b6c00004e01",
    )


class ReadinessChecksResponse(ResponseSchema):
    """The checks of the service's dependencies."""

    database = field.one_of(_FINDINGS, "Whether the database is available.")
    disk = field.one_of(
        ("ok", "low", "full"),
        "The free space on the disk of the database and of DATA_DIR; while it is `full`, nothing is stored.",
    )
    schema = field.one_of(_FINDINGS, "Whether the database has the schema of this version.")
    keys = field.one_of(_FINDINGS, "Whether ENCRYPTION_KEYS can decrypt the secrets in the database.")
    redis = field.one_of(_FINDINGS, "Whether Redis is available; without it, deliveries are delayed.")
    workers = field.one_of(
        _FINDINGS, "Whether a worker reported in the last seconds; without workers, nothing is delivered."
    )


class ReadinessResponse(ResponseSchema):
    """The state of the installation."""

    status = field.one_of(
        ("ok", "degraded", "unavailable"),
        "The overall status. `degraded`: requests are accepted, and deliveries are delayed.",
    )
    checks = field.part(ReadinessChecksResponse, "The result of each check.")
