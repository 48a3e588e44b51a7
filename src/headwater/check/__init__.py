"""Proof: histories of what clients saw, and the rules they must obey."""
