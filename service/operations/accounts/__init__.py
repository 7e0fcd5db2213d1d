"""Use cases of accounts: the accounts themselves, their users, projects, tokens and sessions, and who may do what."""
