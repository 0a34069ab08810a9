-- The newest run of a job is part of its row: its course follows the stream, and is written with it. Each row that was
-- there before is made anew from its stream when this has been applied.
ALTER TABLE {schema}.jobs
    ADD COLUMN facts    text,  -- trace id and attributes, if there are any
    ADD COLUMN course   text NOT NULL DEFAULT '{}',
    ADD COLUMN exported bigint NOT NULL DEFAULT 0,
    ADD COLUMN status   text NOT NULL DEFAULT 'queued'  -- as in `course`; for its index
        CHECK (status IN ('queued', 'running', 'cancel_requested', 'succeeded', 'failed', 'canceled', 'timeout'));

DROP INDEX {schema}.jobs_state;
-- In two parts, so that nobody who looks for a name is led through the statuses to it.
CREATE INDEX jobs_open ON {schema}.jobs (status, id) WHERE status IN ('queued', 'running', 'cancel_requested');
CREATE INDEX jobs_ended ON {schema}.jobs (status, id) WHERE status IN ('succeeded', 'failed', 'canceled', 'timeout');

-- A process of an older release, which is still at work, knows nothing of the course: what it leaves behind is seen to be
-- out of date, and is made anew from the stream by whoever reads it.
CREATE FUNCTION {schema}.outdate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.course := '';
    NEW.status := CASE NEW.state WHEN 'completed' THEN 'succeeded' WHEN 'failed' THEN 'failed'
        WHEN 'cancelled' THEN 'canceled' ELSE CASE WHEN NEW.started THEN 'running' ELSE 'queued' END END;
    RETURN NEW;
END
$$;
CREATE TRIGGER jobs_outdated BEFORE UPDATE OF state ON {schema}.jobs FOR EACH ROW
    WHEN (NEW.state <> OLD.state AND NEW.course = OLD.course AND NEW.status = OLD.status)
    EXECUTE FUNCTION {schema}.outdate();

-- Runs that have ended and were followed by another on the same job.
CREATE TABLE {schema}.past_runs (
    job    text   COLLATE "C" NOT NULL,
    run    bigint NOT NULL,
    status text   NOT NULL,
    record text   NOT NULL,
    PRIMARY KEY (job, run)
);

-- What a run has last reported of itself: no event, the latest wins.
CREATE TABLE {schema}.progress (
    job  text   COLLATE "C" NOT NULL,
    run  bigint NOT NULL,
    said text   NOT NULL,
    at   double precision NOT NULL,
    PRIMARY KEY (job, run)
) WITH (fillfactor = 60);

-- What jobs are to be found by; values as JSON.
CREATE TABLE {schema}.attributes (
    name  text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    job   text COLLATE "C" NOT NULL,
    PRIMARY KEY (name, value, job)
);

CREATE INDEX attributes_job ON {schema}.attributes (job);

-- What runs have produced: small things as JSON, larger ones as blobs, in pieces.
CREATE TABLE {schema}.exports (
    job        text   COLLATE "C" NOT NULL,
    run        bigint NOT NULL,
    number     bigint NOT NULL,
    key        text   COLLATE "C" NOT NULL,  -- name and content: a repeat is no second export
    name       text   NOT NULL,
    kind       text   NOT NULL CHECK (kind IN ('text', 'json', 'url', 'binary')),
    media_type text   NOT NULL,
    size       bigint NOT NULL,
    value      text,
    blob       text,
    at         double precision NOT NULL,
    PRIMARY KEY (job, run, number),
    UNIQUE (job, run, key)
);

CREATE TABLE {schema}.blobs (
    job     text   COLLATE "C" NOT NULL,
    blob    text   COLLATE "C" NOT NULL,
    number  bigint NOT NULL,
    content bytea  NOT NULL,
    PRIMARY KEY (job, blob, number)
);

-- Jobs started in the caller's own transaction can have attributes, too. Whoever calls as before still does.
DROP FUNCTION {schema}.start_job(text, text, jsonb, text, integer, text, interval, interval, integer, text);
DROP FUNCTION {schema}.insert_job(
    text, text, text, text, text, bigint, double precision, double precision, bigint, text
);

CREATE FUNCTION {schema}.insert_job(
    id text, plugin text, entry text, args text, queue text, priority bigint, delay double precision,
    deadline double precision, max_attempts bigint, key text, attributes text DEFAULT NULL
) RETURNS TABLE (job text, outcome text) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_at  double precision := {schema}.clock();
    ends    double precision := now_at + nullif(insert_job.deadline, 0);
    due     double precision := now_at + nullif(insert_job.delay, 0);
    print   text := left(encode(sha256(convert_to(insert_job.args, 'UTF8')), 'hex'), 32);
    none    text := repeat('0', 64);
    payload text;
    hashed  bytea;
    other   record;
