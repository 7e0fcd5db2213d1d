"""Decisions of people on exports: edit, dismiss, restore, snooze, split, retarget, many at once."""
