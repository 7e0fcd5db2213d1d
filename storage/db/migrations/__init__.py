"""Numbered migrations, run in order by `storage.db.schema_version`; the statements of a released migration never change."""
