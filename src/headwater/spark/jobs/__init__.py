"""Jobs on Spark: each a function that takes a report of progress and returns a summary."""
