// The runs that a filter lists: pages read so far, kept up to date by the stream.
import { signal } from "@preact/signals";
import { get, type Query } from "./api";
import { onChanges } from "./stream";
import type { Page, RunRecord } from "./types";

const FIRST = 200; // rows of the first page, which shall be there at once
const PAGE = 1000;
const KEPT_LIVE = 2000; // rows kept while new runs push in at the top and the user reads the top
// Filters that can be checked with the fields of a record. With others, a new run makes the list ask the server.
const CHECKS = new Map<string, (run: RunRecord, values: string[]) => boolean>(Object.entries({
  status: (run, values) => values.includes(run.status),
  plugin_id: (run, values) => values.includes(run.plugin_id),
  entry_id: (run, values) => values.includes(run.entry_id),
  task_id: (run, values) => values.includes(run.task_id ?? ""),
  idempotency_key: (run, values) => values.includes(run.idempotency_key ?? ""),
  created_after: (run, values) => run.created_at >= Number(values[0]),
  created_before: (run, values) => run.created_at < Number(values[0]),
}));

export function queryOf(filters: URLSearchParams): Query {
  const query = Object.create(null) as Record<string, string[]>; // an address may name any filter, also __proto__
  for (const [name, value] of filters) (query[name] ??= []).push(value);
  return query;
}

function matches(run: RunRecord, filters: URLSearchParams): boolean | null {
  let sure = true;
  for (const name of new Set(filters.keys())) {
    const values = filters.getAll(name);
    if (name.startsWith("attr.")) {
      if (String(run.attributes?.[name.slice(5)] ?? "") !== values[0]) return false;
    } else if (!CHECKS.has(name)) sure = false;
    else if (!CHECKS.get(name)!(run, values)) return false;
  }
  return sure ? true : null;
}

export class RunList {
  rows: RunRecord[] = [];
  readonly version = signal(0); // moves with every change of the rows
  readonly error = signal<unknown>(null);
  readonly loading = signal(false);
  ended = false; // all runs that match are in the list
  atTop = true; // the user sees the newest rows
  added = 0; // rows added at the top since the view looked
  private turn = 0;
  private stop: () => void;
  private again: number | undefined;
  private reading: Promise<void> | undefined;

  // `known` is a list of the same filters that the user has left: its rows are there at once.
  constructor(readonly filters: URLSearchParams, known?: RunList) {
    this.stop = onChanges((changed, missed) => this.apply(changed, missed));
    if (known?.rows.length && known.filters.toString() === filters.toString()) {
      [this.rows, this.ended] = [known.rows, known.ended];
      void this.reread();
    } else void this.more();
  }

  // Read more pages until a run is in the list, or until there are so many rows.
  async reach(id: string, most: number): Promise<number> {
    while (!this.rows.some((row) => row.run_id === id) && this.rows.length < most && !this.ended && !this.error.value) {
      const before = this.rows.length;
      await this.more();
      if (this.rows.length === before) break;
    }
    return this.rows.findIndex((row) => row.run_id === id);
  }

  close(): void {
    this.stop();
    this.turn++;
    clearTimeout(this.again);
  }

  more(): Promise<void> {
    if (this.ended) return Promise.resolve();
    return (this.reading ??= this.readPage().finally(() => (this.reading = undefined)));
  }

  private async readPage(): Promise<void> {
    const turn = this.turn;
    this.loading.value = true;
    this.error.value = null;
    try {
      const last = this.rows[this.rows.length - 1];
      const page = await get<Page<RunRecord>>("runs", { ...queryOf(this.filters), limit: last ? PAGE : FIRST, before: last?.run_id });
      if (turn !== this.turn) return;
      const known = new Set(this.rows.slice(-PAGE).map((row) => row.run_id));
      this.rows.push(...page.items.filter((row) => !known.has(row.run_id)).map(slim));
      this.ended = page.next === null;
      this.version.value++;
    } catch (error) {
      if (turn === this.turn) this.error.value = error;
    } finally {
      if (turn === this.turn) this.loading.value = false;
    }
  }

  // Read the first page again, and keep older rows that are loaded already.
  async reread(): Promise<void> {
    const turn = this.turn;
    try {
      const page = await get<Page<RunRecord>>("runs", { ...queryOf(this.filters), limit: FIRST });
      if (turn !== this.turn) return;
      const first = this.rows[0]?.run_id;
      const edge = page.items[page.items.length - 1]?.run_id;
      const older = page.next === null || edge === undefined ? [] : this.rows.filter((row) => row.run_id < edge);
      this.rows = [...page.items.map(slim), ...older];
      this.added += Math.max(0, this.rows.findIndex((row) => row.run_id === first));
      if (!older.length) this.ended = page.next === null;
      this.error.value = null;
      this.version.value++;
    } catch (error) {
      if (turn === this.turn && !this.rows.length) this.error.value = error;
    }
  }

  private rereadSoon(): void {
    this.again ??= window.setTimeout(() => {
      this.again = undefined;
      void this.reread();
    }, 1000);
  }

  private apply(changed: Map<string, RunRecord>, missed: boolean): void {
    if (missed) void this.reread();
    if (!changed.size || this.loading.value && !this.rows.length) return;
    const left = new Map(changed);
    let gone = false;
    for (let at = 0; at < this.rows.length && left.size; at++) {
      const now = left.get(this.rows[at]!.run_id);
      if (!now) continue;
      left.delete(now.run_id);
      if (matches(now, this.filters) === false) {
        gone = true;
        this.rows[at] = { ...this.rows[at]!, run_id: "" };
      } else this.rows[at] = slim(now);
    }
    if (gone) this.rows = this.rows.filter((row) => row.run_id);
    const newest = this.rows[0]?.run_id ?? "";
    const fresh: RunRecord[] = [];
    for (const run of left.values()) {
      const fits = matches(run, this.filters);
      if (fits === null) this.rereadSoon();
      else if (fits && run.run_id > newest) fresh.push(slim(run));
      else if (fits && (this.ended || run.run_id > (this.rows[this.rows.length - 1]?.run_id ?? ""))) this.rereadSoon();
    }
    if (fresh.length) {
      fresh.sort((one, other) => (one.run_id < other.run_id ? 1 : -1));
      this.rows = [...fresh, ...this.rows];
      this.added += fresh.length;
    }
    if (this.atTop && this.rows.length > KEPT_LIVE) {
      this.rows.length = KEPT_LIVE;
      this.ended = false;
    }
    this.version.value++;
  }
}

// A record with the fields that the list shows. A hundred thousand of them must fit in a tab.
function slim(run: RunRecord): RunRecord {
  return {
    run_id: run.run_id,
    plugin_id: run.plugin_id,
    entry_id: run.entry_id,
    status: run.status,
    created_at: run.created_at,
    updated_at: run.updated_at,
    started_at: run.started_at,
    finished_at: run.finished_at,
    progress: run.progress,
    stage: run.stage?.slice(0, 120),
    message: run.message?.slice(0, 120),
    idempotency_key: run.idempotency_key?.slice(0, 80),
    cancel_reason: run.cancel_reason?.slice(0, 160),
    error: run.error ? { code: run.error.code, message: run.error.message.slice(0, 160) } : null,
    attributes: run.attributes && Object.keys(run.attributes).length ? firsts(run.attributes) : undefined,
  };
}

function firsts(attributes: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(attributes).slice(0, 4).map(([name, value]) => [name, typeof value === "string" ? value.slice(0, 80) : value]),
  );
}
