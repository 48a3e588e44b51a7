"""Jobs of a server: long work that a request begins, and that outlives its process."""
