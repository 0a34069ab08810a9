"""The SQL statements of the PostgreSQL store, for one schema."""

from __future__ import annotations

import zlib

from holdfast.store.sql.columns import JOB_CHANGING, JOB_COLUMNS, JOB_WRITTEN, LIMIT_COLUMNS, LIMIT_WRITTEN
from holdfast.store.sql.event_rows import EVENT_READ, HISTORY_READ
from holdfast.store.sql.run_sql import OF_A_JOB, ReadSql

TIME_OFF_MAX = 0.1  # seconds that the estimated time of an optimistic batch may be behind the server's
# The same for a batch with new jobs. By so much a job may seem older than one that another process has started before
# it, and be claimed before it.
NEW_JOB_OFF_MAX = 0.005
PROMOTED_MAX = 1000  # delayed jobs that one claim finds due; more than that are found by the next

_JOB_TYPES = {
    **dict.fromkeys(("priority", "max_attempts", "version", "attempt", "attempts", "run", "exported"), "bigint"),
    **dict.fromkeys(("started", "pause", "claimable"), "boolean"),
    **dict.fromkeys(
        ("created_at", "deadline", "due_at", "updated_at", "lease_until", "ends_at", "wake_at"), "double precision"
    ),
}
_DEPTH = "settings::json ->> 'depth'"
_EVENT_LISTS = ("jobs", "seqs", "types", "payloads", "attempts", "hashes")


def _number(name: str) -> int:
    """Return a four-byte lock number; a second number names the queue. So it differs from every worker's lock."""
    return zlib.crc32(f"holdfast:{name}".encode()) - 2**31


