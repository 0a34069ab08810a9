// The list of runs: filters as chips in the address, counts, saved views and actions on all that match.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, post, Problem, runPath, sentence } from "../api";
import { count, duration, now, short, shortId, visible, words } from "../format";
import { useKeys } from "../keys";
import { queryOf, RunList } from "../run_list";
import { go, link, route } from "../router";
import { entries, may, savedViews, saveViews, stats, whole } from "../session";
import { onChanges, refresh } from "../stream";
import { FINAL, STATUSES, type Page, type RunRecord } from "../types";
import { Bar, Button, Confirm, Dialog, Empty, Failure, Icon, Shape, Status, T, tell, Time, useChosenInSight, useLoaded } from "../ui";

const NAMES: Record<string, string> = {
  status: "status", plugin_id: "app", entry_id: "job", task_id: "job id", queue: "queue", group: "group",
  idempotency_key: "key", created_after: "created after", created_before: "created before", finished_after: "ended after",
  finished_before: "ended before", parent: "parent", top: "top level", asks: "asks", newest: "newest",
};
const TYPED_ABOVE = 100; // from here on the user types the number of runs

function withFilter(filters: URLSearchParams, name: string, value: string | null): URLSearchParams {
  const made = new URLSearchParams(filters);
  if (value === null) made.delete(name);
  else made.set(name, value);
  return made;
}

let lastList: RunList | undefined; // what the user saw last, for the way back

export function forgetList(): void {
  lastList = undefined;
  whys.clear();
}

export function RunsView() {
  const filters = route.value.query;
  const text = filters.toString();
  const list = useMemo(() => (lastList = new RunList(new URLSearchParams(text), lastList)), [text]);
  useEffect(() => () => list.close(), [list]);
  const [bulk, setBulk] = useState<"cancel" | "retry" | null>(null);
  const [saving, setSaving] = useState(false);
  const show = (query: URLSearchParams) => go(["runs"], query);
  useKeys([{ keys: "x", does: "Remove all filters", run: () => show(new URLSearchParams()) }]);

  return (
    <section class="view runs">
      <h1 class="away">Runs</h1>
      <Counts filters={filters} />
      <div class="toolbar">
        <Search filters={filters} list={list} />
        <div class="tools">
          {savedViews.value.length > 0 && <Views current={text} />}
          <Button onClick={() => setSaving(true)} disabled={!text} label="Save this view"><Icon name="bookmark" /></Button>
          {may("operate") && (
            <>
              <Button onClick={() => setBulk("cancel")} disabled={!text}>Cancel all…</Button>
              <Button onClick={() => setBulk("retry")} disabled={!text}>Retry all…</Button>
            </>
          )}
        </div>
      </div>
      {text && (
        <div class="chips">
          {[...filters].map(([name, value]) => (
            <span class="chip" key={name + value}>
              <span class="muted">{name.startsWith("attr.") ? <T text={name.slice(5)} /> : NAMES[name] ?? name}</span>{" "}
              <T text={name === "status" ? words(value) : short(value, 60)} />
              <button
                type="button" class="copy" aria-label={`Remove the filter ${NAMES[name] ?? name}`}
                onClick={() => {
                  const left = new URLSearchParams([...filters].filter((pair) => pair[0] !== name || pair[1] !== value));
                  show(left);
                }}
              >
                <Icon name="close" />
              </button>
            </span>
          ))}
          <Button kind="quiet" onClick={() => show(new URLSearchParams())}>Clear</Button>
        </div>
      )}
      <Table key={text} list={list} filtered={text !== ""} />
      {bulk && <Bulk verb={bulk} filters={filters} onClose={() => setBulk(null)} />}
      {saving && <SaveView query={text} onClose={() => setSaving(false)} />}
    </section>
  );
}

interface Counted {
  runs: Record<string, number>;
  next: string | null;
}

const COUNT_SECONDS = 5; // between two counts of the same filter

