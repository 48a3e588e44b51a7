"""HTTP/1.1 for all servers: requests out of bytes, replies into bytes, and connections."""
