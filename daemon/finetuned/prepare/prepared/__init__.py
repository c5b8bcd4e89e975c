"""Prepared rows in the store: counted, split, mixed, written once, and found again by all that shapes them."""
