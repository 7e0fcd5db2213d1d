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
        "An identifier of the installation, by which `doctor` recognizes it.", nullable=True, example="3f1f2b6c00004e01"
    )


class ReadinessChecksResponse(ResponseSchema):
    """The checks of the service's dependencies."""

    database = field.one_of(_FINDINGS, "The database.")
    disk = field.one_of(("ok", "low", "full"), "The disk of the database and of DATA_DIR; on a full one nothing is stored.")
    schema = field.one_of(_FINDINGS, "The version of the database schema.")
    keys = field.one_of(_FINDINGS, "Whether ENCRYPTION_KEYS decrypts the database's secrets.")
    redis = field.one_of(_FINDINGS, "Redis; without it deliveries are delayed.")
    workers = field.one_of(_FINDINGS, "Whether a worker was seen in the last seconds.")


class ReadinessResponse(ResponseSchema):
    """The state of the installation."""

    status = field.one_of(("ok", "degraded", "unavailable"), "`degraded`: requests are accepted, deliveries are delayed.")
    checks = field.part(ReadinessChecksResponse, "Each check.")
