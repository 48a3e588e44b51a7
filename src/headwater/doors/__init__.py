"""What all doors are derived from: kinds of objects, and the operations that they declare."""
