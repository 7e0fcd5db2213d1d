"""Accounts, users, projects, grants, tokens and scan runs: the bodies of requests."""
