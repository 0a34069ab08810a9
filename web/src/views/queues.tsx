// Queues and their limits, with charts of the last hour.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { get, Problem, send } from "../api";
import { count, duration, local, short } from "../format";
import { link } from "../router";
import { may, readStats, stats, theme, whole } from "../session";
import { onChanges } from "../stream";
import type { Page, QueueState, Series } from "../types";
import { Button, Confirm, Dialog, Empty, Failure, Status, T, tell, Time, useActions, useLoaded } from "../ui";
import { missing } from "./events";

// Call `reload` when runs change, at most every `seconds`.
export function useReload(reload: () => void, seconds: number): void {
  useEffect(() => {
    let timer: number | undefined;
    const stop = onChanges(() => {
      timer ??= window.setTimeout(() => {
        timer = undefined;
        reload();
      }, seconds * 1000);
    });
    const clock = setInterval(() => { if (!document.hidden) reload(); }, 5000);
    return () => {
      stop();
      clearTimeout(timer);
      clearInterval(clock);
    };
  }, []);
}

export function NotForGroups() {
  return <Empty title="Your token belongs to one group"><p>This view covers the whole store. It needs a token without a group.</p></Empty>;
}

export function QueuesView() {
  const { value, error, reload } = useLoaded(() => (whole.value ? get<Page<QueueState>>("limits") : Promise.resolve(null)), [whole.value]);
  useReload(() => { reload(); void readStats(); }, 2);
  if (!whole.value) return <section class="view"><h1>Queues and limits</h1><NotForGroups /></section>;
  const limited = new Map((value?.items ?? []).map((state) => [state.limits.queue, state]));
  const names = [...new Set([...limited.keys(), ...Object.keys(stats.value?.queues ?? {})])].sort();
  return (
    <section class="view">
      <header class="head">
        <h1>Queues and limits</h1>
        <p class="muted">{stats.value?.oldest_due_seconds != null
          ? <>The oldest due job has waited {duration(stats.value.oldest_due_seconds)} for a worker.</> : "No due job waits for a worker."}</p>
      </header>
      <Charts />
      {error !== null && <Failure error={error} again={reload} />}
      {value && !names.length && <Empty title="No queues yet"><p>A queue appears here with its first job, and then its limits can be set here. <code>holdfast limits</code> sets limits before that.</p></Empty>}
      {names.length > 0 && (
        <div class="table-box" tabIndex={0} role="group" aria-label="Queues">
          <table>
            <caption class="away">Queues</caption>
            <thead><tr><th>Queue</th><th>State</th><th class="right">Due</th><th class="right">Later</th><th class="right">Running</th><th class="right">Waiting</th><th>Limits</th><th><span class="away">Actions</span></th></tr></thead>
            <tbody>{names.map((name) => <QueueRow key={name} name={name} state={limited.get(name)} counts={stats.value?.queues[name] ?? {}} reload={reload} />)}</tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function QueueRow({ name, state, counts, reload }: { name: string; state?: QueueState; counts: Record<string, number>; reload: () => void }) {
  const [verb, setVerb] = useState<"pause" | "resume" | "edit" | null>(null);
  const close = () => setVerb(null);
  const path = `limits/${encodeURIComponent(name)}`;
  const send = useActions();
  const act = (what: string) => async () => {
    await send(`${path}/${what}`, {});
    tell(what === "pause" ? `The queue ${name} is paused.` : `The queue ${name} goes on.`);
    reload();
  };
  const paused = state?.limits.paused ?? false;
  const cell = (key: string) => <td class="right">{counts[key] !== undefined ? count(counts[key]!) : <span class="muted">–</span>}</td>;
  const held = state?.held_until ?? null;
  return (
    <tr>
      <td class="name"><a href={link(["runs"], new URLSearchParams([["queue", name]]))}><T text={short(name, 80)} /></a></td>
      <td><Status status={paused ? "paused" : "active"} />{held ? <span class="muted"> held until <Time at={held} /></span> : null}</td>
      {cell("queued")}{cell("delayed")}{cell("running")}{cell("waiting")}
      <td class="muted"><T text={limitsText(state)} />{state?.changed_by ? <> · <T text={short(state.changed_by, 40)} /></> : null}</td>
      <td class="right nowrap">
        {may("operate") && <Button onClick={() => setVerb(paused ? "resume" : "pause")}>{paused ? "Resume" : "Pause"}</Button>}{" "}
        {may("admin") && <Button onClick={() => setVerb("edit")}>Limits…</Button>}
        {(verb === "pause" || verb === "resume") && (
          <Confirm title={`${verb === "pause" ? "Pause" : "Resume"} the queue ${short(name, 60)}`} verb={verb === "pause" ? "Pause" : "Resume"} onClose={close} onYes={act(verb)}>
            <p>{verb === "pause" ? "No more of its jobs start until it is resumed. Running jobs go on." : "Its due jobs start again, within the limits."}</p>
          </Confirm>
        )}
        {verb === "edit" && <EditLimits path={path} name={name} onClose={close} reload={reload} />}
      </td>
    </tr>
  );
}

function limitsText(state: QueueState | undefined): string {
  const limits = state?.limits;
  if (!limits) return "none";
  const parts: string[] = [];
  if (limits.concurrency != null) parts.push(`${state!.running} of ${limits.concurrency} at once`);
  if (limits.group_concurrency != null) parts.push(`${limits.group_concurrency} per group`);
  if (limits.rate != null) parts.push(`${limits.rate} per ${duration(limits.rate_seconds ?? 1)}`);
  if (limits.burst != null) parts.push(`burst ${limits.burst}`);
  if (limits.depth != null) parts.push(`depth ${limits.depth}`);
  if (Object.keys(limits.weights ?? {}).length) parts.push("weights");
  return parts.join(", ") || "none";
}

const FIELDS: [string, string][] = [
  ["concurrency", "Jobs at once"], ["group_concurrency", "Jobs at once per group"], ["rate", "Starts per period"],
  ["rate_seconds", "Period in seconds"], ["burst", "Burst"], ["depth", "Most waiting jobs"],
];

// Whether a queue has these limits already.
function isSet(body: Record<string, unknown>, limits: QueueState["limits"]): boolean {
  const has = limits as unknown as Record<string, unknown>;
  return FIELDS.every(([field]) => field === "rate_seconds" && body[field] === undefined || (has[field] ?? null) === (body[field] ?? null))
    && JSON.stringify(has.weights ?? {}) === JSON.stringify(body.weights);
}

function EditLimits({ path, name, onClose, reload }: { path: string; name: string; onClose: () => void; reload: () => void }) {
  const { value, error } = useLoaded(async () => {
    const response = await send(path);
    return { tag: response.headers.get("etag") ?? "", state: (await response.json()) as QueueState };
  }, [path]);
  const [entered, setEntered] = useState<Record<string, string>>({});
  const [failed, setFailed] = useState<unknown>(null);
  const [tried, setTried] = useState(false);
  const now = (field: string) => entered[field] ?? String((value?.state.limits as unknown as Record<string, number | null>)?.[field] ?? "");
  const wrong = (field: string) => {
    const text = now(field).trim();
    return text !== "" && !/^\d+(\.\d+)?$/.test(text) ? "must be a number such as 1000 or 1.5" : "";
  };
  const save = async (event: Event) => {
    event.preventDefault();
    setTried(true);
    if (FIELDS.some(([field]) => wrong(field))) return;
    const body: Record<string, unknown> = { weights: value!.state.limits.weights ?? {} };
    for (const [field] of FIELDS) if (now(field).trim() !== "") body[field] = Number(now(field));
    const put = () => send(path, { method: "PUT", body: JSON.stringify(body), headers: { "Content-Type": "application/json", "If-Match": value!.tag } });
    try {
      await put().catch(async (caught: unknown) => {
        const changed = caught instanceof Problem && caught.status === 412;
        if (!changed || !isSet(body, (await get<QueueState>(path)).limits)) throw caught; // else the answer to a first try was lost
      });
      tell(`The limits of ${name} are set.`);
      reload();
      onClose();
    } catch (caught) {
      setFailed(caught instanceof Problem && caught.status === 412 ? new Problem(412, caught.code, "somebody else changed these limits meanwhile", "close and open this form again") : caught);
    }
  };
  return (
    <Dialog title={`Limits of ${short(name, 60)}`} onClose={onClose}>
      {error !== null && <Failure error={error} />}
      {value && (
        <form onSubmit={(event) => void save(event)}>
          <p class="muted">An empty field means no limit. Workers follow new limits at once.</p>
          <div class="grid-2">
            {FIELDS.map(([field, title]) => (
              <label class="field" key={field}><span>{title}</span>
                <input type="text" inputMode="decimal" value={now(field)} aria-invalid={tried && wrong(field) ? true : undefined} onInput={(event) => setEntered({ ...entered, [field]: event.currentTarget.value })} />
                {tried && wrong(field) && <span class="wrong" role="alert">{title} {wrong(field)}</span>}</label>
            ))}
          </div>
          {failed !== null && <Failure error={failed} />}
          <div class="dialog-foot"><Button onClick={onClose}>Back</Button><button type="submit" class="button primary">Save</button></div>
        </form>
      )}
    </Dialog>
  );
}

const MINUTE = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const LINES: [keyof Series, string, string][] = [
  ["starts", "Starts", "--running"], ["ends", "Ends", "--succeeded"], ["failures", "Failures", "--failed"],
];

export function Charts() {
  const { value, error, reload } = useLoaded(() => get<Series>("series", { minutes: 60 }), []);
  useReload(reload, 5);
  if (error !== null && !value) return <p class="muted pad"><T text={missingChart(error)} /></p>;
  if (!value) return <div class="charts" />;
  const known = (list: (number | null)[] | null) => list !== null && list.some((one) => one !== null);
  return (
    <div class="charts">
      {value.complete === false && value.since && <p class="muted">So many runs are in the store that the charts count only those created since {local(value.since)}.</p>}
      <Chart title="Per minute, in the last hour" series={value} lines={LINES} />
      {known(value.depth) && <Chart title="Due jobs" series={value} lines={[["depth", "Due", "--queued"]]} />}
      {known(value.oldest_seconds) && <Chart title="Oldest due job, seconds" series={value} lines={[["oldest_seconds", "Oldest", "--timeout"]]} />}
    </div>
  );
}

function missingChart(error: unknown): string {
  const shown = missing(error);
  return shown === error ? String((error as Error).message) : "This server does not offer charts yet.";
}

function Chart({ title, series, lines }: { title: string; series: Series; lines: [keyof Series, string, string][] }) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const columns = lines.map(([name]) => (series[name] as (number | null)[] | null) ?? []);
  const times = columns[0]!.map((_, at) => series.from + at * series.bucket_seconds);
  const chosen = theme.value;
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    const probe = document.createElement("span");
    place.current!.append(probe);
    const resolved = (name: string) => {
      probe.style.color = `var(${name})`; // canvas does not know light-dark(): the browser works it out
      return getComputedStyle(probe).color;
    };
    const axis = { stroke: resolved("--muted"), grid: { stroke: resolved("--line"), width: 1 }, ticks: { show: false }, font: `11px ${colour("--sans")}` };
    const made = new uPlot({
      width: place.current!.clientWidth || 300, height: 140, legend: { show: false }, cursor: { y: false, drag: { x: false, y: false } }, padding: [8, 34, 0, 0],
      scales: { y: { range: (_, __, most) => [0, Math.max(1, Math.ceil(most * 1.1))] } },
      axes: [{ ...axis, size: 28, space: 60, values: (_: uPlot, places: number[]) => places.map((at) => MINUTE.format(at * 1000)) }, { ...axis, size: 38, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10_000, 100_000] }],
      series: [{}, ...lines.map(([, label, name]) => ({ label, stroke: resolved(name), width: 1.75, points: { show: false } }))],
    }, [times, ...columns] as uPlot.AlignedData, place.current!);
    probe.remove();
    plot.current = made;
    const watcher = new ResizeObserver(() => made.setSize({ width: place.current?.clientWidth ?? 300, height: 140 }));
    watcher.observe(place.current!);
    return () => {
      watcher.disconnect();
      made.destroy();
    };
  }, [lines.length, chosen]);
  useEffect(() => plot.current?.setData([times, ...columns] as uPlot.AlignedData), [series]);
  const total = (at: number) => columns[at]!.reduce<number>((sum, one) => sum + (one ?? 0), 0);
  const newest = (at: number) => [...columns[at]!].reverse().find((one) => one !== null) ?? 0;
  const summed = lines.length > 1;
  return (
    <figure class="chart">
      <figcaption>
        <strong>{title}</strong>
        <span class="legend">{lines.map(([name, label, tone], at) => (
          <span key={name} class={`key-line key${tone}`}>{label} {summed ? count(total(at)) : `now ${count(Math.round(newest(at)))}`}</span>
        ))}</span>
      </figcaption>
      <div ref={place} class="chart-place" role="img" aria-label={`${title}. ${lines.map(([, label], at) => `${label}: ${summed ? total(at) : newest(at)}`).join(", ")}.`} />
    </figure>
  );
}

