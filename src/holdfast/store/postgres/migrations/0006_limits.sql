-- What queues may do at once. A queue without limits and without groups has no row.
CREATE TABLE {schema}.limits (
    queue      text    COLLATE "C" NOT NULL PRIMARY KEY,
    settings   text    NOT NULL,                -- as JSON
    grouped    boolean NOT NULL DEFAULT false,  -- whether jobs of it have groups
    tokens     double precision NOT NULL DEFAULT 0,  -- what its rate allowed
    tokens_at  double precision NOT NULL DEFAULT 0,  -- at this time
    turn       text    NOT NULL DEFAULT '',     -- the group that was served last
    changed_at double precision,
    changed_by text,
    opens_at   double precision                 -- when its rate allows the next one
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE {schema}.jobs ADD COLUMN group_name text COLLATE "C" NOT NULL DEFAULT '';  -- empty: in none

-- The index of claims is made anew, with the group: so a group is found by steps, and jobs without one cost what they did.
DROP INDEX {schema}.jobs_claimable;
CREATE INDEX jobs_claimable ON {schema}.jobs (plugin, entry, queue, group_name, priority DESC, due_at, id) WHERE claimable;

-- What runs, to be counted.
CREATE INDEX jobs_running ON {schema}.jobs (queue, group_name) WHERE state = 'running';

-- Jobs started in the caller's own transaction can have a group, and come to the same door. Whoever calls as before does.
DROP FUNCTION {schema}.start_job(text, text, jsonb, text, integer, text, interval, interval, integer, text, jsonb);
DROP FUNCTION {schema}.insert_job(
    text, text, text, text, text, bigint, double precision, double precision, bigint, text, text
);

-- How many jobs of a queue are due and wait; not counted beyond `most`.
CREATE FUNCTION {schema}.waiting(queue text, most bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    WITH RECURSIVE pairs AS (
        (SELECT j.plugin, j.entry FROM {schema}.jobs j WHERE j.claimable ORDER BY j.plugin, j.entry LIMIT 1)
        UNION ALL
        SELECT n.plugin, n.entry FROM pairs p CROSS JOIN LATERAL (
            SELECT j.plugin, j.entry FROM {schema}.jobs j WHERE j.claimable
                AND (j.plugin, j.entry) > (p.plugin, p.entry) ORDER BY j.plugin, j.entry LIMIT 1
        ) n
    )
    SELECT count(*) FROM (
        SELECT 1 FROM pairs p CROSS JOIN LATERAL (
            SELECT 1 FROM {schema}.jobs j WHERE j.claimable AND j.plugin = p.plugin AND j.entry = p.entry
                AND j.queue = waiting.queue LIMIT waiting.most
        ) w LIMIT waiting.most
    ) counted
$$;

CREATE FUNCTION {schema}.insert_job(
    id text, plugin text, entry text, args text, queue text, priority bigint, delay double precision,
    deadline double precision, max_attempts bigint, key text, attributes text DEFAULT NULL,
    group_name text DEFAULT NULL
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
    door    record;
BEGIN
    payload := '{"args":' || insert_job.args
        || coalesce(',"attributes":' || insert_job.attributes, '')
        || coalesce(',"deadline":' || {schema}.canonical_double(ends), '')
        || coalesce(',"due_at":' || {schema}.canonical_double(due), '')
        || ',"entry":' || to_json(insert_job.entry)::text
        || ',"fingerprint":"' || print || '"'
        || coalesce(',"group":' || to_json(insert_job.group_name)::text, '')
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
        SELECT (l.settings::json ->> 'depth')::bigint AS depth, l.grouped INTO door
            FROM {schema}.limits l WHERE l.queue = insert_job.queue;
        IF door.depth IS NOT NULL AND {schema}.waiting(insert_job.queue, door.depth) >= door.depth THEN
            RETURN QUERY SELECT door.depth::text, 'full'::text;
            RETURN;
        ELSIF insert_job.group_name IS NOT NULL AND door.grouped IS NOT TRUE THEN
            INSERT INTO {schema}.limits AS l (queue, settings, grouped)
                VALUES (insert_job.queue, '{"queue":' || to_json(insert_job.queue)::text || '}', true)
                ON CONFLICT ON CONSTRAINT limits_pkey DO UPDATE SET grouped = true WHERE NOT l.grouped;
        END IF;
        INSERT INTO {schema}.jobs (
            id, plugin, entry, queue, priority, created_at, deadline, max_attempts, idempotency_key, fingerprint,
            facts, group_name, version, head, state, attempt, attempts, run, started, due_at, updated_at, pause, claimable, ends_at
        ) VALUES (
            insert_job.id, insert_job.plugin, insert_job.entry, insert_job.queue, insert_job.priority, now_at, ends,
            insert_job.max_attempts, insert_job.key, print,
            '{"attributes":' || insert_job.attributes || '}', coalesce(insert_job.group_name, ''), 1, encode(hashed, 'hex'), 'queued',
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
    attributes jsonb DEFAULT NULL,
    group_name text DEFAULT NULL
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
        OR group_name = '' OR length(group_name) > 255
        OR greatest(length(plugin), length(entry), length(queue), length(key)) > 1000 OR length(id) > 255 THEN
        RAISE EXCEPTION 'plugin, entry, queue and key are text of 1 to 1000 characters, an id or a group of 1 to 255'
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
        {schema}.canonical(nullif(attributes, '{}')), group_name
    );
    IF made.outcome = 'full' THEN
        RAISE EXCEPTION 'the queue % holds % jobs that wait, and takes no more', quote_literal(queue), made.job
            USING ERRCODE = 'configuration_limit_exceeded', HINT = 'try again later, or raise its depth';
    END IF;
    IF made.outcome = 'conflict' THEN
        RAISE EXCEPTION 'the key % belongs to job %, which was started with something else',
            quote_literal(coalesce(key, start_job.id)), made.job USING ERRCODE = 'unique_violation',
            HINT = 'use another key, or the same arguments';
    END IF;
    RETURN made.job;
END
$$;
