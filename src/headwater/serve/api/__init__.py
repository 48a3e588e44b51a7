"""The HTTP API: every object of a store by routes with typed requests and answers."""
