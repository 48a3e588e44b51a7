-- The outbox, version 1, for Postgres 14 or later. May be run again: what is there stays.
-- Statements are separated by empty lines.

-- What transactions staged and the log does not hold yet. Ids say in which order one transaction
-- staged its rows, and nothing else: a later commit may bring a lower id.
CREATE TABLE IF NOT EXISTS headwater_outbox (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream    text   NOT NULL,
    tag       text   NOT NULL,
    value     bytea  NOT NULL,
    staged_ms bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
);

-- One row: the batch that is on its way to the log. Its rows are named in "claimed" as in
-- '1-1000,1007'; nothing is on its way when it is empty. (producer, batch) is what the log
-- recognises a repeat by.
CREATE TABLE IF NOT EXISTS headwater_streamer (
    name       text   PRIMARY KEY,
    producer   text   NOT NULL,
    batch      bigint NOT NULL,
    claimed    text   NOT NULL,
    claimed_ms bigint NOT NULL
);

INSERT INTO headwater_streamer (name, producer, batch, claimed, claimed_ms)
VALUES ('outbox', '', 0, '', 0)
ON CONFLICT (name) DO NOTHING;

-- How far each consumer is: the next offset it will handle, moved in the transaction that holds
-- the effects of what came before.
CREATE TABLE IF NOT EXISTS headwater_checkpoints (
    consumer    text   NOT NULL,
    stream      text   NOT NULL,
    next_offset bigint NOT NULL,
    updated_ms  bigint NOT NULL,
    PRIMARY KEY (consumer, stream)
);

-- A commit that staged something wakes the streamer; whoever stages need not think of it.
CREATE OR REPLACE FUNCTION headwater_outbox_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('headwater_outbox', '');
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER headwater_outbox_wake AFTER INSERT ON headwater_outbox
FOR EACH STATEMENT EXECUTE FUNCTION headwater_outbox_wake();
