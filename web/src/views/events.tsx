// The events of a run, shown from their sealed text, and the check of their hash chain in the browser.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, Problem, runPath } from "../api";
import { member, parseExact, plain, pretty, type Exact } from "../exact";
import { clock, count, local, short, words } from "../format";
import { useKeys } from "../keys";
import { sha256 } from "../sha256";
import type { Page, SealedEvent } from "../types";
import { Block, Button, Copy, Empty, Failure, Shape, T } from "../ui";
import { onChanges } from "../stream";

const PAGE = 200;
const ROW = 30;
const FIELDS = ["schema", "job", "seq", "id", "type", "attempt", "at", "payload", "prev"]; // of the sealed list

// A sealed event as its fields. Numbers and payloads stay the text that was hashed.
export function fieldsOf(event: SealedEvent): Record<string, Exact> {
  const list = parseExact(event.sealed);
  if (list.kind === "object") return Object.fromEntries(list.entries);
  return list.kind === "array" ? Object.fromEntries(list.items.map((item, at) => [FIELDS[at] ?? String(at), item])) : {};
}

export function Events({ id }: { id: string }) {
  const [events, setEvents] = useState<SealedEvent[]>([]);
  const [next, setNext] = useState<string | null>("0");
  const [error, setError] = useState<unknown>(null);
  const [open, setOpen] = useState<number | null>(null);
  const busy = useRef(false);
  const again = useRef(false); // events may have come since the read that is under way
  const cursor = useRef("0");
  const more = async () => {
    if (busy.current) return void (again.current = true);
    busy.current = true;
    again.current = false;
    try {
      const page = await get<Page<SealedEvent>>(runPath(id, "/chain"), { limit: PAGE, cursor: cursor.current });
      const last = page.items[page.items.length - 1];
      if (last) cursor.current = String(last.seq);
      setEvents((before) => [...before, ...page.items]);
      setNext(page.next);
      setError(null);
    } catch (caught) {
      setError(caught);
    } finally {
      busy.current = false;
      if (again.current) void more();
    }
  };
  useEffect(() => {
    void more();
    return onChanges((changed, missed) => { if (missed || [...changed.values()].some((run) => run.run_id === id || run.task_id === jobOf(id))) void more(); });
  }, [id]);
  const step = (by: number) => {
    const at = events.findIndex((event) => event.seq === open);
    const next = events[at < 0 ? 0 : Math.max(0, Math.min(events.length - 1, at + by))];
    if (next) setOpen(next.seq);
  };
  useKeys([
    { keys: "j", does: "Next event", run: () => step(1) },
    { keys: "k", does: "Previous event", run: () => step(-1) },
  ], [events, open]);
  if (error !== null && !events.length) return <Failure error={missing(error)} again={() => void more()} />;
  return (
    <div class="events">
      <EventList events={events} open={open} onOpen={setOpen} onEnd={() => { if (next !== null) void more(); }} />
      {!events.length && next === null && <Empty title="No events" />}
    </div>
  );
}

// The job of a run: a retry is another run of the same job, with a number after its id.
function jobOf(id: string): string {
  return id.replace(/\.\d+$/, "");
}

export function missing(error: unknown): unknown {
  return error instanceof Problem && (error.status === 404 || error.status === 400)
    ? new Problem(error.status, error.code, "this server does not offer this view yet", "update the server, then load the page again")
    : error;
}

function EventList({ events, open, onOpen, onEnd }: { events: SealedEvent[]; open: number | null; onOpen: (seq: number | null) => void; onEnd: () => void }) {
  const [place, setPlace] = useState({ top: 0, height: 560 });
  const space = useRef<HTMLDivElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const from = Math.max(0, Math.floor(place.top / ROW) - 8);
  const to = Math.min(events.length, Math.ceil((place.top + place.height) / ROW) + 8);
  const chosen = events.find((event) => event.seq === open);
  useLayoutEffect(() => {
    space.current!.style.height = `${events.length * ROW}px`;
    for (const element of space.current!.children as unknown as HTMLElement[]) {
      element.style.transform = `translateY(${Number(element.dataset.at) * ROW}px)`;
    }
    if (to > events.length - 40) onEnd();
  }, [events, from, to]);
  useLayoutEffect(() => { // an event that was chosen with the keys comes into sight
    const [element, top] = [box.current!, events.findIndex((event) => event.seq === open) * ROW];
    if (top < 0) return;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + ROW > element.scrollTop + element.clientHeight) element.scrollTop = top + ROW - element.clientHeight;
  }, [open]);
  return (
    <div class={`split${chosen ? " open" : ""}`}>
      <div
        ref={box} class="split-list" tabIndex={0} role="group" aria-label="Events, oldest first"
        onScroll={(event) => setPlace({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight })}
      >
        <div ref={space} class="list-space">
          {events.slice(from, to).map((event, offset) => {
            const fields = fieldsOf(event);
            const at = Number(plain(fields.at));
            return (
              <button
                type="button" key={event.seq} data-at={from + offset} class={`event${event.seq === open ? " chosen" : ""}`}
                aria-expanded={event.seq === open} onClick={() => onOpen(event.seq === open ? null : event.seq)}
              >
                <span class="muted number">{event.seq}</span>
                <span class="muted" title={local(at)}>{clock(at)}</span>
                <span class="event-type">{words(plain(fields.type))}</span>
                <T class="muted cut" text={short(summary(fields.payload), 90)} />
              </button>
            );
          })}
        </div>
      </div>
      {chosen && <EventDetails event={chosen} onClose={() => onOpen(null)} />}
    </div>
  );
}

