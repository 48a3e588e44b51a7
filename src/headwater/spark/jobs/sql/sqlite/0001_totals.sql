-- The sums of totals jobs, version 1, for SQLite 3.35 or later. May be run again: what is there stays.
-- Statements are separated by empty lines.

-- One sum each: "per" is what it is of ("all", "window", or a name of the job's own, such as
-- "shop"), "name" whose it is (the shop's name; the beginning of the window, in UTC; '' for all).
-- SQLite would go on with a float where Postgres refuses: sums are exact or not at all.
CREATE TABLE IF NOT EXISTS headwater_totals (
    job     TEXT   NOT NULL,
    per     TEXT   NOT NULL,
    name    TEXT   NOT NULL,
    records BIGINT NOT NULL,
    total   BIGINT NOT NULL,
    PRIMARY KEY (job, per, name),
    CHECK (typeof(total) = 'integer')
);

-- One row for each job: the last batch that is in its sums, and how far they go, as JSON. Batch and
-- sums are of one transaction.
CREATE TABLE IF NOT EXISTS headwater_totals_jobs (
    job    TEXT   NOT NULL PRIMARY KEY,
    batch  BIGINT NOT NULL,
    extent TEXT   NOT NULL
);
