-- Notes with a full-text search. Run by the owner of the database; safe to run again.
CREATE TABLE IF NOT EXISTS notes (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    written timestamptz NOT NULL DEFAULT now(),
    author  text NOT NULL CHECK (length(author) BETWEEN 1 AND 100),
    text    text NOT NULL CHECK (length(text) BETWEEN 1 AND 10000)
);
CREATE INDEX IF NOT EXISTS notes_words ON notes USING gin (to_tsvector('english', text));
