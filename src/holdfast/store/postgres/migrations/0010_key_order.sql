-- Arguments and attributes are stored with their keys in the order given, and hashed with their keys sorted. A caller
-- that gives the sorted form alone (start_job, whose jsonb has no order, or an older release) has that stored.
DROP FUNCTION {schema}.insert_job(
    text, text, text, text, text, bigint, double precision, double precision, bigint, text, text, text, text
);

CREATE FUNCTION {schema}.insert_job(
    id text, plugin text, entry text, args text, queue text, priority bigint, delay double precision,
    deadline double precision, max_attempts bigint, key text, attributes text DEFAULT NULL,
    group_name text DEFAULT NULL, budget text DEFAULT NULL, given_args text DEFAULT NULL,
    given_attributes text DEFAULT NULL
) RETURNS TABLE (job text, outcome text) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_at  double precision := {schema}.clock();
    ends    double precision := now_at + nullif(insert_job.deadline, 0);
    due     double precision := now_at + nullif(insert_job.delay, 0);
    print   text := left(encode(sha256(convert_to(insert_job.args, 'UTF8')), 'hex'), 32);
    none    text := repeat('0', 64);
    stored_args       text := coalesce(insert_job.given_args, insert_job.args);
    stored_attributes text := coalesce(insert_job.given_attributes, insert_job.attributes);
    facts   text;
    payload text;
    hashed  bytea;
    other   record;
    door    record;
BEGIN
    facts := coalesce(',"budget":' || insert_job.budget, '')
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
    payload := '{"args":' || insert_job.args || coalesce(',"attributes":' || insert_job.attributes, '') || facts;
    hashed := sha256(convert_to(
        '[1,' || to_json(insert_job.id)::text || ',1,' || to_json(insert_job.id || ':1')::text || ',"job_created",null,'
        || {schema}.canonical_double(now_at) || ',' || payload || ',"' || none || '"]', 'UTF8'
    ));
    payload := '{"args":' || stored_args || coalesce(',"attributes":' || stored_attributes, '') || facts;
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
            '{"attributes":' || stored_attributes || '}', coalesce(insert_job.group_name, ''), 1, encode(hashed, 'hex'), 'queued',
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
