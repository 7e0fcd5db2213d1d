"""Commands that copy, restore, prune and encrypt what is stored."""