// How many runs match the filters, by status. Without filters the statistics of the store tell.
function useCounts(filters: URLSearchParams): { runs: Record<string, number>; more: boolean } | null {
  const others = withFilter(filters, "status", null);
  const text = others.toString();
  const read = async () => (text ? { text, ...(await get<Counted>("counts", queryOf(others))) } : null);
  const { value, reload } = useLoaded(read, [text]);
  useEffect(() => {
    let timer: number | undefined;
    const stop = onChanges((_, missed) => {
      timer ??= window.setTimeout(() => {
        timer = undefined;
        if (text) reload();
      }, missed ? 0 : COUNT_SECONDS * 1000);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [text]);
  if (!text) return whole.value && stats.value ? { runs: stats.value.runs, more: false } : null;
  return value?.text === text ? { runs: value.runs, more: value.next !== null } : null;
}

function Counts({ filters }: { filters: URLSearchParams }) {
  const counted = useCounts(filters);
  const strip = useChosenInSight(`${filters.getAll("status")} ${!!counted}`, ".chosen");
  if (!whole.value && !filters.size) return null;
  const chosen = filters.getAll("status");
  const all = counted && Object.values(counted.runs).reduce((sum, number) => sum + number, 0);
  const shown = (number: number | null) => (number === null ? "…" : count(number) + (counted?.more ? "+" : ""));
  return (
    <div class="counts" role="group" aria-label="Runs by status" ref={strip}>
      <a class={`count${chosen.length ? "" : " chosen"}`} href={link(["runs"], withFilter(filters, "status", null))}>
        <span class="number">{shown(all)}</span> <span class="muted">all</span>
      </a>
      {STATUSES.map((status) => {
        const number = counted ? counted.runs[status] ?? 0 : null;
        if (!number && !chosen.includes(status) && (status === "cancel_requested" || status === "timeout")) return null;
        return (
          <a
            key={status} class={`count${chosen.includes(status) ? " chosen" : ""}`}
            href={link(["runs"], withFilter(filters, "status", status))}
          >
            <span class="number">{shown(number)}</span> <Status status={status} />
          </a>
        );
      })}
    </div>
  );
}

function Views({ current }: { current: string }) {
  return (
    <span class="views">
      {savedViews.value.map((view) => (
        <span class={`chip${view.query === current ? " chosen" : ""}`} key={view.name}>
          <a href={`#/runs?${view.query}`}><T text={short(view.name, 30)} /></a>
          <button
            type="button" class="copy" aria-label={`Delete the view ${view.name}`}
            onClick={() => saveViews((views) => views.filter((other) => other.name !== view.name))}
          >
            <Icon name="close" />
          </button>
        </span>
      ))}
    </span>
  );
}

function SaveView({ query, onClose }: { query: string; onClose: () => void }) {
  const [name, setName] = useState("");
  const save = (event: Event) => {
    event.preventDefault();
    if (!name.trim()) return;
    saveViews((views) => [...views.filter((view) => view.name !== name.trim()), { name: name.trim(), query }]);
    onClose();
  };
  return (
    <Dialog title="Save this view" onClose={onClose}>
      <form onSubmit={save}>
        <p class="muted">The name and the filters stay in this browser.</p>
        <label class="field">
          <span>Name</span>
          <input type="text" value={name} maxLength={60} onInput={(event) => setName(event.currentTarget.value)} autofocus />
        </label>
        <div class="dialog-foot">
          <Button onClick={onClose}>Back</Button>
          <button type="submit" class="button primary" disabled={!name.trim()}>Save</button>
        </div>
      </form>
    </Dialog>
  );
}

interface Meaning {
  title: string;
  detail: string;
  pick: () => unknown;
}

const ENDING = /^…?([0-9a-f.-]{6,})$/; // the end of an id, as the list shows it
const SEARCHED_PAGES = 10; // pages of a thousand runs in which the end of an id is looked for

function Search({ filters, list }: { filters: URLSearchParams; list: RunList }) {
  const [text, setText] = useState("");
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(0);
  const input = useRef<HTMLInputElement>(null);
  useKeys([
    { keys: "/", does: "Search runs", run: () => input.current?.focus() },
    { keys: "f", does: "Search runs", run: () => input.current?.focus() },
  ]);
  const wanted = text.trim();
  const filter = (name: string, value: string) => {
    go(["runs"], withFilter(filters, name, value));
    setText("");
    setOpen(false);
  };
  const openById = async () => {
    try {
      const run = await get<RunRecord>(runPath(wanted));
      setText("");
      go(["runs", run.run_id]);
    } catch (error) {
      tell(error instanceof Problem && error.status === 404 ? `No run has the id ${short(wanted, 60)}.` : sentence(error), true);
    }
  };
  const openByEnd = async (end: string) => {
    let found = list.rows.find((run) => run.run_id.endsWith(end))?.run_id;
    let before: string | undefined;
    for (let number = 0; number < SEARCHED_PAGES && !found; number++) {
      const page = await get<Page<RunRecord>>("runs", { limit: 1000, before }).catch((error: unknown) => tell(sentence(error), true));
      if (!page) return;
      found = page.items.find((run) => run.run_id.endsWith(end))?.run_id;
      before = page.items.at(-1)?.run_id;
      if (page.next === null) break;
    }
    if (!found) return tell(`No id of the newest ${count(SEARCHED_PAGES * 1000)} runs ends with ${end}.`, true);
    setText("");
    go(["runs", found]);
  };
  const meanings: Meaning[] = [];
  if (wanted) {
    const end = ENDING.exec(wanted)?.[1];
    if (end && wanted.length < 36) meanings.push({ title: `…${end}`, detail: "open the run whose id ends so", pick: () => openByEnd(end) });
    const pair = /^(?:attr\.)?([^=\s]{1,100})=(.*)$/.exec(wanted);
    if (pair) meanings.push({ title: `${pair[1]} = ${pair[2]}`, detail: "attribute", pick: () => filter(`attr.${pair[1]}`, pair[2]!) });
    if (/^[0-9a-f]{8}-|^[0-9a-f-]{20,}/.test(wanted)) meanings.push({ title: wanted, detail: "open the run with this id", pick: openById });
    for (const entry of entries.value) {
      if (entry.entry_id.toLowerCase().includes(wanted.toLowerCase()) && meanings.length < 6) {
        meanings.push({ title: entry.entry_id, detail: `job of ${entry.plugin_id}`, pick: () => filter("entry_id", entry.entry_id) });
      }
    }
    for (const status of STATUSES) {
      if (words(status).startsWith(wanted.toLowerCase())) meanings.push({ title: words(status), detail: "status", pick: () => filter("status", status) });
    }
    for (const queue of Object.keys(stats.value?.queues ?? {})) {
      if (queue.toLowerCase().startsWith(wanted.toLowerCase()) && meanings.length < 8) {
        meanings.push({ title: queue, detail: "queue", pick: () => filter("queue", queue) });
      }
    }
    meanings.push({ title: wanted, detail: "idempotency key", pick: () => filter("idempotency_key", wanted) });
    if (!meanings.some((one) => one.pick === openById)) meanings.push({ title: wanted, detail: "open the run with this id", pick: openById });
    if (!entries.value.some((one) => one.entry_id === wanted)) meanings.push({ title: wanted, detail: "job name", pick: () => filter("entry_id", wanted) });
  }
  const chosen = Math.min(at, meanings.length - 1);
  const press = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, meanings.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
    else if (event.key === "Enter" && meanings[chosen]) void meanings[chosen].pick();
    else if (event.key === "Escape") {
      if (!text) input.current?.blur();
      setText("");
      setOpen(false);
    } else return;
    event.preventDefault();
  };
  return (
    <div class="search">
      <Icon name="search" />
      <input
        ref={input} type="text" role="combobox" aria-label="Search runs by id, key, job or attribute" autocomplete="off" spellcheck={false}
        placeholder="Search: id, key, job, attribute=value" value={text} aria-expanded={open && meanings.length > 0}
        aria-controls="meanings" aria-activedescendant={open && meanings.length ? `meaning-${chosen}` : undefined}
        onInput={(event) => { setText(event.currentTarget.value); setAt(0); setOpen(true); }}
        onFocus={() => setOpen(true)} onBlur={() => setTimeout(() => setOpen(false), 150)} onKeyDown={press}
      />
      <kbd aria-hidden="true">/</kbd>
      <ul id="meanings" role="listbox" aria-label="What to search for" hidden={!open || !meanings.length}>
        {meanings.map((one, index) => (
          <li
            key={one.detail + one.title} id={`meaning-${index}`} role="option" aria-selected={index === chosen}
            onMouseDown={(event) => { event.preventDefault(); void one.pick(); }}
          >
            <T text={short(one.title, 60)} /> <span class="muted">{one.detail}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

const ROW = 38;
const ROW_NARROW = 62;

// Where the user was in a list. It belongs to the entry of the browser's history, so that the way back finds it.
interface Place {
  run: string; // the first row in sight
  shift: number; // pixels of it that are out of sight
  chosen: string | null;
}

const REACHED_MAX = 20_000; // rows that the way back loads at most

function Table({ list, filtered }: { list: RunList; filtered: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const space = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState({ top: 0, height: 800 });
  const returned = useRef((history.state as { list?: Place } | null)?.list);
  const [chosen, setChosen] = useState<string | null>(returned.current?.chosen ?? null);
  const narrow = useNarrow();
  const row = narrow ? ROW_NARROW : ROW;
  list.version.value; // draws again with every change
  const rows = list.rows;
  const from = Math.max(0, Math.floor(place.top / row) - 10);
  const to = Math.min(rows.length, Math.ceil((place.top + place.height) / row) + 10);

  useEffect(() => {
    const element = box.current!;
    const look = () => {
      list.atTop = element.scrollTop < row;
      setPlace({ top: element.scrollTop, height: element.clientHeight });
    };
    look();
    const watcher = new ResizeObserver(look);
    watcher.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      watcher.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, [list, row]);
  useLayoutEffect(() => { // before the browser paints: a row without its place would be a gap
    space.current!.style.height = `${rows.length * row}px`;
    for (const element of space.current!.children as unknown as HTMLElement[]) {
      element.style.transform = `translateY(${Number(element.dataset.at) * row}px)`;
    }
    if (list.added) {
      // New rows at the top must not move what the user reads further down.
      if (!list.atTop) box.current!.scrollTop += list.added * row;
      list.added = 0;
    }
    if (to > rows.length - 200 && !list.error.value) void list.more();
  });

  useEffect(() => {
    const place = returned.current;
    if (!place) return;
    void list.reach(place.run, REACHED_MAX).then((at) => {
      returned.current = undefined;
      requestAnimationFrame(() => { // when the rows have their height
        if (at > 0 && box.current) box.current.scrollTop = at * row + place.shift;
      });
    });
  }, [list]);
  const remember = () => {
    const top = box.current?.scrollTop ?? 0;
    const run = rows[Math.floor(top / row)]?.run_id;
    if (run && !returned.current) history.replaceState({ list: { run, shift: top % row, chosen } satisfies Place }, "");
  };
  const remembering = useRef(remember);
  remembering.current = remember;
  useEffect(() => { // not with every pixel: browsers limit how often an entry may change
    const timer = setTimeout(() => { if (route.peek().parts[0] === "runs" && !route.peek().parts[1]) remembering.current(); }, 200);
    return () => clearTimeout(timer);
  }, [place, chosen]);

  const index = rows.findIndex((one) => one.run_id === chosen);
  const move = (step: number) => {
    if (!rows.length) return;
    const next = Math.max(0, Math.min(rows.length - 1, index + step));
    setChosen(rows[next]!.run_id);
    const element = box.current!;
    if (next * row < element.scrollTop) element.scrollTop = next * row;
    else if ((next + 1) * row > element.scrollTop + element.clientHeight) element.scrollTop = (next + 1) * row - element.clientHeight;
  };
  useKeys([
    { keys: "j", does: "Next run", run: () => move(1) },
    { keys: "ArrowDown", does: "Next run", run: () => move(1) },
    { keys: "k", does: "Previous run", run: () => move(-1) },
    { keys: "ArrowUp", does: "Previous run", run: () => move(-1) },
    { keys: "Enter", does: "Open the chosen run", run: () => { if (chosen) { remember(); go(["runs", chosen]); } } },
    { keys: "Home", does: "First run", run: () => move(-rows.length) },
    { keys: "End", does: "Last loaded run", run: () => move(rows.length) },
  ], [index, rows, row]);

  return (
    <div class="list" role="table" aria-label="Runs" aria-rowcount={list.ended ? rows.length : -1}>
      <div class="list-head" role="row">
        <span role="columnheader">Status</span>
        <span role="columnheader">Job</span>
        <span role="columnheader">Run</span>
        <span role="columnheader">Where it is</span>
        <span role="columnheader" class="right">Took</span>
        <span role="columnheader" class="right">Created</span>
      </div>
      <div class="list-body" ref={box} tabIndex={0} role="rowgroup" aria-label="Runs, newest first" onClickCapture={remember}>
        <div class="list-space" ref={space} role="presentation">
          {rows.slice(from, to).map((run, offset) => (
            <Row key={run.run_id} run={run} at={from + offset} chosen={run.run_id === chosen} />
          ))}
        </div>
        {list.error.value !== null && <Failure error={list.error.value} again={() => void list.more()} />}
        {!rows.length && list.ended && (filtered
          ? <Empty title="No run matches these filters"><Button onClick={() => go(["runs"])}>Show all runs</Button></Empty>
          : (
            <Empty title="No runs yet">
              {may("submit") && entries.value.length > 0
                ? <p><a href="#/start">Start one here</a>, or with <code>job.start(…)</code> in your code.</p>
                : <p>Start one with <code>job.start(…)</code> in your code, or with <code>holdfast start</code>.</p>}
            </Empty>
          ))}
        {list.loading.value && <p class="loading muted" role="status">Reading runs…</p>}
      </div>
    </div>
  );
}

function Row({ run, at, chosen }: { run: RunRecord; at: number; chosen: boolean }) {
  const attributes = Object.entries(run.attributes ?? {});
  const end = run.finished_at ?? (FINAL.has(run.status) ? run.updated_at : now.value);
  return (
    <div class={`row${chosen ? " chosen" : ""}`} role="row" data-at={at} aria-rowindex={at + 1} aria-selected={chosen}>
      <span role="cell"><Status status={run.status} /></span>
      <span role="cell" class="cut">
        <a class="row-link" href={link(["runs", run.run_id])} tabIndex={-1}><T text={short(run.entry_id, 60)} /></a>
        {run.idempotency_key && <T class="muted key" text={short(run.idempotency_key, 40)} />}
      </span>
      <span role="cell" class="mono muted cut" title={run.run_id}>{shortId(run.run_id)}</span>
      <span role="cell" class="cut where">
        {run.status === "canceled" ? run.cancel_reason && <T class="muted" text={short(run.cancel_reason, 120)} />
          : run.error && FINAL.has(run.status)
            ? <T class="bad" text={short(`${run.error.code}: ${run.error.message}`, 120)} />
            : !FINAL.has(run.status) && <Where run={run} />}
        {run.progress !== null && run.progress !== undefined && !FINAL.has(run.status) && <Bar value={run.progress} />}
        {attributes.length > 0 && (
          <span class="attributes">{attributes.map(([name, value]) => (
            <span class="attribute" key={name} title={visible(`${name}=${String(value)}`)}><T text={short(name, 12)} />=<T text={short(String(value), 24)} /></span>
          ))}</span>
        )}
      </span>
      <span role="cell" class="right muted took">{run.started_at ? duration(end - run.started_at) : "–"}</span>
      <span role="cell" class="right muted"><Time at={run.created_at} /></span>
    </div>
  );
}

const STAGES = new Set(["parked", "waiting", "in_doubt", "retrying", "paused"]); // of the engine, with shapes of their own

const WHY_MS = 300; // a row that is in sight for so long asks the server what its run waits for
const WHY_KEPT = 500;
const whys = new Map<string, string>();
let asking: Promise<unknown> = Promise.resolve(); // one at a time

// The shape before it says that the run waits.
function brief(explanation: string): string {
  return explanation.replace(/^It waits for (a person to|the|its) /, "").replace(/^It /, "").replace(/:[0-9a-f]{8,}/g, "");
}

// What a waiting run waits for, in the words of `holdfast explain`.
function useWhy(run: RunRecord, waits: boolean): string {
  const key = `${run.run_id} ${run.updated_at} ${run.stage}`;
  const [, setRead] = useState("");
  useEffect(() => {
    if (!waits || whys.has(key)) return;
    let shown = true;
    const read = async () => {
      if (!shown) return;
      const { explanation } = await get<{ explanation: string }>(runPath(run.run_id, "/explain"));
      if (whys.size >= WHY_KEPT) whys.delete(whys.keys().next().value!);
      whys.set(key, brief(explanation).split(/, until |, without |: | \(|\. |\.$/)[0]!);
      if (shown) setRead(key);
    };
    const timer = setTimeout(() => (asking = asking.then(read).catch(() => undefined)), WHY_MS);
    return () => {
      shown = false;
      clearTimeout(timer);
    };
  }, [key, waits]);
  return whys.get(key) ?? "";
}

function Where({ run }: { run: RunRecord }) {
  const own = STAGES.has(run.stage ?? "");
  const why = useWhy(run, own);
  return (
    <>
      {own && (why ? <><Shape status={run.stage!} /><span class="away">{words(run.stage!)}</span></> : <Status status={run.stage!} />)}
      <T text={short([own ? why : run.stage, run.message].filter(Boolean).join(" · "), 120)} />
    </>
  );
}

export function useNarrow(): boolean {
  const [narrow, setNarrow] = useState(() => matchMedia("(max-width: 720px)").matches);
  useEffect(() => {
    const media = matchMedia("(max-width: 720px)");
    const look = () => setNarrow(media.matches);
    media.addEventListener("change", look);
    return () => media.removeEventListener("change", look);
  }, []);
  return narrow;
}

interface BulkPage {
  run_ids: string[];
  refused?: { run_id: string; code: string; detail: string }[];
  next?: string | null;
}

const OTHERS = "The others were left alone.";

interface Work {
  acted: number;
  refused: { run_id: string; detail: string }[];
  ended: boolean; // all pages are done; otherwise the user stopped it
}

const POSSIBLE = { cancel: ["queued", "running", "cancel_requested"], retry: ["failed", "timeout"] };

// Count first; then ask; then act page by page, until the end or until the user stops it.
function Bulk({ verb, filters, onClose }: { verb: "cancel" | "retry"; filters: URLSearchParams; onClose: () => void }) {
  const [found, setFound] = useState<number | null>(null);
  const [counted, setCounted] = useState(0);
  const [error, setError] = useState<unknown>(null);
  const [work, setWork] = useState<Work | null>(null);
  const [step, setStep] = useState<"acting" | "stopping" | "done">("done");
  const going = useRef(true);
  const shown = useRef(true);
  const countAll = async () => {
    const chosen = filters.getAll("status");
    const status = POSSIBLE[verb].filter((one) => !chosen.length || chosen.includes(one));
    let sum = 0;
    let cursor: string | null | undefined;
    do {
      if (!status.length) break;
      const part: Counted = await get("counts", { ...queryOf(filters), newest: "yes", status, cursor });
      for (const one of status) sum += part.runs[one] ?? 0;
      setCounted(sum);
      cursor = part.next;
    } while (cursor && going.current);
    setFound(sum);
  };
  useEffect(() => {
    countAll().catch(setError);
    return () => void (going.current = shown.current = false);
  }, []);
  const stop = () => {
    going.current = false;
    setStep("stopping");
  };
  const done = (result: Work) =>
    `${count(result.acted)} ${result.acted === 1 ? "run was" : "runs were"} ${verb === "cancel" ? "asked to cancel" : "retried"}.`;
  const act = async (reason: string) => {
    const result: Work = { acted: 0, refused: [], ended: false };
    setStep("acting");
    setWork({ ...result });
    try {
      let cursor: string | null | undefined;
      do {
        const page: BulkPage = await post(`runs/${verb}`, { reason: reason || null }, { ...queryOf(filters), cursor });
        result.acted += page.run_ids.length;
        result.refused.push(...(page.refused ?? []));
        result.ended = !page.next;
        cursor = page.next;
        setWork({ ...result });
      } while (cursor && going.current);
    } catch (caught) {
      setError(caught);
    }
    setStep("done");
    refresh();
    if (!shown.current) tell(result.ended ? done(result) : `Stopped. ${done(result)} ${OTHERS}`, !result.ended); // the user went elsewhere
    return false;
  };
  const title = verb === "cancel" ? "Cancel runs" : "Retry runs";
  if (work) {
    return (
      <Dialog title={title} onClose={step === "done" ? onClose : stop}>
        {error !== null && <Failure error={error} />}
        <p role="status">{step !== "done"
          ? `${count(work.acted)} of ${count(found ?? 0)} done…${step === "stopping" ? " Stops." : ""}`
          : <>{!work.ended && "Stopped. "}<strong>{done(work)}</strong>{!work.ended && ` ${OTHERS}`}</>}</p>
        {work.refused.length > 0 && (
          <>
            <p>{count(work.refused.length)} refused:</p>
            <ul class="plain">{work.refused.slice(0, 20).map((one) => <li key={one.run_id}><span class="mono">{shortId(one.run_id)}</span> <T text={one.detail} /></li>)}</ul>
          </>
        )}
        <div class="dialog-foot">
          {step !== "done" ? <Button kind="danger" onClick={stop} disabled={step === "stopping"}>Stop</Button> : <Button kind="primary" onClick={onClose}>Close</Button>}
        </div>
      </Dialog>
    );
  }
  if (error !== null || found === null || found === 0) {
    return (
      <Dialog title={title} onClose={onClose}>
        {error !== null ? <Failure error={error} /> : found === 0
          ? <p>No run that matches these filters can be {verb === "cancel" ? "cancelled: all of them have ended" : "retried: only failed and timed out runs can"}.</p>
          : <p role="status">Counting… {count(counted)}</p>}
        <div class="dialog-foot"><Button onClick={onClose}>Close</Button></div>
      </Dialog>
    );
  }
  return (
    <Confirm
      title={title} verb={`${verb === "cancel" ? "Cancel" : "Retry"} ${count(found)} ${found === 1 ? "run" : "runs"}`} danger={verb === "cancel"}
      reason={verb === "retry" ? "needed" : "wanted"} typed={found > TYPED_ABOVE ? String(found) : undefined}
      onClose={onClose} onYes={act}
    >
      <p>
        <strong>{count(found)}</strong> {found === 1 ? "run matches" : "runs match"} the filters now. {verb === "cancel"
          ? "Each is asked to stop at its next step, and its cleanup code runs."
          : "Each gets a new run that continues after the last recorded step."}
      </p>
    </Confirm>
  );
}
