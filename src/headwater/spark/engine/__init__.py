"""Spark itself: a ready session, the Java it runs on, what it must learn, its Python processes."""
