"""Use cases of accounts and of the records that belong to them: users, projects, tokens and sessions."""
