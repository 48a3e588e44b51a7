"""Dirty lists: Ick, which redis-ick shares, and IckChannel, for any number of consumers."""
