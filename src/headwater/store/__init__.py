"""The store: from a URL to a connection that runs operations, and the embedded server."""
