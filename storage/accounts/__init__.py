"""Accounts, users, projects, grants, tokens, sessions and the audit log."""
