"""Every encrypted column, and the context to which a value is bound: `table|row|purpose`.

If a column were missing here, its values would keep their old key when keys are rotated. A test compares this list with the
tables.
"""

from dataclasses import dataclass
from typing import Any, Final

from peewee import BlobField, Field

from storage.db.models import (
    ComplianceRequestRow,
    ConsoleSessionRow,
    InstallationRow,
    IntegrationSecretRow,
    ReportUploadRow,
    SignInLinkRow,
    TargetRow,
)


@dataclass(frozen=True, slots=True, eq=False)
class EncryptedColumn:
    """A column whose values the vault encrypts, one per row."""

    field: "BlobField[Any]"
    purpose: str
    #: Whether a value may have megabytes. Such values are read one at a time.
    is_large: bool = False

    @property
    def table(self) -> str:
        """Return the name of the table."""
        return str(self.field.model._meta.table_name)

    @property
    def column(self) -> str:
        """Return the name of the column."""
        return str(self.field.column_name)

    @property
    def key(self) -> "Field[Any]":
        """Return the primary key of the table."""
        primary_key: Field[Any] = self.field.model._meta.primary_key
        return primary_key

    def context(self, row_id: str) -> str:
        """Return the context of a row's value; a value that is copied to another row or column cannot be decrypted."""
        return f"{self.table}|{row_id}|{self.purpose}"


TARGET_SECRET: Final = EncryptedColumn(TargetRow.secret_sealed, "signing secret")
TARGET_HEADERS: Final = EncryptedColumn(TargetRow.headers_sealed, "headers")
STANDARD_SECRET: Final = EncryptedColumn(TargetRow.standard_secret_sealed, "Standard Webhooks secret")
TARGET_CERTIFICATE: Final = EncryptedColumn(TargetRow.certificate_sealed, "client certificate")
SHARED_SECRET: Final = EncryptedColumn(IntegrationSecretRow.secret_sealed, "shared secret")
SUBJECT: Final = EncryptedColumn(ComplianceRequestRow.subject_sealed, "subject")
REPORT: Final = EncryptedColumn(ComplianceRequestRow.report_sealed, "report", is_large=True)
UPLOADED_REPORT: Final = EncryptedColumn(ReportUploadRow.content_sealed, "uploaded report", is_large=True)
ID_TOKEN: Final = EncryptedColumn(ConsoleSessionRow.id_token_sealed, "ID token")
LINK_MAIL: Final = EncryptedColumn(SignInLinkRow.mail_sealed, "mail")
CANARY: Final = EncryptedColumn(InstallationRow.key_canary, "canary")

#: All but the canary, which shows whether the keys open the other columns, and is encrypted again after them.
ENCRYPTED_COLUMNS: Final = (
    TARGET_SECRET,
    TARGET_HEADERS,
    STANDARD_SECRET,
    TARGET_CERTIFICATE,
    SHARED_SECRET,
    SUBJECT,
    REPORT,
    UPLOADED_REPORT,
    ID_TOKEN,
    LINK_MAIL,
)
