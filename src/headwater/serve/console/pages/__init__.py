"""What the console shows, by object."""
