"""Spark itself: sessions, Java, the optimizer, its processes; and what all formats share."""
