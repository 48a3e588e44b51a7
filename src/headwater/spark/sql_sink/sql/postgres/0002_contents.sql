-- What sinks of Spark have committed, for Postgres 14 or later: adds a table. May be run again: what is
-- there stays.

-- What an epoch of headwater_epochs held: digests, joined by dots. A repeat of an epoch has one of
-- them in common; other rows under its number are refused.
CREATE TABLE IF NOT EXISTS headwater_epoch_contents (
    target   text   NOT NULL,
    producer text   NOT NULL,
    sequence bigint NOT NULL,
    content  text   NOT NULL,
    PRIMARY KEY (target, producer, sequence)
);
