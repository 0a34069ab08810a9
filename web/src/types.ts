// Records of the API, as far as the page reads them. docs/reference/http.md describes all fields.

export type RunStatus = "queued" | "running" | "cancel_requested" | "succeeded" | "failed" | "canceled" | "timeout";
export const STATUSES: RunStatus[] = [
  "running", "queued", "cancel_requested", "failed", "timeout", "canceled", "succeeded",
];
export const FINAL = new Set<string>(["succeeded", "failed", "canceled", "timeout"]);

export interface RunRecord {
  run_id: string;
  plugin_id: string;
  entry_id: string;
  status: RunStatus;
  created_at: number;
  updated_at: number;
  task_id?: string | null;
  trace_id?: string | null;
  idempotency_key?: string | null;
  started_at?: number | null;
  finished_at?: number | null;
  progress?: number | null;
  stage?: string | null;
  message?: string | null;
  step?: number | null;
  step_total?: number | null;
  eta_seconds?: number | null;
  metrics?: Record<string, number>;
  cancel_requested?: boolean;
  cancel_reason?: string | null;
  error?: { code: string; message: string; details?: Record<string, unknown> } | null;
  attributes?: Record<string, unknown>;
  continues?: string | null;
  continued_as?: string | null;
}

export interface RunBrief {
  relation?: string;
  run_id: string;
  plugin_id: string;
  entry_id: string;
  status: RunStatus;
  created_at: number;
  finished_at?: number | null;
}

export interface Family {
  parent: RunBrief | null;
  ancestors?: RunBrief[];
  children: RunBrief[];
  children_total: number;
  earlier: RunBrief[];
  later: RunBrief[];
}

export interface Page<T> {
  items: T[];
  next: string | null;
}

export interface Try {
  from: number;
  to?: number;
  settled?: number; // when an operator answered a try in doubt
  status: string;
  attempt?: number;
  worker?: string;
  error?: string;
}

export interface CallView {
  name: string;
  kind: string;
  status: string;
  retry_at?: number;
  reused?: boolean;
  run?: string;
  answer?: { answer: string; by?: string; at: number };
  tries?: Record<string, Try>;
}

export interface Wait {
  kind: string;
  key: string;
  node?: string;
  since: number;
  until?: number;
}

export interface Lease {
  worker: string;
  build?: string;
  from: number;
  to?: number;
  how?: string;
}

// The view of a run at one event: what the patches of the story build.
export interface View {
  state?: string;
  run?: { id: string; status: RunStatus; number?: number; stage?: string; error?: string };
  attempt?: number;
  worker?: string;
  cancel?: { reason?: string; at: number };
  waiting?: Record<string, Wait>;
  calls?: Record<string, CallView>;
  children?: Record<string, { entry: string; status: string; call?: string }>;
  nodes?: Record<string, { status: string; items?: Record<string, number> }>;
  leases?: Record<string, Lease>;
}

export interface StoryItem {
  seq: number;
  at: number;
  type: string;
  run_id?: string;
  changes: Record<string, unknown>;
}

export interface SealedEvent {
  seq: number;
  sealed: string;
  hash: string;
  previous: string;
}

export interface PlanNode {
  id: string;
  kind: string;
  title: string;
  needs: string[];
  chosen_by?: string[]; // choices among `needs`
  call?: string | null;
}

export interface InboxItem {
  id: string;
  kind: "doubt" | "answer" | "budget" | "deploy";
  run_id: string;
  plugin_id: string;
  entry_id: string;
  attributes?: Record<string, unknown>;
  since: number;
  until?: number | null;
  key: string;
  node?: string; // the place of the wait: an answer that names it counts for this question only
  title: string;
  question: string;
  call?: { name: string; args: string } | null;
  started?: number | null; // the event that started the call in doubt: an answer with it counts for this try only
  form?: Schema | null;
  misfit?: string | null; // why the last answer could not be used
  amounts?: Record<string, { spent: number; limit: number }> | null;
  deploy?: { call: string; recorded: string[]; line?: string | null; began?: string | null; build?: string | null } | null;
}