BEGIN
    payload := '{"args":' || insert_job.args
        || coalesce(',"attributes":' || insert_job.attributes, '')
        || coalesce(',"deadline":' || {schema}.canonical_double(ends), '')
        || coalesce(',"due_at":' || {schema}.canonical_double(due), '')
        || ',"entry":' || to_json(insert_job.entry)::text
        || ',"fingerprint":"' || print || '"'
        || coalesce(',"idempotency_key":' || to_json(insert_job.key)::text, '')
        || ',"max_attempts":' || insert_job.max_attempts
        || ',"plugin":' || to_json(insert_job.plugin)::text
        || ',"priority":' || insert_job.priority
        || ',"queue":' || to_json(insert_job.queue)::text || '}';
    hashed := sha256(convert_to(
        '[1,' || to_json(insert_job.id)::text || ',1,' || to_json(insert_job.id || ':1')::text || ',"job_created",null,'
        || {schema}.canonical_double(now_at) || ',' || payload || ',"' || none || '"]', 'UTF8'
    ));
    LOOP
        SELECT j.id, (j.plugin, j.entry, j.fingerprint) = (insert_job.plugin, insert_job.entry, print) AS same
            INTO other FROM {schema}.jobs j
            WHERE j.id = insert_job.id OR (insert_job.key IS NOT NULL AND j.plugin = insert_job.plugin
                AND j.entry = insert_job.entry AND j.idempotency_key = insert_job.key)
            ORDER BY j.id = insert_job.id DESC LIMIT 1;
        IF FOUND THEN
            RETURN QUERY SELECT other.id, CASE WHEN other.same THEN 'existing' ELSE 'conflict' END;
            RETURN;
        END IF;
        INSERT INTO {schema}.jobs (
            id, plugin, entry, queue, priority, created_at, deadline, max_attempts, idempotency_key, fingerprint,
            facts, version, head, state, attempt, attempts, run, started, due_at, updated_at, pause, claimable, ends_at
        ) VALUES (
            insert_job.id, insert_job.plugin, insert_job.entry, insert_job.queue, insert_job.priority, now_at, ends,
            insert_job.max_attempts, insert_job.key, print,
            '{"attributes":' || insert_job.attributes || '}', 1, encode(hashed, 'hex'), 'queued',
            0, 0, 1, false, coalesce(due, now_at), now_at, false, due IS NULL, ends
        ) ON CONFLICT DO NOTHING;  -- waits for whoever is creating the same; then it is there to be found, or is not
        EXIT WHEN FOUND;
    END LOOP;
    INSERT INTO {schema}.events (job, seq, type, payload, attempt, at, schema, prev, hash)
        VALUES (insert_job.id, 1, 'job_created', payload::json, NULL, now_at, 1, decode(none, 'hex'), hashed);
    INSERT INTO {schema}.attributes (name, value, job)
        SELECT a.key, {schema}.canonical(a.value), insert_job.id FROM jsonb_each(insert_job.attributes::jsonb) AS a;
    PERFORM pg_notify('holdfast_{schema}', '3:');  -- told with the commit: an event, and work
    RETURN QUERY SELECT insert_job.id, 'created'::text;
END
$$;

CREATE FUNCTION {schema}.start_job(
    plugin text,
    entry text,
    args jsonb DEFAULT '{}',
    queue text DEFAULT 'default',
    priority integer DEFAULT 0,
    key text DEFAULT NULL,
    delay interval DEFAULT NULL,
    deadline interval DEFAULT NULL,
    max_attempts integer DEFAULT 5,
    id text DEFAULT NULL,
    attributes jsonb DEFAULT NULL
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    written text := {schema}.canonical(args);
    made    record;
BEGIN
    IF jsonb_typeof(args) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'the arguments of a job are an object: names and values' USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(convert_to(written, 'UTF8')) > 8388608 THEN
        RAISE EXCEPTION 'the arguments have more than 8388608 bytes' USING ERRCODE = 'program_limit_exceeded';
    ELSIF coalesce(plugin, '') = '' OR coalesce(entry, '') = '' OR coalesce(queue, '') = '' OR key = '' OR id = ''
        OR greatest(length(plugin), length(entry), length(queue), length(key)) > 1000 OR length(id) > 255 THEN
        RAISE EXCEPTION 'plugin, entry, queue and key are text of 1 to 1000 characters, an id of 1 to 255'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF jsonb_typeof(attributes) <> 'object' OR EXISTS (
        SELECT 1 FROM jsonb_each(CASE jsonb_typeof(attributes) WHEN 'object' THEN attributes ELSE '{}' END) AS a
        WHERE jsonb_typeof(a.value) NOT IN ('string', 'number', 'boolean') OR length(a.value::text) > 257
            OR length(a.key) NOT BETWEEN 1 AND 1000
    ) THEN
        RAISE EXCEPTION 'attributes are an object of names with text of at most 255 characters, numbers or flags'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF priority IS NULL OR coalesce(max_attempts, 0) < 1 OR delay < interval '0' OR deadline < interval '0' THEN
        RAISE EXCEPTION 'priority is a whole number, max_attempts at least 1, delay and deadline are not negative'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO made FROM {schema}.insert_job(
        coalesce(start_job.id, {schema}.new_id()), plugin, entry, written, queue, priority,
        extract(epoch FROM delay)::double precision, extract(epoch FROM deadline)::double precision, max_attempts, key,
        {schema}.canonical(nullif(attributes, '{}'))
    );
    IF made.outcome = 'conflict' THEN
        RAISE EXCEPTION 'the key % belongs to job %, which was started with something else',
            quote_literal(coalesce(key, start_job.id)), made.job USING ERRCODE = 'unique_violation',
            HINT = 'use another key, or the same arguments';
    END IF;
    RETURN made.job;
END
$$;
