"""The lowest layer of a farm: which instance has a key, and how to reach it without waiting."""
