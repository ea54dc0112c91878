"""Drafters of one's own: what is written for other engines to read."""
