"""Copies of all timelines on several clusters: quorum writes, read strategies, repairs."""
