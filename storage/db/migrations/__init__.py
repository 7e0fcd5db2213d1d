"""Numbered migrations, run in order by `storage.db.schema_version`; a released file is never changed."""
