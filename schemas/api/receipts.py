"""The delivery receipt of an export."""

from marshmallow import fields

from schemas.api.deliveries import AttemptResultResponse
from schemas.api.response_fields import DIGEST, SHA256, ResponseSchema, constant, identifier, moment, number, several, text
from schemas.exports import receipt


class ReceiptAttemptResponse(AttemptResultResponse):
    """One attempt as a receipt shows it; the audit log has its digest."""

    started_at = moment("When it began; in whole seconds, the timestamp that was signed.")
    address_class = text(
        "The class of the address that was dialed: `public`, or its kind, such as `address_private`.",
        nullable=True,
        example="public",
    )
    nonce = text("The nonce that was signed; null at trackers.", nullable=True, example="3f1a9c5be07d42688b6e0d4f7a21c953")
    signature = text("The values of the signature headers, separated by a space; null at trackers.", nullable=True)
    body_sha256 = text(
        "The SHA-256 of the bytes that were sent; at trackers, of the frozen bytes that the issue was made from.",
        nullable=True,
        pattern=SHA256,
    )
    response_sha256 = text("The SHA-256 of the response body, as far as it was read.", nullable=True, pattern=SHA256)


class ReceiptEntryResponse(ResponseSchema):
    """An entry of the audit log, with its place in the hash chain."""

    position = number("The position in the chain, from 1.")
    id = number("The entry's number.", example=4720)
    at = moment("When it was written.")
    actor = text("Who acted; null for a worker, whose name contains its host.", nullable=True, example="user:7")
    actor_sha256 = text("The SHA-256 of the actor.", pattern=SHA256)
    action = text("What was done.", example="approve")
    subject_id = identifier("exp", "The export.")
    status_before = text("The export's status before.", nullable=True, example="prepared")
    status_after = text("The export's status afterwards.", nullable=True, example="approved")
    reason = text("The reason.", nullable=True)
    digest = text(
        "The digest of the approved ticket, or of the attempt that ended; null for other entries.",
        nullable=True,
        pattern=DIGEST,
    )
    previous = text("The hash of the entry at the position before.", pattern=SHA256)
    hash = text(
        "The SHA-256 of this object as canonical JSON, without `actor` and `hash`: names sorted, no spaces, UTF-8.",
        pattern=SHA256,
    )


class DeliveryReceiptResponse(ResponseSchema):
    """The delivery receipt of an export; `riskrelay receipt verify` verifies it."""

    type = constant(receipt.TYPE, "What this is.")
    version = number("The version of this form.", example=receipt.VERSION)
    export_id = identifier("exp", "The export.")
    target_id = identifier("tgt", "The target; null after a redaction.", nullable=True)
    ticket_digest = text("The digest of the approved ticket.", pattern=DIGEST)
    approved_by = text("The actor who approved it, such as `user:7` or `rule:rul_…`.", nullable=True)
    approved_at = moment("When it was approved.", nullable=True)
    delivered_at = moment("When the delivery was recorded.")
    body = text("The frozen bytes, as text; null after a redaction.", nullable=True)
    body_sha256 = text("The SHA-256 of the frozen bytes; null after a redaction.", nullable=True, pattern=SHA256)
    attempts = several(fields.Nested(ReceiptAttemptResponse), "The attempts, the first one first.")
    audit_entries = several(
        fields.Nested(ReceiptEntryResponse), "The audit log's entries about the export, the oldest first."
    )
