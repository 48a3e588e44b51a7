"""What the console can change, by object."""
