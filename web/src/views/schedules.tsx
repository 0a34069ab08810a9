// Schedules: when each is due next, what happened to its last ticks, and what an operator may do with it.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, Problem, send } from "../api";
import { count, duration, local, relative, short, shortId, words } from "../format";
import { useKeys } from "../keys";
import { go, link, route } from "../router";
import { may, whole } from "../session";
import { refresh } from "../stream";
import type { Page, Schedule, ScheduleEvent, TickOutcome, TickTime } from "../types";
import { Button, Confirm, Dialog, Empty, Failure, Icon, Json, RunLink, Shape, Status, T, tell, Time, Told, useActions, useLoaded } from "../ui";
import { NotForGroups, useReload } from "./queues";

const DOTS = 50;
const PAGES_MAX = 20;
const EVENTS = 25;
const STATES = ["active", "paused", "ended"];
const REASONS: Record<string, string> = {
  overlap: "a run was open", excluded: "an exclusion matches", gap: "the local time did not exist", paused: "the schedule was paused",
  queue_full: "the queue was full", remaining: "no runs were left", changed: "the schedule was changed before",
};
const MARKS: Record<string, string> = {
  shifted: "moved: the clock is set forward", skipped: "skipped: the clock is set forward", first: "first of two: the clock is set back", last: "second of two: the clock is set back",
};

const minute = (text: string) => text.slice(0, 16).replace("T", " ");
const path = (id: string, rest = "") => `schedules/${encodeURIComponent(id)}${rest}`;
const many = (number: number, thing: string) => `${count(number)} ${thing}${number === 1 ? "" : "s"}`;

// Times of a schedule are in its own time zone, which this browser may not know.
function zoned(at: number, tz: string): string {
  try {
    return new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short", timeZone: tz }).format(at * 1000);
  } catch {
    return local(at);
  }
}

const zoneOf = (schedule: Schedule) => String(schedule.options.tz ?? "UTC");

// Common expressions in words. Others are shown as they are.
function timesOf(schedule: Schedule): string {
  const found = /^(\d+|\*\/\d+) (\*|\d+) \* \* (\*|\d|1-5|MON-FRI)$/i.exec(String(schedule.options.cron ?? ""));
  if (!found) return schedule.text;
  const [, past, hour, day] = found as unknown as [string, string, string, string];
  const on = day === "*" ? "" : /-/.test(day) ? "Monday to Friday" : `${["Sun", "Mon", "Tues", "Wednes", "Thurs", "Fri", "Satur"][Number(day) % 7]}days`;
  const zone = zoneOf(schedule);
  if (past.startsWith("*/")) return hour === "*" ? `every ${past.slice(2)} minutes${on && `, ${on}`}, ${zone}` : schedule.text;
  const two = (text: string) => text.padStart(2, "0");
  return hour === "*" ? `hourly at :${two(past)}${on && `, ${on}`}, ${zone}` : `${on || "daily"} at ${two(hour)}:${two(past)}, ${zone}`;
}

function why(reason: unknown): string {
  return REASONS[String(reason)] ?? (["none", "last", "all"].includes(String(reason)) ? "no worker was there in time" : words(String(reason ?? "")));
}

// What a dot shows: the status of the run, or why there is none.
const toneFor = (one: TickOutcome) => (one.outcome === "fired" ? one.status ?? "deleted" : one.outcome);

function dotText(one: TickOutcome, tz: string): string {
  const when = one.tick === null ? `${zoned(one.at, tz)}, fired by hand${one.by ? ` by ${one.by}` : ""}` : zoned(one.tick, tz);
  const range = one.last === null ? "" : ` to ${zoned(one.last, tz)}, ${one.ticks === null ? "many ticks" : many(one.ticks, "tick")}`;
  const what = one.outcome === "fired" ? `${one.catch_up ? "caught up, " : ""}${words(one.status ?? "its run was deleted")}`
    : one.outcome === "buffered" ? "waits for the open run" : `${one.outcome}: ${why(one.reason)}`;
  return short(`${when}${range}: ${what}`, 200);
}

