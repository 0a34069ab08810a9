-- Jobs started in the caller's own transaction, from any language:
--
--     SELECT holdfast.start_job('shop', 'checkout', '{"sku": "A1"}'::jsonb, key => 'order-7', delay => interval '1 hour');
--
-- What is hashed is canonical JSON: keys by code point, no white space, floats with the fewest digits. These functions
-- write it as the Python client does, byte for byte, or refuse. They only add; nothing that was there has changed.

CREATE FUNCTION {schema}.new_id() RETURNS text LANGUAGE sql VOLATILE AS $$
    -- UUIDv7, ordered as the Python client's: 48 bits of milliseconds, 12 of a fraction, then random.
    SELECT substr(t, 1, 8) || '-' || substr(t, 9, 4) || '-7' || substr(t, 13, 3) || '-' || substr(r, 20, 17)
    FROM (
        SELECT lpad(to_hex((extract(epoch FROM clock_timestamp())::numeric * 4096000)::bigint), 15, '0') AS t,
            gen_random_uuid()::text AS r
    ) AS made
$$;

-- A float with the fewest digits that read back the same: written out from 1e-5, else 1e-6. From 1e16 on PostgreSQL's
-- digits are not always the fewest (1e23): refused. A time is never so large, and a number of JSON is whole then.
CREATE FUNCTION {schema}.canonical_double(value double precision) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET extra_float_digits = 1 AS $$
DECLARE
    sign     text := CASE WHEN value::text LIKE '-%' THEN '-' ELSE '' END;
    shown    text := ltrim(value::text, '-');
    mantissa text := split_part(shown, 'e', 1);
    digits   text := replace(mantissa, '.', '');
    point    integer;  -- the value is 0.digits times ten to this
BEGIN
    IF NOT abs(value) < 1e16 THEN
        RAISE EXCEPTION 'the number % would not be kept exactly', shown USING
            ERRCODE = 'numeric_value_out_of_range', HINT = 'pass it as text, or start the job with the Python client';
    END IF;
    point := length(split_part(mantissa, '.', 1)) + coalesce(nullif(split_part(shown, 'e', 2), ''), '0')::integer;
    point := point - (length(digits) - length(ltrim(digits, '0')));
    digits := trim(digits, '0');
    IF digits = '' THEN
        RETURN sign || '0.0';
    ELSIF point < -4 THEN
        RETURN sign || left(digits, 1) || CASE WHEN length(digits) > 1 THEN '.' || substr(digits, 2) ELSE '' END
            || 'e' || (point - 1);
    ELSIF point <= 0 THEN
        RETURN sign || '0.' || repeat('0', -point) || digits;
    ELSIF point >= length(digits) THEN
        RETURN sign || digits || repeat('0', point - length(digits)) || '.0';
    END IF;
    RETURN sign || left(digits, point) || '.' || substr(digits, point + 1);
END
$$;

-- A number: whole ones as they are; others as floats, if a float holds them exactly as they are written.
CREATE FUNCTION {schema}.canonical_number(value numeric) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    shown text;
BEGIN
    IF abs(value) < 1e308 AND scale(value) = 0 THEN
        RETURN value::text;
    ELSIF abs(value) < 1e16 AND (abs(value) > 1e-300 OR value = 0) THEN
        shown := {schema}.canonical_double(value::double precision);
        IF shown::numeric = value THEN
            RETURN shown;
        END IF;
    END IF;
    RAISE EXCEPTION 'the number % would not be kept exactly', left(value::text, 60) USING
        ERRCODE = 'numeric_value_out_of_range', HINT = 'pass it as text, or start the job with the Python client';
END
$$;

CREATE FUNCTION {schema}.canonical(value jsonb, depth integer DEFAULT 0) RETURNS text
LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
    IF depth > 60 THEN
        RAISE EXCEPTION 'the arguments nest deeper than 60 levels' USING ERRCODE = 'program_limit_exceeded';
    END IF;
    CASE jsonb_typeof(value)
        WHEN 'object' THEN
            RETURN (
                SELECT '{' || coalesce(string_agg(
                    to_json(e.key)::text || ':' || {schema}.canonical(e.value, depth + 1), ','
                    ORDER BY convert_to(e.key, 'UTF8')  -- by code point, whatever the database's own order is
                ), '') || '}' FROM jsonb_each(canonical.value) AS e
            );
        WHEN 'array' THEN
            RETURN (
                SELECT '[' || coalesce(string_agg({schema}.canonical(e.value, depth + 1), ',' ORDER BY e.place), '')
                    || ']' FROM jsonb_array_elements(canonical.value) WITH ORDINALITY AS e(value, place)
            );
        WHEN 'number' THEN
            RETURN {schema}.canonical_number(value::numeric);
        ELSE
            RETURN value::text;  -- text with the escapes that JSON demands, true, false, null
    END CASE;
END
$$;

-- Creates a job: its row and job_created, as the store does. `args` is canonical already; `delay` and `deadline` are
-- seconds from now. The outcome is created; or existing, for a key or an id that was used with the same arguments; or
-- conflict, for one that was used with others: then nothing was written, and `job` names the one that has it.
CREATE FUNCTION {schema}.insert_job(
    id text, plugin text, entry text, args text, queue text, priority bigint, delay double precision,
    deadline double precision, max_attempts bigint, key text
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
            version, head, state, attempt, attempts, run, started, due_at, updated_at, pause, claimable, ends_at
        ) VALUES (
            insert_job.id, insert_job.plugin, insert_job.entry, insert_job.queue, insert_job.priority, now_at, ends,
            insert_job.max_attempts, insert_job.key, print, 1, encode(hashed, 'hex'), 'queued', 0, 0, 1, false,
            coalesce(due, now_at), now_at, false, due IS NULL, ends
        ) ON CONFLICT DO NOTHING;  -- waits for whoever is creating the same; then it is there to be found, or is not
        EXIT WHEN FOUND;
    END LOOP;
    INSERT INTO {schema}.events (job, seq, type, payload, attempt, at, schema, prev, hash)
        VALUES (insert_job.id, 1, 'job_created', payload::json, NULL, now_at, 1, decode(none, 'hex'), hashed);
    PERFORM pg_notify('holdfast_{schema}', '3:');  -- told with the commit: an event, and work
    RETURN QUERY SELECT insert_job.id, 'created'::text;
END
$$;

-- Starts a job and gives its id; with a key that was used before for the same arguments, the id of that one.
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
    id text DEFAULT NULL
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
    ELSIF priority IS NULL OR coalesce(max_attempts, 0) < 1 OR delay < interval '0' OR deadline < interval '0' THEN
        RAISE EXCEPTION 'priority is a whole number, max_attempts at least 1, delay and deadline are not negative'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO made FROM {schema}.insert_job(
        coalesce(start_job.id, {schema}.new_id()), plugin, entry, written, queue, priority,
        extract(epoch FROM delay)::double precision, extract(epoch FROM deadline)::double precision, max_attempts, key
    );
    IF made.outcome = 'conflict' THEN
        RAISE EXCEPTION 'the key % belongs to job %, which was started with something else',
            quote_literal(coalesce(key, start_job.id)), made.job USING ERRCODE = 'unique_violation',
            HINT = 'use another key, or the same arguments';
    END IF;
    RETURN made.job;
END
$$;
