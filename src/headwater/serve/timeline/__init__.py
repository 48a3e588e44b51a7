"""Roshi's server: a farm of timelines over HTTP, by one process or several."""