// One stop for the Tab key; the arrow keys move from dot to dot.
function Dots({ schedule }: { schedule: Schedule }) {
  const outcomes = [...(schedule.outcomes ?? [])].reverse();
  const strip = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState(DOTS);
  const chosen = Math.min(at, outcomes.length - 1);
  const counted = new Map<string, number>();
  for (const one of outcomes) counted.set(toneFor(one), (counted.get(toneFor(one)) ?? 0) + 1);
  const move = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -DOTS, End: DOTS }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(outcomes.length - 1, chosen + step));
    setAt(next);
    (strip.current!.children[next] as HTMLElement).focus();
  };
  if (!outcomes.length) return <span class="muted">no ticks yet</span>;
  const text = [...counted].map(([name, number]) => `${count(number)} ${words(name)}`).join(", ");
  return (
    <div class="dots" role="group" aria-label={`Last ticks: ${text}`} ref={strip} onKeyDown={move}>
      {outcomes.map((one, place) => {
        const say = dotText(one, zoneOf(schedule));
        const shared = { key: `${one.at} ${one.tick}`, class: "dot", title: say, "aria-label": say, tabIndex: place === chosen ? 0 : -1, onFocus: () => setAt(place) };
        const shape = <Shape status={toneFor(one)} />;
        return one.outcome === "fired" && one.status ? <a {...shared} href={link(["runs", one.run_id!])}>{shape}</a> : <span {...shared} role="img">{shape}</span>;
      })}
    </div>
  );
}

function State({ schedule }: { schedule: Schedule }) {
  const { pause } = schedule;
  return (
    <>
      <Status status={schedule.state} />
      {pause && <p class="muted"><T text={short([pause.reason === "operator" ? "" : words(pause.reason), pause.by && `by ${pause.by}`, pause.note].filter(Boolean).join(": "), 160)} /></p>}
      {schedule.state === "active" && schedule.has_worker === false && <p class="bad">no live worker has its job</p>}
    </>
  );
}

function Next({ schedule }: { schedule: Schedule }) {
  const { next } = schedule;
  if (next === null) return <span class="muted">–</span>;
  const zone = zoneOf(schedule);
  return (
    <>
      <strong><Time at={schedule.due_at ?? next} /></strong>
      {zone !== "UTC" && <p class="nowrap">{zoned(next, zone)}</p>}
      <p class="muted nowrap">{minute(new Date(next * 1000).toISOString())} UTC</p>
    </>
  );
}

async function readPages(most: number): Promise<Page<Schedule>> {
  const items: Schedule[] = [];
  let next: string | number | null = null;
  for (let number = 0; number < most; number++) {
    const page: Page<Schedule> = await get("schedules", { limit: DOTS, outcomes: DOTS, cursor: next });
    items.push(...page.items);
    next = page.next;
    if (next === null) break;
  }
  return { items, next };
}

