"""The hand-written counterpart of the hot routes: raw SQL in Falcon responders, with the same rows and durability."""
