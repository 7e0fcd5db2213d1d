"""Commands that copy, restore and prune the database, and encrypt its secrets with a new key."""
