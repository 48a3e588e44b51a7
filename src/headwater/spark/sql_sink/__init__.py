"""``format("headwater_sql")``: rows into a table of SQLite or Postgres, in effect exactly once.

Tasks ingest their rows into tables of their own beside the target. The driver's commit is one
transaction: it brings them into the target, notes the epoch and drops the tables of the tasks. An
epoch that is noted is not applied again, whoever died in between.
"""
