"""Commands that copy, restore, prune and encrypt the database."""