class Statements:
    """The statements for one schema. The caller has quoted its name."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._reading(schema)
        self._writing(schema)
        self._finding(schema)
        self._producing(schema)
        self._scheduling(schema)  # before `has_work`, which includes it
        self._workers(schema)
        self._locking(schema)
        self._limiting(schema)

    def _reading(self, schema: str) -> None:
        self.reads = ReadSql(
            "%s",
            # LIMIT: a step into the index for each of these jobs, and never a look at all signals.
            requests_for=f"SELECT id, cancel IS NOT NULL, pause, came IS NOT NULL FROM {schema}.jobs j"
            f" LEFT JOIN LATERAL (SELECT 1 AS came FROM {schema}.signals s WHERE s.job = j.id AND NOT s.used LIMIT 1) x"
            " ON true WHERE state = 'running' AND lease_worker = %s"
            " AND (cancel IS NOT NULL OR pause OR came IS NOT NULL)",
            unused=f"{schema}.signals WHERE NOT used",
            past_end="(r.record::json ->> 'finished_at')::float8",
            started="CASE WHEN course = '' THEN NULL ELSE (course::json ->> 'started_at')::float8 END",
            build="CASE WHEN course = '' THEN NULL ELSE course::json ->> 'build' END",
            started_run="e.payload ->> 'job'",
            whole="floor({})::bigint",
            as_text="::text",
            schema=f"{schema}.",
        )
        self.limit_transaction = (
            "SELECT set_config('idle_in_transaction_session_timeout', %(milliseconds)s, true),"
            " set_config('statement_timeout', %(milliseconds)s, true)"
        )
        # All statements of a writer find few rows by an index. A plan that is made once, while the tables are small,
        # must not read them whole when they are large.
        plans = "('plan_cache_mode', 'force_generic_plan'), ('jit', 'off'), ('enable_seqscan', 'off'),"
        plans += " ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off')"
        self.set_up_session = (
            "SELECT set_config(name, value, false) FROM (VALUES ('idle_in_transaction_session_timeout',"
            f" %(milliseconds)s), ('statement_timeout', %(milliseconds)s), {plans}) AS x (name, value)"
        )
        self.clock = f"SELECT {schema}.clock()"
        self.lock_rows = f"SELECT {JOB_COLUMNS} FROM {schema}.jobs WHERE id = ANY(%s) ORDER BY id FOR UPDATE"
        self.read_rows = f"SELECT {JOB_COLUMNS} FROM {schema}.jobs WHERE id = ANY(%s)"
        # The last row has the time after all locks, because a row is locked before its columns are computed.
        self.lock_names = (
            f"SELECT x.*, {schema}.clock(), pg_current_xact_id()::xid::text FROM"
            f" (SELECT id, xmin::text, head FROM {schema}.jobs WHERE id = ANY(%s) ORDER BY id FOR UPDATE) x"
        )
        self.writer = "SELECT pg_current_xact_id_if_assigned()::xid::text"
        self.histories = f"SELECT {HISTORY_READ} FROM {schema}.events WHERE job = ANY(%s) ORDER BY job, seq"
        self.streams = f"SELECT {EVENT_READ} FROM {schema}.events WHERE job = ANY(%s) ORDER BY job, seq"
        self.keys = (
            "SELECT j.plugin, j.entry, j.idempotency_key, j.id FROM json_to_recordset(%s) AS x(plugin text, entry text,"
            f" key text) JOIN {schema}.jobs j ON (j.plugin, j.entry, j.idempotency_key) = (x.plugin, x.entry, x.key)"
        )
        self.unused = f"SELECT job, id, key FROM {schema}.signals WHERE job = ANY(%s) AND NOT used ORDER BY place"
        self.count_unused = f"SELECT job, count(*) FROM {schema}.signals WHERE job = ANY(%s) AND NOT used GROUP BY job"
        self.known_signals = (
            f"SELECT s.job, s.id FROM unnest(%s::text[], %s::text[]) AS x(job, id)"
            f" JOIN {schema}.signals s ON s.job = x.job AND s.id = x.id"
        )
        self.read_signal = f"SELECT job, id, key, payload::text, at FROM {schema}.signals WHERE job = %s AND id = %s"
        self.read_unused = (
            f"SELECT job, id, key, payload::text, at FROM {schema}.signals WHERE job = %s AND NOT used ORDER BY place"
        )
        self.children = (
            f"SELECT parent, id FROM {schema}.jobs WHERE parent = ANY(%s) AND state IN ('queued', 'running', 'waiting')"
        )

    def _writing(self, schema: str) -> None:
        shape = ", ".join(f"{name} {_JOB_TYPES.get(name, 'text')}" for name in JOB_WRITTEN)
        listed = ", ".join(f"string_to_array(%({name})s, %(mark)s, '')" for name in _EVENT_LISTS)
        self.insert_events = (
            f"INSERT INTO {schema}.events SELECT job, seq::bigint, type, payload::json, attempt::bigint,"
            " %(at)s::double precision, %(schema)s::integer, substr(%(prevs)b::bytea, (32 * place - 31)::integer, 32),"
            f" decode(hashes, 'hex') FROM unnest({listed})"
            " WITH ORDINALITY AS x(job, seq, type, payload, attempt, hashes, place)"
        )
        columns = ", ".join(JOB_WRITTEN)
        insert_jobs = (
            f"INSERT INTO {schema}.jobs ({columns}) SELECT {columns} FROM json_to_recordset(%(new)s) AS x({shape})"
        )
        grow_jobs = (
            f"UPDATE {schema}.jobs j SET version = x.version, head = x.head, updated_at = x.updated_at FROM"
            " json_to_recordset(%(grown)s) AS x(id text, version bigint, head text, updated_at double precision)"
            " WHERE j.id = x.id"
        )
        changes = ", ".join(f"{name} = x.{name}" for name in JOB_CHANGING)
        changing = ", ".join(f"{name} {_JOB_TYPES.get(name, 'text')}" for name in ("id", *JOB_CHANGING))
        update_jobs = (
            f"UPDATE {schema}.jobs j SET {changes} FROM json_to_recordset(%(changed)s) AS x({changing})"
            " WHERE j.id = x.id"
        )
        self._written: dict[tuple[tuple[str, ...], bool], str] = {}
        self._written_if_current: dict[tuple[str, ...], str] = {}
        self.write_jobs = {"new": insert_jobs, "grown": grow_jobs, "changed": update_jobs}
        # The payloads are in binary: to quote a list as text takes 2 µs for each quote and backslash in them.
        self.insert_signals = (
            f"INSERT INTO {schema}.signals (job, id, key, at, payload, used) SELECT x.job, x.id, x.key, x.at,"
            " x.payload::json, false FROM unnest(%s::text[], %s::text[], %s::text[], %s::float8[], %b::text[])"
            " WITH ORDINALITY AS x(job, id, key, at, payload, place) ORDER BY x.place"
        )
        self.use_signals = (
            f"UPDATE {schema}.signals s SET used = true FROM unnest(%s::text[], %s::text[]) AS x(job, id)"
            " WHERE s.job = x.job AND s.id = x.id"
        )

    def write_rows(self, kinds: tuple[str, ...], *, events: bool) -> str:
        """Return a statement that writes rows of some kinds of `write_jobs`, and events."""
        if (kinds, events) not in self._written:
            *first, last = [self.write_jobs[kind] for kind in kinds] + ([self.insert_events] if events else [])
            before = ", ".join(f"part_{number} AS ({part})" for number, part in enumerate(first))
            self._written[kinds, events] = f"WITH {before} {last}" if before else last
        return self._written[kinds, events]

    def write_if_current(self, kinds: tuple[str, ...]) -> str:
        """Return a statement that writes events and rows of some kinds, if what an optimistic batch assumes holds.

        It locks rows as `lock_names` does, and reads the time after that: an aggregate is computed after its input.
        """
        if kinds not in self._written_if_current:
            parts = [*(self.write_jobs[kind] for kind in kinds), self.insert_events]
            guarded = "".join(
                f", part_{number} AS ({part} {'AND' if ' WHERE ' in part else 'WHERE'} (SELECT ok FROM checked))"
                for number, part in enumerate(parts)
            )
            off_max = NEW_JOB_OFF_MAX if "new" in kinds else TIME_OFF_MAX
            depths = f"SELECT 1 FROM {self.schema}.limits WHERE queue = ANY(%(queues)s) AND {_DEPTH} IS NOT NULL"
            self._written_if_current[kinds] = (
                f"WITH locked AS (SELECT id, xmin::text || head AS row_version FROM {self.schema}.jobs"
                " WHERE id = ANY(%(names)s) ORDER BY id FOR UPDATE),"
                " seen AS (SELECT coalesce(string_agg(row_version, ',' ORDER BY id), '') AS row_versions,"
                f" {self.schema}.clock() AS now FROM locked),"
                " checked AS (SELECT now, row_versions = %(row_versions)s AND now < %(until)s"
                f" AND now BETWEEN %(at)s AND %(at)s::double precision + {off_max}"
                f"{f' AND NOT EXISTS ({depths})' if 'new' in kinds else ''} AS ok FROM seen){guarded}"
                " SELECT ok, now, pg_current_xact_id()::xid::text FROM checked"
            )
        return self._written_if_current[kinds]

    def _finding(self, schema: str) -> None:
        self.promote = (
            f"UPDATE {schema}.jobs SET claimable = true WHERE id IN (SELECT id FROM {schema}.jobs"
            f" WHERE state = 'queued' AND NOT claimable AND due_at <= coalesce(%s::double precision, (SELECT"
            f" {schema}.clock())) ORDER BY due_at LIMIT {PROMOTED_MAX} FOR UPDATE SKIP LOCKED)"
        )
        self.claim = self._claim(schema)
        looking = f"SELECT {JOB_COLUMNS} FROM {schema}.jobs WHERE"
        self.expired = (
            f"{looking} state = 'running' AND lease_until <= %s ORDER BY lease_until, id LIMIT %s"
            " FOR UPDATE SKIP LOCKED"
        )
        self.ended = f"{looking} ends_at <= %s ORDER BY ends_at, id LIMIT %s FOR UPDATE SKIP LOCKED"
        self.held = f"{looking} state = 'running' AND lease_worker = %s ORDER BY id FOR UPDATE"
        finished = (
            f"SELECT j.id FROM {schema}.jobs j WHERE j.state IN ('completed', 'failed', 'cancelled')"
            " AND j.state = ANY(%(states)s) AND j.created_at <= %(before)s AND j.updated_at <= %(before)s"
            f" AND NOT EXISTS (SELECT 1 FROM {schema}.jobs p WHERE p.id = j.parent"
            " AND p.state NOT IN ('completed', 'cancelled'))"
            f" AND NOT EXISTS (SELECT 1 FROM {schema}.jobs n WHERE n.id = j.newest"
            " AND n.state NOT IN ('completed', 'failed', 'cancelled'))"
        )
        order = " ORDER BY j.created_at, j.id LIMIT %(limit)s FOR UPDATE OF j SKIP LOCKED"
        self.finished = f"{finished}{order}"
        self.finished_among = f"{finished} AND j.id = ANY(%(jobs)s){order}"
        tables = (*((table, "job") for table in ("events", *OF_A_JOB)), ("jobs", "id"))
        self.remove = [f"DELETE FROM {schema}.{table} WHERE {key} = ANY(%s)" for table, key in tables]

    def _producing(self, schema: str) -> None:
        self.keep_run = f"INSERT INTO {schema}.past_runs (job, run, status, record) VALUES (%s, %s, %s, %s)"
        self.carry_exports = (
            f"INSERT INTO {schema}.exports SELECT job, run + 1, number, key, name, kind, media_type, size, value, blob,"
            f" at FROM {schema}.exports WHERE job = %s AND run = %s"
        )
        self.put_attributes = (
            f"INSERT INTO {schema}.attributes (name, value, job)"
            " SELECT * FROM unnest(%s::text[], %s::text[], %s::text[])"
        )
        self.audit = (
            f"INSERT INTO {schema}.audit (at, actor, said, verb, subject, detail) VALUES (%s, %s, %s, %s, %s, %s::json)"
        )
        oldest = f"SELECT number, at FROM {schema}.audit ORDER BY number LIMIT %s"  # the numbers grow with time
        self.purge_audit = (
            f"DELETE FROM {schema}.audit WHERE number IN (SELECT number FROM ({oldest}) o WHERE at < %s)"
            " RETURNING number"
        )
        self.claim_requests = (  # waits for a transaction that has claimed one of the keys
            f"INSERT INTO {schema}.request_keys (key, fingerprint, answer, at)"
            f" SELECT key, fingerprint, '', {schema}.clock() FROM unnest(%s::text[], %s::text[])"
            " AS new (key, fingerprint) ORDER BY key ON CONFLICT (key) DO NOTHING RETURNING key"
        )
        self.known_requests = f"SELECT key, fingerprint, answer FROM {schema}.request_keys WHERE key = ANY(%s)"
        self.keep_requests = (
            f"UPDATE {schema}.request_keys r SET answer = new.answer"
            " FROM unnest(%s::text[], %s::text[]) AS new (key, answer) WHERE r.key = new.key"
        )
        self.free_requests = f"DELETE FROM {schema}.request_keys WHERE key = ANY(%s)"
        self.drop_requests = (
            f"DELETE FROM {schema}.request_keys WHERE key IN (SELECT key FROM {schema}.request_keys WHERE at < %s"
            " ORDER BY at LIMIT %s FOR UPDATE SKIP LOCKED)"
        )
        self.progress = (
            f"INSERT INTO {schema}.progress (job, run, said, at) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (job, run) DO UPDATE SET said = excluded.said, at = excluded.at"
        )
        self.keep_export = (
            f"INSERT INTO {schema}.exports (job, run, key, name, kind, media_type, size, value, blob, at, number)"
            " SELECT x.*, (SELECT coalesce(max(number), 0) + 1"
            f" FROM {schema}.exports e WHERE e.job = x.job AND e.run = x.run) FROM (SELECT %s::text AS job,"
            " %s::bigint AS run, %s::text, %s::text, %s::text, %s::text, %s::bigint, %s::text, %s::text,"
            " %s::double precision) AS x ON CONFLICT (job, run, key) DO NOTHING RETURNING number"
        )
        self.known_export = f"SELECT number FROM {schema}.exports WHERE job = %s AND run = %s AND key = %s"
        self.put_blob = (
            f"INSERT INTO {schema}.blobs (job, blob, number, content) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
        )

    def _workers(self, schema: str) -> None:
        self.keep_evidence = (
            f"INSERT INTO {schema}.evidence (job, node, attempt, number, result, error, at)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING 1"
        )
        self.forget = f"DELETE FROM {schema}.workers WHERE seen_at <= %s"
        self.report = (
            f"INSERT INTO {schema}.workers AS w (name, card, started_at, seen_at, build, lock_key)"
            " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (name) DO UPDATE SET card = excluded.card,"
            " seen_at = excluded.seen_at, build = excluded.build, lock_key = coalesce(excluded.lock_key, w.lock_key)"
        )
        self.next_due = (
            f"SELECT least((SELECT min(due_at) FROM {schema}.jobs WHERE state = 'queued' AND NOT claimable AND due_at >"
            f" coalesce(%s, {schema}.clock())), (SELECT min(lease_until) FROM {schema}.jobs WHERE state = 'running'),"
            f" (SELECT min(ends_at) FROM {schema}.jobs WHERE ends_at IS NOT NULL),"
            f" (SELECT min(due_at) FROM {schema}.schedules WHERE due_at IS NOT NULL),"
            f" (SELECT at FROM {schema}.schedule_ends ORDER BY place LIMIT 1))"
        )
        self.dead_workers = (
            f"SELECT name, seen_at FROM {schema}.workers w WHERE lock_key IS NOT NULL AND NOT EXISTS ("
            "SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM"
            " pg_database WHERE datname = current_database()) AND l.objsubid = 1"
            " AND ((l.classid::bigint << 32) | l.objid::bigint) = w.lock_key)"
        )
        self.has_work = (
            f"SELECT EXISTS (SELECT 1 FROM {schema}.jobs WHERE claimable) OR EXISTS ({self.dead_workers})"
            f" OR ({self.next_due}) <= {schema}.clock()"
        )
        self.leave = f"DELETE FROM {schema}.workers WHERE name = %s"

    def _scheduling(self, schema: str) -> None:
        self.peek_rows = f"SELECT {JOB_COLUMNS} FROM {schema}.jobs WHERE id = ANY(%s)"
        self.outcome_marks = "unnest(%s::text[], %s::bigint[]) AS s(stream, after)"
        self.lock_schedule = f"SELECT row FROM {schema}.schedules WHERE id = %s FOR UPDATE"
        due = f"SELECT id FROM {schema}.schedules WHERE due_at <= {schema}.clock() ORDER BY due_at, id LIMIT %(limit)s"
        ended = f"SELECT schedule FROM {schema}.schedule_ends ORDER BY place LIMIT %(limit)s"
        self.lock_due_schedules = (
            f"SELECT row FROM {schema}.schedules WHERE id IN (({due}) UNION ({ended})) ORDER BY id"
            " FOR UPDATE SKIP LOCKED"
        )
        self.drop_ends_of_deleted = (
            f"DELETE FROM {schema}.schedule_ends WHERE place IN (SELECT e.place FROM (SELECT place, schedule FROM"
            f" {schema}.schedule_ends ORDER BY place LIMIT %s) e WHERE NOT EXISTS"
            f" (SELECT 1 FROM {schema}.schedules s WHERE s.id = e.schedule))"
        )
        self.take_ended = (
            f"DELETE FROM {schema}.schedule_ends WHERE schedule = ANY(%s) RETURNING place, schedule, job, status"
        )
        self.lock_declarations = f"SELECT pg_advisory_xact_lock({_number(f'{schema}:declare')}, hashtext(%s))"
        self.schedule_builds = f"SELECT build, number FROM {schema}.schedule_builds WHERE plugin = %s"
        self.put_build = f"INSERT INTO {schema}.schedule_builds (plugin, build, number) VALUES (%s, %s, %s)"
        self.schedules_of = f"SELECT row FROM {schema}.schedules WHERE plugin = %s ORDER BY id FOR UPDATE"
        listed = ", ".join(f"string_to_array(%({name})s, %(mark)s, '')" for name in ("ids", "plugins", "due", "rows"))
        rows = (
            f"(SELECT id, plugin, due_at::double precision, row FROM unnest({listed}) AS x(id, plugin, due_at, row)) x"
        )
        self.put_schedules = (
            f"UPDATE {schema}.schedules AS s SET due_at = x.due_at, row = x.row FROM {rows} WHERE s.id = x.id"
        )
        self.create_schedules = f"INSERT INTO {schema}.schedules (id, plugin, due_at, row) SELECT * FROM {rows}"
        self.drop_schedule = [
            f"DELETE FROM {schema}.schedules WHERE id = %s",
            f"DELETE FROM {schema}.schedule_ends WHERE schedule = %s",
        ]
        self.drop_stream = f"DELETE FROM {schema}.events WHERE job = %s"
        self.put_ended_runs = (
            f"INSERT INTO {schema}.schedule_ends (schedule, job, status, at) SELECT x.*, %s::double precision"
            " FROM unnest(%s::text[], %s::text[], %s::text[]) AS x(schedule, job, status)"
        )

    def _locking(self, schema: str) -> None:
        """Set the locks of limited queues: a counting transaction is alone, those that hand places on share."""
        self.lock_limits = (
            f"SELECT {LIMIT_COLUMNS} FROM {schema}.limits WHERE queue = ANY(%s) ORDER BY queue FOR UPDATE"
        )
        key = f"{_number(f'{schema}:places')}, hashtext(q.queue)"
        counts_places = (
            "NOT q.grouped AND q.settings::json->>'concurrency' IS NOT NULL AND q.settings::json->>'rate' IS NULL"
        )
        self.try_limits = (
            f"WITH q AS ({self.lock_limits} SKIP LOCKED) SELECT {LIMIT_COLUMNS},"
            f" CASE WHEN {counts_places} THEN pg_try_advisory_xact_lock({key}) ELSE true END FROM q"
        )
        self.take_limits = (
            f"WITH q AS ({self.lock_limits}) SELECT {LIMIT_COLUMNS},"
            f" CASE WHEN {counts_places} THEN pg_advisory_xact_lock({key}) IS NOT NULL ELSE true END FROM q"
        )
        self.keep_places = (
            f"SELECT q.queue, pg_advisory_xact_lock_shared({key}) FROM (SELECT q.queue FROM {schema}.limits q"
            f" WHERE {counts_places} AND EXISTS (SELECT 1 FROM"
            f" {schema}.jobs j WHERE j.id = ANY(%(names)s) AND j.queue = q.queue) AND NOT EXISTS (SELECT 1 FROM"
            f" {schema}.jobs j WHERE j.id = ANY(%(names)s) AND j.parent IS NOT NULL) ORDER BY q.queue OFFSET 0) q"
        )

        self.stand_at_the_door = (
            f"SELECT pg_advisory_xact_lock({_number(f'{schema}:door')}, hashtext(q.queue)) FROM (SELECT l.queue FROM"
            f" {schema}.limits l WHERE l.queue = ANY(%s) AND l.settings::json->>'depth' IS NOT NULL"
            " ORDER BY l.queue OFFSET 0) q"
        )

    def _limiting(self, schema: str) -> None:
        self.limits = f"SELECT {LIMIT_COLUMNS} FROM {schema}.limits"
        self.clock_and_limits = (
            f"SELECT x.now, l.* FROM (SELECT {schema}.clock() AS now) x LEFT JOIN ({self.limits}) l ON true"
        )
        values = ", ".join(["%s"] * len(LIMIT_WRITTEN.split(", ")))
        changes = ", ".join(f"{name} = excluded.{name}" for name in LIMIT_WRITTEN.split(", "))
        put = f"INSERT INTO {schema}.limits AS l ({LIMIT_WRITTEN}) VALUES ({values}) ON CONFLICT (queue) DO UPDATE SET"
        self.put_limits = f"{put} {changes.replace('= excluded.grouped', '= l.grouped OR excluded.grouped')}"
        self.put_grouped = f"{put} grouped = true WHERE NOT l.grouped"
        self.drop_limits = f"DELETE FROM {schema}.limits WHERE queue = %s AND NOT grouped"
        self.lock_budget = f"SELECT window_start, spent FROM {schema}.budgets WHERE name = %s FOR UPDATE"
        self.open_budget = (
            f"INSERT INTO {schema}.budgets (name, window_start, spent) VALUES (%s, '-infinity', 0)"
            " ON CONFLICT DO NOTHING"
        )
        self.put_budget = f"UPDATE {schema}.budgets SET window_start = %s, spent = %s WHERE name = %s"
        self.waiting = f"SELECT {schema}.waiting(%s, %s)"
        running = (
            f"SELECT j.queue, j.group_name, count(*) FROM {schema}.jobs j"
            f" WHERE j.state = 'running' AND j.queue = ANY({{queues}}) AND j.lease_until > (SELECT {schema}.clock())"
            " GROUP BY 1, 2"
        )
        self.running_rows = (
            f"SELECT {JOB_COLUMNS} FROM {schema}.jobs WHERE state = 'running' AND queue = %s AND lease_until > %s"
            " LIMIT %s"
        )
        self.running = running.format(queues="%s::text[]")
        self.look_on = (
            f"SELECT {LIMIT_COLUMNS}, {schema}.waiting(queue, %(most)s) + (SELECT count(*) FROM (SELECT 1 FROM"
            f" {schema}.jobs j WHERE j.state = 'queued' AND NOT j.claimable AND j.due_at <= %(now)s"
            f" AND j.queue = l.queue LIMIT %(most)s) late) FROM {schema}.limits l ORDER BY queue"
        )
        given = "unnest(%(plugins)s::text[], %(entries)s::text[]) AS x(plugin, entry)"
        builds = "unnest(%(builds)s::text[]) AS b(kept_for)"
        entries = f"entries AS (SELECT plugin, entry, kept_for FROM {given}, {builds})"
        one = f"SELECT 1 FROM {schema}.jobs j WHERE j.claimable AND j.plugin = e.plugin AND j.entry = e.entry"
        self.look_at = (
            f"WITH {entries}, busy AS (SELECT q.queue FROM unnest(%(wanted)s::text[]) AS q(queue) WHERE EXISTS"
            f" (SELECT 1 FROM entries e CROSS JOIN LATERAL ({one} AND j.queue = q.queue"
            " AND j.kept_for = e.kept_for ORDER BY j.group_name LIMIT 1) AS fitting))"
            " SELECT b.queue, r.group_name, r.count FROM busy b LEFT JOIN"
            f" ({running.format(queues='ARRAY(SELECT queue FROM busy)')}) r ON r.queue = b.queue"
        )
        step = (
            f"(SELECT min(j.group_name) FROM {schema}.jobs j WHERE j.claimable AND j.plugin = s.plugin"
            " AND j.entry = s.entry AND j.queue = %(queue)s AND j.kept_for = s.kept_for AND j.group_name"
        )
        # First after the group that was served last, then from the beginning up to it; by steps through the index.
        self.groups = (
            f"WITH RECURSIVE {entries}, steps(plugin, entry, kept_for, name, lap, n) AS (SELECT s.plugin, s.entry,"
            f" s.kept_for, CASE lap WHEN 0 THEN {step} > %(turn)s) ELSE {step} >= '') END, lap, 1"
            " FROM entries s, generate_series(0, 1) AS lap"
            f" UNION ALL SELECT s.plugin, s.entry, s.kept_for, {step} > s.name), s.lap, s.n + 1 FROM steps s"
            " WHERE s.name IS NOT NULL AND s.n < %(most)s AND (s.lap = 0 OR s.name <= %(turn)s))"
            " SELECT DISTINCT lap, name FROM steps WHERE name IS NOT NULL AND (lap = 0 OR name <= %(turn)s)"
            " ORDER BY lap, name LIMIT %(most)s"
        )
        columns = ", ".join(f"h.{name}" for name in JOB_COLUMNS.split(", "))
        self.heads = (
            f"WITH {entries} SELECT {columns} FROM entries e, unnest(%(groups)s::text[], %(counts)s::bigint[])"
            f" AS g(name, most) CROSS JOIN LATERAL (SELECT {JOB_COLUMNS} FROM {schema}.jobs j WHERE j.claimable"
            " AND j.plugin = e.plugin AND j.entry = e.entry AND j.queue = %(queue)s AND j.kept_for = e.kept_for"
            " AND j.group_name = g.name"
            " ORDER BY j.priority DESC, j.due_at, j.id LIMIT g.most FOR UPDATE SKIP LOCKED) h"
        )

    @staticmethod
    def _claim(schema: str) -> str:
        """Return the claim: the first jobs of each entry and queue, and the first of these.

        A row also has the event of a job that has only one, which is most new jobs, and the time after the locks.
        """
        columns = ", ".join(f"c.{name}" for name in JOB_COLUMNS.split(", "))
        step = (
            f"(SELECT min(j.queue) FROM {schema}.jobs j WHERE j.claimable AND j.plugin = w.plugin AND j.entry = w.entry"
        )
        history = HISTORY_READ.replace("job", "e.job").replace("attempt", "e.attempt")
        return (
            "WITH RECURSIVE entries AS (SELECT plugin, entry FROM unnest(%(plugins)s::text[], %(entries)s::text[])"
            " AS x(plugin, entry)), found(plugin, entry, queue) AS ("
            f" SELECT plugin, entry, {step}) FROM entries w UNION ALL"
            f" SELECT plugin, entry, {step} AND j.queue > w.queue) FROM found w WHERE w.queue IS NOT NULL),"
            " places AS MATERIALIZED (SELECT plugin, entry, queue FROM (SELECT plugin, entry, queue FROM found"
            " WHERE queue IS NOT NULL AND %(queues)s::text[] IS NULL UNION ALL"
            " SELECT plugin, entry, queue FROM entries, unnest(%(queues)s::text[]) AS y(queue)) x"
            f" WHERE NOT EXISTS (SELECT 1 FROM {schema}.limits l WHERE l.queue = x.queue))"
            f" SELECT {columns}, {history}, {schema}.clock() FROM (SELECT c.* FROM places p"
            " CROSS JOIN unnest(%(builds)s::text[]) AS b(kept_for) CROSS JOIN LATERAL ("
            f" SELECT {JOB_COLUMNS} FROM {schema}.jobs j WHERE j.claimable AND j.plugin = p.plugin"
            " AND j.entry = p.entry AND j.queue = p.queue AND j.kept_for = b.kept_for AND j.group_name = ''"
            " ORDER BY j.priority DESC, j.due_at, j.id LIMIT %(limit)s FOR UPDATE SKIP LOCKED) c"
            " ORDER BY c.priority DESC, c.due_at, c.id LIMIT %(limit)s) c"
            f" LEFT JOIN {schema}.events e ON c.version = 1 AND e.job = c.id AND e.seq = 1"
            " ORDER BY c.priority DESC, c.due_at, c.id"
        )
