"""API resources of accounts and of the records that belong to them, such as users, tokens and projects."""