function summary(payload: Exact | undefined): string {
  for (const name of ["node", "name", "step", "key", "worker", "reason", "error"]) {
    const found = member(payload, name);
    if (found && found.kind === "string") return found.value;
  }
  return payload && payload.kind === "object" ? payload.entries.map(([name]) => name).join(", ") : "";
}

function EventDetails({ event, onClose }: { event: SealedEvent; onClose: () => void }) {
  const fields = fieldsOf(event);
  const [all, setAll] = useState(false);
  return (
    <div class="split-side">
      <div class="side-head">
        <h3>{event.seq} · {words(plain(fields.type))}</h3>
        <Button kind="quiet" onClick={onClose} label="Close">×</Button>
      </div>
      <dl class="facts">
        <dt>At</dt><dd>{local(Number(plain(fields.at)))}</dd>
        <dt>Attempt</dt><dd>{plain(fields.attempt) === "null" ? "none" : plain(fields.attempt)}</dd>
        <dt>Hash</dt><dd class="mono wrap">{event.hash} <Copy text={event.hash} label="Copy the hash" /></dd>
      </dl>
      <h4>Payload</h4>
      <Block text={fields.payload ? pretty(fields.payload) : ""} label="payload" all={all} onAll={() => setAll(true)} />
      <details>
        <summary>Sealed text, over which the hash is made</summary>
        <Block text={event.sealed} label="sealed text" />
      </details>
    </div>
  );
}

interface Verdict {
  checked: number;
  head: string;
  bad: string | null;
  done: boolean;
}

const GENESIS = "0".repeat(64);
const CHUNK = 1000;

// Read every event of the run, make its hash again and compare it. The work is done in parts, so the page stays alive.
export function Verify({ id }: { id: string }) {
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  const [error, setError] = useState<unknown>(null);
  const alive = useRef(0);
  useEffect(() => {
    alive.current++;
    setVerdict(null);
    return () => void alive.current++;
  }, [id]);
  const check = async () => {
    const mine = ++alive.current;
    let [cursor, checked, head] = ["0" as string | null, 0, GENESIS];
    setError(null);
    setVerdict({ checked, head, bad: null, done: false });
    try {
      while (cursor !== null) {
        const page: Page<SealedEvent> = await get(runPath(id, "/chain"), { limit: CHUNK, cursor });
        let until = performance.now() + 30;
        for (const event of page.items) {
          const bad = wrong(event, jobOf(id), checked + 1, head);
          if (bad) return setVerdict({ checked, head, bad, done: true });
          checked++;
          head = event.hash;
          if (performance.now() > until) {
            if (mine !== alive.current) return;
            setVerdict({ checked, head, bad: null, done: false });
            await new Promise((done) => setTimeout(done));
            until = performance.now() + 30;
          }
        }
        cursor = page.items.length ? page.next : null;
      }
      if (mine === alive.current) setVerdict({ checked, head, bad: null, done: true });
    } catch (caught) {
      setError(missing(caught));
    }
  };
  return (
    <div class="pad verify">
      <p>
        Every event carries the hash of the event before it. This check reads all events of the run and computes the hashes
        in your browser, so it does not trust the server's own check.
      </p>
      <Button kind="primary" onClick={check} disabled={verdict !== null && !verdict.done}>Check the history</Button>
      {error !== null && <Failure error={error} />}
      {verdict && (
        <div class={`verdict ${verdict.bad ? "bad" : verdict.done ? "good" : ""}`} role="status">
          <Shape status={verdict.bad ? "failed" : verdict.done ? "succeeded" : "running"} />
          <div>
            {verdict.bad ? <T text={verdict.bad} /> : verdict.done
              ? <span>The chain is whole: {count(verdict.checked)} {verdict.checked === 1 ? "event" : "events"}.</span>
              : <span>Checked {count(verdict.checked)} events…</span>}
            {verdict.done && !verdict.bad && (
              <p class="muted">Newest hash: <span class="mono wrap">{verdict.head}</span> <Copy text={verdict.head} label="Copy the hash" /><br />
                Keep it elsewhere to prove later that no event was removed from the end.</p>
            )}
          </div>
        </div>
      )}
    </div>
  );
}

function wrong(event: SealedEvent, job: string, seq: number, head: string): string | null {
  const fields = fieldsOf(event);
  if (plain(fields.job) !== job) return `Event ${seq} belongs to another job: ${short(plain(fields.job), 60)}.`;
  if (event.seq !== seq) return `Event ${seq} is missing: the next one is ${event.seq}.`;
  if (plain(fields.seq) !== String(seq)) return `Event ${seq} carries another number in its sealed text.`;
  if (plain(fields.prev) !== head || event.previous !== head) return `Event ${seq} does not follow event ${seq - 1}: it names another hash.`;
  if (sha256(event.sealed) !== event.hash) return `Event ${seq} is not what was written: its hash does not fit its text.`;
  return null;
}
