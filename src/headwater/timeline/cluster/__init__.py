"""One copy of all timelines, spread over the instances of a pool."""