export function SchedulesView() {
  const { query } = route.value;
  const [state, text] = [query.get("state") ?? "", query.get("search") ?? ""];
  const [shown, setShown] = useState(1);
  const most = useRef(1);
  most.current = text || state ? PAGES_MAX : shown; // a search looks at all
  const { value, error, reload } = useLoaded(() => (whole.value ? readPages(most.current) : Promise.resolve(null)), [whole.value], most.current);
  const input = useRef<HTMLInputElement>(null);
  useReload(reload, 2);
  useKeys([{ keys: "/", does: "Search schedules", run: () => input.current?.focus() }]);
  if (!whole.value) return <section class="view"><h1>Schedules</h1><NotForGroups /></section>;
  const narrow = (name: string, to: string) => {
    const made = new URLSearchParams(query);
    if (to) made.set(name, to);
    else made.delete(name);
    return made;
  };
  const all = value?.items ?? [];
  const found = all.filter((one) => `${one.id} ${one.job}`.toLowerCase().includes(text.toLowerCase()));
  const rows = found.filter((one) => !state || one.state === state);
  const more = value?.next !== null;
  return (
    <section class="view">
      <h1 class="away">Schedules</h1>
      {error !== null && <Failure error={error} again={reload} />}
      {all.length > 0 && (
        <>
          <div class="counts" role="group" aria-label="Schedules by state">
            {["", ...STATES].map((one) => (
              <a key={one} class={`count${state === one ? " chosen" : ""}`} href={link(["schedules"], narrow("state", one))}>
                <span class="number">{count(one ? found.filter((each) => each.state === one).length : found.length)}{more && "+"}</span>{" "}
                {one ? <Status status={one} /> : <span class="muted">all</span>}
              </a>
            ))}
          </div>
          <div class="toolbar">
            <div class="search">
              <Icon name="search" />
              <input ref={input} type="text" aria-label="Search schedules by name or job" placeholder="Search: name or job" value={text} autocomplete="off" spellcheck={false}
                onInput={(event) => go(["schedules"], narrow("search", event.currentTarget.value), true)} />
              <kbd aria-hidden="true">/</kbd>
            </div>
          </div>
        </>
      )}
      {value && !all.length && <Empty title="No schedules"><p>Declare one above a job with <code>@app.schedule("nightly", cron="30 2 * * *")</code>. The next worker creates it.</p></Empty>}
      {all.length > 0 && !rows.length && <Empty title="No schedule matches"><Button onClick={() => go(["schedules"])}>Show all schedules</Button></Empty>}
      {rows.length > 0 && (
        <>
          <div class="table-box" tabIndex={0} role="group" aria-label="Schedules">
            <table class="schedules">
              <caption class="away">Schedules</caption>
              <thead><tr><th>Schedule</th><th>State</th><th>Next tick</th><th>Last ticks</th></tr></thead>
              <tbody>
                {rows.map((one) => (
                  <tr key={one.id}>
                    <td class="name"><a href={link(["schedules", one.id])}><T text={short(one.id, 120)} /></a><p class="muted"><T text={short(timesOf(one), 120)} /></p></td>
                    <td><State schedule={one} /></td>
                    <td><Next schedule={one} /></td>
                    <td><Dots schedule={one} /></td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <Legend />
          {more && <Button onClick={() => setShown(shown + 1)}>Show more</Button>}
        </>
      )}
    </section>
  );
}

function Legend() {
  return (
    <p class="legend note" aria-hidden="true">
      {["succeeded", "failed", "running", "queued", "skipped", "missed", "buffered"].map((name) => (
        <span key={name} class="status"><Shape status={name} /> <span class="muted">{name}</span></span>
      ))}
    </p>
  );
}

interface Loaded {
  schedule: Schedule;
  explanation: string;
  ticks: TickTime[];
}

type Verb = "pause" | "resume" | "fire" | "backfill" | "delete";

export function ScheduleView({ id }: { id: string }) {
  const load = async (): Promise<Loaded> => {
    const [schedule, { explanation }, ticks] = await Promise.all([
      get<Schedule>(path(id), { outcomes: DOTS }),
      get<{ explanation: string }>(path(id, "/explain")),
      get<Page<TickTime>>(path(id, "/ticks"), { limit: 10 }),
    ]);
    return { schedule, explanation, ticks: ticks.items };
  };
  const { value, error, reload } = useLoaded(load, [id]);
  const [verb, setVerb] = useState<Verb | null>(null);
  useReload(reload, 2);
  useKeys([{ keys: "u", does: "Back to the list", run: () => go(["schedules"]) }]);
  useEffect(() => {
    document.title = `${short(id, 60)} · Holdfast`;
  }, [id]);
  if (!value) {
    const gone = error instanceof Problem && (error.status === 404 || error.status === 400);
    return (
      <section class="view">
        {gone ? <Empty title="No schedule has this name"><a class="button" href="#/schedules">All schedules</a></Empty>
          : error !== null ? <Failure error={error} again={reload} /> : <p class="loading muted" role="status">Reading the schedule…</p>}
      </section>
    );
  }
  const { schedule } = value;
  const done = () => { setVerb(null); reload(); refresh(); };
  return (
    <section class="view">
      <div class="run-title">
        <h1><T text={short(id, 120)} /></h1>
        <Status status={schedule.state} strong />
        <div class="actions">
          {may("operate") && (
            <>
              {schedule.state !== "ended" && (schedule.state === "paused" ? <Button onClick={() => setVerb("resume")}>Resume…</Button> : <Button onClick={() => setVerb("pause")}>Pause…</Button>)}
              <Button onClick={() => setVerb("fire")}>Fire now…</Button>
              <Button onClick={() => setVerb("backfill")}>Backfill…</Button>
            </>
          )}
          {may("admin") && <Button kind="danger" onClick={() => setVerb("delete")}>Delete…</Button>}
        </div>
      </div>
      {error !== null && <Failure error={error} again={reload} />}
      <p class="explain"><Told text={value.explanation.replace(/`holdfast schedules resume \S+` resumes it\. ?/, "")} /></p>
      <Dots schedule={schedule} />
      <Legend />
      <div class="columns part">
        <div><h2>Next ticks</h2><Ticks schedule={schedule} next={value.ticks} /></div>
        <div><h2>Definition</h2><Facts schedule={schedule} /></div>
      </div>
      <WhyNot id={id} tz={zoneOf(schedule)} />
      <History id={id} tz={zoneOf(schedule)} version={value} />
      {verb === "backfill" && <BackfillForm id={id} tz={zoneOf(schedule)} onClose={done} />}
      {verb && verb !== "backfill" && <Act verb={verb} id={id} open={schedule.open_runs.length} onClose={() => setVerb(null)} onDone={done} />}
    </section>
  );
}

function Ticks({ schedule, next }: { schedule: Schedule; next: TickTime[] }) {
  const [day, setDay] = useState("");
  const { value, error } = useLoaded(() => (day ? get<Page<TickTime>>(path(schedule.id, "/ticks"), { around: day, limit: 100 }) : Promise.resolve(null)), [day]);
  const ticks = value?.items ?? next;
  return (
    <>
      <label class="field"><span>Around a day <span class="muted">(empty: the next ones)</span></span><input type="date" value={day} onInput={(event) => setDay(event.currentTarget.value)} /></label>
      {error !== null && <Failure error={error} />}
      {!ticks.length && <p class="muted">{schedule.state === "paused" ? "None until it is resumed." : "None."}</p>}
      {ticks.length > 0 && (
        <div class="table-box ticks" tabIndex={0} role="group" aria-label="Ticks">
          <table>
            <caption class="away">Ticks</caption>
            <thead><tr><th>{zoneOf(schedule)}</th><th>UTC</th><th class="right">When</th></tr></thead>
            <tbody>{ticks.map((tick) => (
              <tr key={tick.at}>
                <td><T text={minute(tick.local)} />
                  {(tick.mark || tick.excluded) && <p class="tone-timeout"><T text={[MARKS[tick.mark] ?? tick.mark, tick.gap.length ? `${tick.gap.map((one) => one.slice(11, 16)).join(", ")} does not exist` : "", tick.excluded ? "excluded" : ""].filter(Boolean).join("; ")} /></p>}</td>
                <td class="muted nowrap"><T text={minute(tick.utc)} /></td>
                <td class="right nowrap">{relative(tick.at)}</td>
              </tr>
            ))}</tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Facts({ schedule }: { schedule: Schedule }) {
  const [app, ...entry] = schedule.job.split(".");
  const facts: [string, unknown][] = [
    ...Object.entries(schedule.options),
    ["remaining runs", schedule.remaining], ["failures in a row", schedule.failures || null], ["waiting ticks", schedule.buffered || null],
    ["build", schedule.build], ["time zone data", schedule.tzdata],
  ];
  return (
    <>
      <dl class="facts">
        <dt>job</dt><dd><a href={link(["runs"], new URLSearchParams([["plugin_id", app!], ["entry_id", entry.join(".")]]))}><T text={short(schedule.job, 120)} /></a></dd>
        {facts.map(([name, fact]) => fact != null && <><dt key={name}>{words(name)}</dt><dd><T text={short(typeof fact === "string" ? fact : fact instanceof Array ? fact.join(", ") : /^(every|phase|jitter|window)$/.test(name) ? duration(Number(fact)) : String(fact), 200)} /></dd></>)}
        {schedule.open_runs.length > 0 && <><dt>open runs</dt><dd>{schedule.open_runs.slice(0, 20).map((run) => <div key={run}><RunLink id={run}>{shortId(run)}</RunLink></div>)}</dd></>}
        <dt>created</dt><dd><Time at={schedule.created_at} both /> {schedule.source === "code" ? "by its code" : "at run time"}</dd>
      </dl>
      {Object.keys(schedule.args).length > 0 && <Json source={JSON.stringify(schedule.args)} label="arguments" />}
    </>
  );
}

function WhyNot({ id, tz }: { id: string; tz: string }) {
  const [at, setAt] = useState("");
  const [told, setTold] = useState("");
  const [failed, setFailed] = useState<unknown>(null);
  const ask = async (event: Event) => {
    event.preventDefault();
    setFailed(null);
    try {
      setTold((await get<{ explanation: string }>(path(id, "/explain"), { at })).explanation);
    } catch (caught) {
      setFailed(caught);
    }
  };
  return (
    <section class="part">
      <h2>Why did it run, or not run?</h2>
      <form class="answer answers" onSubmit={(event) => void ask(event)}>
        <label class="field"><span>At this time <span class="muted">({tz})</span></span><input type="datetime-local" value={at} required onInput={(event) => setAt(event.currentTarget.value)} /></label>
        <button type="submit" class="button">Explain</button>
      </form>
      {failed !== null ? <Failure error={failed} /> : told && <p class="explain" role="status"><Told text={told} /></p>}
    </section>
  );
}

function eventText({ payload }: ScheduleEvent, tz: string): string {
  const at = (name: string) => zoned(payload[name] as number, tz);
  const tick = "nominal" in payload ? at("nominal") : "from" in payload ? `${at("from")} to ${at("to")}${payload.count ? `, ${many(payload.count as number, "tick")}` : ""}` : "";
  const by = payload.by ? `by ${String(payload.by)}` : "";
  const parts = [tick, payload.reason && why(payload.reason), payload.manual && "by hand", payload.catch_up && "caught up", MARKS[String(payload.mark)],
    payload.fired && `${many((payload.fired as []).length, "run")} started, ${count(payload.existing as number)} existed${payload.left ? `, ${count(payload.left as number)} left` : ""}`,
    payload.fields && (payload.fields as string[]).join(", "), payload.detail, payload.note, by];
  return short(parts.filter(Boolean).map(String).join("; "), 400);
}

function History({ id, tz, version }: { id: string; tz: string; version: unknown }) {
  const [older, setOlder] = useState<ScheduleEvent[]>([]);
  const [end, setEnd] = useState(false);
  const [failed, setFailed] = useState<unknown>(null);
  const { value, error, reload } = useLoaded(() => get<Page<ScheduleEvent>>(path(id, "/events"), { limit: EVENTS }), [id], version);
  const newest = value?.items ?? [];
  const events = [...newest, ...older.filter((one) => one.seq < (newest.at(-1)?.seq ?? 0))];
  const last = events.at(-1)?.seq ?? 1;
  const more = async () => {
    try {
      const page = await get<Page<ScheduleEvent>>(path(id, "/events"), { limit: EVENTS, cursor: last });
      setOlder([...events, ...page.items]);
      setEnd(page.next === null);
      setFailed(null);
    } catch (caught) {
      setFailed(caught);
    }
  };
  return (
    <section class="part">
      <h2>History</h2>
      {error !== null && <Failure error={error} again={reload} />}
      <div class="table-box" tabIndex={0} role="group" aria-label="History">
        <table>
          <caption class="away">History</caption>
          <thead><tr><th class="right">No.</th><th>Written</th><th>Event</th><th>Tick and reason</th><th>Run</th></tr></thead>
          <tbody>{events.map((event) => (
            <tr key={event.seq}>
              <td class="right muted">{event.seq}</td>
              <td class="nowrap"><Time at={event.at} /></td>
              <td class="nowrap">{/^(skip|mis|buf)/.test(event.type) ? <Status status={event.type} /> : words(event.type)}</td>
              <td><T text={eventText(event, tz)} /></td>
              <td>{typeof (event.payload.job ?? event.payload.run) === "string" && <RunLink id={String(event.payload.job ?? event.payload.run)}>{shortId(String(event.payload.job ?? event.payload.run))}</RunLink>}</td>
            </tr>
          ))}</tbody>
        </table>
      </div>
      {failed !== null && <Failure error={failed} />}
      {last > 1 && !end && <p class="note"><Button onClick={more}>Show older events</Button></p>}
    </section>
  );
}

const ACTS: Record<Exclude<Verb, "backfill">, { verb: string; text: string; done: string }> = {
  pause: { verb: "Pause", text: "Its ticks are skipped until it is resumed. Open runs go on. The reason is shown as a note.", done: "is paused" },
  resume: { verb: "Resume", text: "It goes on with its next tick. The ticks of the pause are not caught up: backfill starts them.", done: "goes on" },
  fire: { verb: "Fire now", text: "A run starts now, outside of the ticks.", done: "has started a run" },
  delete: { verb: "Delete", text: "The schedule and its history are deleted permanently. Its runs stay. A declaration in code creates it again.", done: "is deleted" },
};

function Act({ verb, id, open, onClose, onDone }: { verb: Exclude<Verb, "backfill">; id: string; open: number; onClose: () => void; onDone: () => void }) {
  const act = useActions();
  const [overlap, setOverlap] = useState(false);
  const { verb: title, text, done } = ACTS[verb];
  const yes = async (reason: string) => {
    if (verb === "delete") {
      await send(path(id), { method: "DELETE" }).catch((caught: unknown) => {
        if (!(caught instanceof Problem && caught.status === 404)) throw caught; // it is gone: the answer to a first try was lost
      });
      tell(`The schedule ${id} ${done}.`);
      go(["schedules"], undefined, true);
      return;
    }
    await act(path(id, `/${verb}`), verb === "fire" ? { allow_overlap: overlap } : verb === "pause" && reason ? { note: reason } : {});
    tell(`The schedule ${id} ${done}.`);
    onDone();
  };
  return (
    <Confirm title={`${title}: ${short(id, 60)}`} verb={title} danger={verb === "delete"} reason={verb === "pause" ? "wanted" : undefined} onClose={onClose} onYes={yes}>
      <p>{text}</p>
      {verb === "fire" && <label class="check"><input type="checkbox" checked={overlap} onChange={(event) => setOverlap(event.currentTarget.checked)} /> <span>Also while a run is open{open ? ` (${many(open, "run")} now)` : ""}</span></label>}
    </Confirm>
  );
}

interface Backfill {
  ticks: TickTime[];
  started: string[];
  existing: number;
  left: number;
}

// First the ticks are shown; a second press starts their runs.
function BackfillForm({ id, tz, onClose }: { id: string; tz: string; onClose: () => void }) {
  const act = useActions();
  const [range, setRange] = useState({ start: "", end: "" });
  const [plan, setPlan] = useState<TickTime[] | null>(null);
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState<unknown>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setFailed(null);
    try {
      if (!plan) setPlan((await post<Backfill>(path(id, "/backfill"), { ...range, dry_run: true })).ticks);
      else {
        const made = await act<Backfill>(path(id, "/backfill"), range);
        tell(`Started ${many(made.started.length, "run")}. ${count(made.existing)} ticks had one.${made.left ? ` ${count(made.left)} were left: the queue is full.` : ""}`, made.left > 0);
        onClose();
        return;
      }
    } catch (caught) {
      setFailed(caught);
    }
    setBusy(false);
  };
  const field = (name: "start" | "end", title: string) => (
    <label class="field"><span>{title} <span class="muted">({tz})</span></span>
      <input type="datetime-local" value={range[name]} required autofocus={name === "start"} onInput={(event) => { setRange({ ...range, [name]: event.currentTarget.value }); setPlan(null); }} /></label>
  );
  return (
    <Dialog title={`Backfill: ${short(id, 60)}`} onClose={onClose}>
      <form onSubmit={(event) => void submit(event)}>
        <p>Each tick of the range gets a run. A tick that has one keeps it.</p>
        {field("start", "From")}
        {field("end", "To")}
        {plan && (
          <div role="status">
            <p><strong>{many(plan.length, "tick")}</strong>, in {tz}:</p>
            <ul class="plain mono">{plan.slice(0, 5).map((tick) => <li key={tick.at}>{minute(tick.local)}</li>)}
              {plan.length > 6 && <li>…</li>}{plan.length > 5 && <li>{minute(plan.at(-1)!.local)}</li>}</ul>
          </div>
        )}
        {failed !== null && <Failure error={failed} />}
        <div class="dialog-foot"><Button onClick={onClose}>Back</Button>
          <button type="submit" class="button primary" disabled={busy}>{plan ? `Start up to ${many(plan.length, "run")}` : "Show the ticks"}</button></div>
      </form>
    </Dialog>
  );
}
