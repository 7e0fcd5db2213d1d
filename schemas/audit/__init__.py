"""The hash chain of the audit log."""
