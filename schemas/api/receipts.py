"""The delivery receipt of an export."""

from schemas.api import response_fields as field
from schemas.api.deliveries import AttemptResultResponse
from schemas.api.response_fields import DIGEST, SHA256, ResponseSchema
from schemas.exports import receipt


class ReceiptAttemptResponse(AttemptResultResponse):
    """One attempt as a receipt shows it; the audit log has its digest."""

    started_at = field.moment("When it began; in whole seconds, the timestamp that was signed.")
    address_class = field.text(
        "The class of the address that was dialed: `public`, or its kind, such as `address_private`.",
        nullable=True,
        example="public",
    )
    nonce = field.text(
        "The nonce that was signed; null at trackers.", nullable=True, example="3f1a9c5be07d42688b6e0d4f7a21c953"
    )
    signature = field.text("The values of the signature headers, separated by a space; null at trackers.", nullable=True)
    body_sha256 = field.text(
        "The SHA-256 of the bytes that were sent; at trackers, of the frozen bytes that the issue was made from.",
        nullable=True,
        pattern=SHA256,
    )
    response_sha256 = field.text("The SHA-256 of the response body, as far as it was read.", nullable=True, pattern=SHA256)


class ReceiptEntryResponse(ResponseSchema):
    """An entry of the audit log, with its place in the hash chain."""

    position = field.number("The position in the chain, from 1.")
    id = field.number("The entry's number.", example=4720)
    at = field.moment("When it was written.")
    actor = field.text("Who acted; null for a worker, whose name contains its host.", nullable=True, example="user:7")
    actor_sha256 = field.text("The SHA-256 of the actor.", pattern=SHA256)
    action = field.text("What was done.", example="approve")
    subject_id = field.identifier("exp", "The export.")
    status_before = field.text("The export's status before.", nullable=True, example="prepared")
    status_after = field.text("The export's status afterwards.", nullable=True, example="approved")
    reason = field.text("The reason.", nullable=True)
    digest = field.text(
        "The digest of the approved ticket, or of the attempt that ended; null for other entries.",
        nullable=True,
        pattern=DIGEST,
    )
    previous = field.text("The hash of the entry at the position before.", pattern=SHA256)
    hash = field.text(
        "The SHA-256 of this object as canonical JSON, without `actor` and `hash`: names sorted, no spaces, UTF-8.",
        pattern=SHA256,
    )


class DeliveryReceiptResponse(ResponseSchema):
    """The delivery receipt of an export; `riskrelay receipt verify` verifies it."""

    type = field.constant(receipt.TYPE, "What this is.")
    version = field.number("The version of this form.", example=receipt.VERSION)
    export_id = field.identifier("exp", "The export.")
    target_id = field.identifier("tgt", "The target; null after a redaction.", nullable=True)
    ticket_digest = field.text("The digest of the approved ticket.", pattern=DIGEST)
    approved_by = field.text("The actor who approved it, such as `user:7` or `rule:rul_…`.", nullable=True, example="user:7")
    approved_at = field.moment("When it was approved.", nullable=True)
    delivered_at = field.moment("When the delivery was recorded.")
    body = field.text("The frozen bytes, as text; null after a redaction.", nullable=True)
    body_sha256 = field.text("The SHA-256 of the frozen bytes; null after a redaction.", nullable=True, pattern=SHA256)
    attempts = field.several(ReceiptAttemptResponse, "The attempts, the first one first.")
    audit_entries = field.several(ReceiptEntryResponse, "The audit log's entries about the export, the oldest first.")
