"""``format("headwater_table")``: a table or a query of SQLite or Postgres as Arrow, by ADBC."""
