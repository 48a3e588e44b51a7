"""``format("headwater_ick")``: a dirty list to look at, and to add to, from Spark."""
