"""Checks: histories of what clients saw, and the rules that they must obey."""
