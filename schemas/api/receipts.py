"""The delivery receipt of an export."""

from schemas.api import response_fields as field
from schemas.api.deliveries import AttemptResultResponse
from schemas.api.response_fields import DIGEST, SHA256, ResponseSchema
from schemas.exports import receipt


class ReceiptAttemptResponse(AttemptResultResponse):
    """One attempt as a receipt shows it; the audit log has its digest."""

    started_at = field.moment("The time at which the attempt began; its whole seconds are the signed timestamp.")
    address_class = field.text(
        "The class of the address that RiskRelay connected to: `public`, or a class such as `address_private`.",
        nullable=True,
        example="public",
    )
    nonce = field.text("The signed nonce", null="for trackers", example="3f1a9c5be07d42688b6e0d4f7a21c953")
    signature = field.text("The values of the signature headers, separated by a space", null="for trackers")
    body_sha256 = field.text(
        "The SHA-256 of the sent bytes; for trackers, of the frozen bytes that the issue was made from.",
        nullable=True,
        pattern=SHA256,
    )
    response_sha256 = field.text(
        "The SHA-256 of the part of the response body that was read.", nullable=True, pattern=SHA256
    )


class ReceiptEntryResponse(ResponseSchema):
    """An entry of the audit log, with its place in the hash chain."""

    position = field.number("The position in the hash chain, from 1.")
    id = field.number("The id of the entry.", example=4720)
    at = field.moment("The time at which the entry was written.")
    actor = field.text("The actor", null="for a worker, because its name contains its host", example="user:7")
    actor_sha256 = field.text("The SHA-256 of the actor.", pattern=SHA256)
    action = field.text("The action.", example="approve")
    subject_id = field.identifier("exp", "The id of the export.")
    status_before = field.text("The status of the export before the action.", nullable=True, example="prepared")
    status_after = field.text("The status of the export after the action.", nullable=True, example="approved")
    reason = field.text("The reason", null="if there is none")
    digest = field.text(
        "The digest of the approved ticket, or of the attempt that ended", null="for other entries", pattern=DIGEST
    )
    previous = field.text("The `hash` of the previous entry in the chain.", pattern=SHA256)
    hash = field.text(
        "The SHA-256 of this object without `actor` and `hash`, as canonical JSON: sorted names, no spaces, UTF-8.",
        pattern=SHA256,
    )


class DeliveryReceiptResponse(ResponseSchema):
    """The delivery receipt of an export; `riskrelay receipt verify` verifies it."""

    type = field.constant(receipt.TYPE, "The type of the document.")
    version = field.number("The version of the receipt format.", example=receipt.VERSION)
    export_id = field.identifier("exp", "The id of the export.")
    target_id = field.identifier("tgt", "The id of the target", null="after a redaction")
    ticket_digest = field.text("The digest of the approved ticket.", pattern=DIGEST)
    approved_by = field.text(
        "The actor who approved the export, such as `user:7` or `rule:rul_…`.", nullable=True, example="user:7"
    )
    approved_at = field.moment("The time at which the export was approved.", nullable=True)
    delivered_at = field.moment("The time at which the delivery was recorded.")
    body = field.text("The frozen body of the delivery, as text", null="after a redaction")
    body_sha256 = field.text("The SHA-256 of the frozen body", null="after a redaction", pattern=SHA256)
    attempts = field.several(ReceiptAttemptResponse, "The attempts, oldest first.")
    audit_entries = field.several(ReceiptEntryResponse, "The entries of the audit log about the export, oldest first.")
