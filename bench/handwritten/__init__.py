"""Hand-written versions of the product's hot routes: raw SQL in Falcon responders, with the same rows and durability."""
