"""``format("headwater_timeline")``: all timelines of a farm as rows, and rows as operations."""
