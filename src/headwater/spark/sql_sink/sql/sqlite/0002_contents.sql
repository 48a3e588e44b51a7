-- What sinks of Spark have committed, for SQLite 3.35 or later: adds a table. May be run again: what is
-- there stays.

-- What an epoch of headwater_epochs held: digests, joined by dots. A repeat of an epoch has one of
-- them in common; other rows under its number are refused.
CREATE TABLE IF NOT EXISTS headwater_epoch_contents (
    target   TEXT   NOT NULL,
    producer TEXT   NOT NULL,
    sequence BIGINT NOT NULL,
    content  TEXT   NOT NULL,
    PRIMARY KEY (target, producer, sequence)
);