export interface Series {
  from: number;
  bucket_seconds: number;
  since?: number;
  complete?: boolean;
  starts: (number | null)[];
  ends: (number | null)[];
  failures: (number | null)[];
  depth: (number | null)[] | null;
  oldest_seconds: (number | null)[] | null;
}

export interface Stats {
  now: number;
  runs: Record<string, number>;
  queues: Record<string, Record<string, number>>;
  oldest_due_seconds: number | null;
  workers: number;
  asks?: number;
}

export interface TokenView {
  name: string | null;
  scope: string;
  group: string | null;
  expires_at: number | null;
  actor: string;
}

export interface Entry {
  plugin_id: string;
  entry_id: string;
  description: string;
  queue: string;
  deadline_seconds: number | null;
  parameters: Schema;
  open?: boolean;
}

export interface QueueState {
  limits: {
    queue: string;
    concurrency?: number | null;
    group_concurrency?: number | null;
    rate?: number | null;
    rate_seconds?: number;
    burst?: number | null;
    depth?: number | null;
    paused?: boolean;
    weights?: Record<string, number>;
  };
  running: number;
  queued: number;
  tokens: number | null;
  held_until: number | null;
  groups: Record<string, unknown>;
  changed_at?: number | null;
  changed_by?: string | null;
}

export interface GateCard {
  name: string;
  state: string;
  why?: string | null;
  opens_at?: number | null;
  waiting?: number;
  jobs?: string[];
  held?: string | null;
  violation?: string | null;
  violations?: number;
}

export interface WorkerStatus {
  card: {
    name: string;
    host: string;
    pid: number;
    slots: number;
    queues: string[] | null;
    entries: string[];
    lease_seconds: number;
    started_at?: number;
    seen_at?: number;
    blocked?: string | null;
    build?: string | null;
  };
  alive: boolean;
  running: {
    job: string;
    entry: string;
    attempt: number;
    since: number;
    lease_until: number;
    steps: { node: string; tool: boolean; attempt: number; since: number }[];
  }[];
}

export interface BuildStatus {
  build: string;
  workers: number;
  running: number;
  waiting: number;
  kept: number;
  oldest: string | null;
  oldest_at: number | null;
  current?: boolean;
  drained: boolean;
  reason: string | null;
}

export interface RunMisfit {
  run_id: string;
  reasons: string[];
  line?: string | null;
}

export interface MarkUse {
  file: string;
  line: number;
}

export interface Change {
  mark: string;
  old: number;
  new: number;
  unknown: number;
  oldest: string | null;
  uses: MarkUse[];
  removable: boolean;
}

export interface Changes {
  changes: Change[];
  runs: number;
  complete: boolean;
  next: string | null;
  unread: MarkUse[];
}

export interface MachineTable {
  machine: string;
  states: string[];
  events: string[];
  final: string[];
  rows: { from: string | null; event: string; to: string }[];
}

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema | boolean;
  prefixItems?: Schema[];
  minItems?: number;
  maxItems?: number;
  enum?: unknown[];
  const?: unknown;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  not?: Schema;
  $ref?: string;
  $defs?: Record<string, Schema>;
  default?: unknown;
  format?: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  additionalProperties?: boolean | Schema;
}

export interface TickOutcome {
  outcome: "fired" | "skipped" | "missed" | "buffered";
  at: number;
  tick: number | null;
  last: number | null;
  ticks: number | null;
  reason: string;
  run_id: string | null;
  status: RunStatus | null;
  catch_up: boolean;
  by: string | null;
}

export interface Schedule {
  id: string;
  job: string;
  args: Record<string, unknown>;
  state: "active" | "paused" | "ended";
  options: Record<string, unknown>;
  text: string;
  next: number | null;
  due_at: number | null;
  open_runs: string[];
  buffered: number;
  remaining: number | null;
  failures: number;
  pause: { reason: string; at: number; note?: string; by?: string } | null;
  source: string;
  build: string | null;
  tzdata: string;
  has_worker: boolean | null;
  created_at: number;
  outcomes: TickOutcome[] | null;
}

export interface TickTime {
  at: number;
  local: string;
  utc: string;
  mark: string;
  gap: string[];
  excluded: boolean;
}

export interface ScheduleEvent {
  seq: number;
  type: string;
  at: number;
  payload: Record<string, unknown>;
}
