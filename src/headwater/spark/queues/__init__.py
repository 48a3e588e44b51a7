"""``format("headwater_queue")``: a queue to look at, and to push to, from Spark."""
