-- The sums of totals jobs, version 1, for Postgres 14 or later. May be run again: what is there stays.
-- Statements are separated by empty lines.

-- One sum each: "per" is what it is of ("all", "window", or a name of the job's own, such as
-- "shop"), "name" whose it is (the shop's name; the beginning of the window, in UTC; '' for all).
CREATE TABLE IF NOT EXISTS headwater_totals (
    job     text   NOT NULL,
    per     text   NOT NULL,
    name    text   NOT NULL,
    records bigint NOT NULL,
    total   bigint NOT NULL,
    PRIMARY KEY (job, per, name)
);

-- One row for each job: the last batch that is in its sums, and how far they go, as JSON. Batch and
-- sums are of one transaction.
CREATE TABLE IF NOT EXISTS headwater_totals_jobs (
    job    text   NOT NULL PRIMARY KEY,
    batch  bigint NOT NULL,
    extent text   NOT NULL
);
