"""Numbered migrations, run in order on both databases by `storage.schema`; a file that was released is never changed."""
