// The timeline: a bar for every try of every call, waits, children and leases. Idle time is collapsed.
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock, duration, local, short, words } from "../format";
import type { View } from "../types";
import { Empty, RunLink, Shape, Status, T, toneOf } from "../ui";
import { useNarrow } from "./runs";

export interface Bar {
  row: number;
  from: number;
  to: number; // equals the time of the view while it goes on
  open: boolean;
  status: string;
  text: string; // for the tip and the table
  mark?: boolean; // a lease that was lost
  busy: boolean; // something ran; a wait does not keep the time axis stretched
}

export interface Row {
  label: string;
  kind: string;
  status: string;
  run?: string; // the run of a child
}

export interface Chart {
  rows: Row[];
  bars: Bar[];
  from: number;
  to: number;
}

const ACTS = new Set(["step", "tool"]);

// What a call is named, so that calls of one name differ: a call of a plan by its node, others by their number.
function nameOf(key: string, name: string, seen: Map<string, number>): string {
  const rest = name && key.startsWith(`${name}:`) ? key.slice(name.length + 1) : "";
  if (!name || (rest && !/^[0-9a-f]{8,}(\W|$)/.test(rest))) return rest || key;
  const number = (seen.get(name) ?? 0) + 1;
  seen.set(name, number);
  return number > 1 ? `${name} ${number}` : name;
}

// The rows and bars of a view at a time.
export function chartOf(view: View, at: number): Chart {
  const rows: Row[] = [];
  const bars: Bar[] = [];
  const add = (row: Row) => rows.push(row) - 1;
  const leases = Object.entries(view.leases ?? {}).sort((one, other) => Number(one[0]) - Number(other[0]));
  if (leases.length) {
    const row = add({ label: "workers", kind: "lease", status: view.state ?? "" });
    for (const [number, lease] of leases) {
      const how = lease.how ?? "running";
      const ends = lease.how === undefined ? "runs" : how === "lost" ? "lost: the worker died or lost its lease" : `ended: ${words(how)}`;
      bars.push({
        row, from: lease.from, to: lease.to ?? at, open: lease.to === undefined, status: how === "lost" ? "lost" : "lease",
        text: `attempt ${number} on ${lease.worker}${lease.build ? `, build ${lease.build}` : ""}, ${ends}`, mark: how === "lost", busy: true,
      });
    }
  }
  const first = (tries: Record<string, { from: number }> | undefined) => Math.min(...Object.values(tries ?? {}).map((one) => one.from));
  const calls = Object.entries(view.calls ?? {}).map(([key, call]) => ({ key, call, from: first(call.tries) }));
  calls.sort((one, other) => one.from - other.from);
  const seen = new Map<string, number>();
  for (const { key, call } of calls) {
    const name = nameOf(key, call.name, seen);
    const row = add({ label: name, kind: call.kind, status: call.status, run: call.run });
    const reused = call.reused ? ", reused from the run it was forked from" : "";
    const tries = Object.entries(call.tries ?? {});
    for (const [number, one] of tries) {
      const error = one.error ? `: ${short(one.error, 200)}` : "";
      const worker = one.worker ? ` on ${one.worker}` : "";
      const which = tries.length > 1 || ACTS.has(call.kind) ? `, try ${number}` : "";
      bars.push({
        row, from: one.from, to: one.to ?? at, open: one.to === undefined, status: one.status, busy: ACTS.has(call.kind),
        text: `${call.kind} ${name}${which}${worker}, ${words(one.status)}${reused}${error}`,
      });
      if (one.status === "in_doubt" || one.settled !== undefined) {
        const answer = call.answer ? `answered ${words(call.answer.answer)}${call.answer.by ? ` by ${call.answer.by}` : ""}` : "waits for an answer";
        bars.push({
          row, from: one.to ?? one.from, to: one.settled ?? at, open: one.settled === undefined, status: "waiting", busy: false,
          text: `${name} in doubt, ${answer}`,
        });
      }
    }
  }
  for (const [id, child] of Object.entries(view.children ?? {})) {
    if (!child.call || !view.calls?.[child.call]) add({ label: child.entry, kind: "child", status: child.status, run: id });
  }
  for (const wait of Object.values(view.waiting ?? {})) {
    if (wait.node && view.calls?.[wait.node]) continue; // its call has the bar
    const row = add({ label: wait.kind === "signal" ? wait.key : words(wait.kind), kind: "wait", status: "waiting" });
    bars.push({ row, from: wait.since, to: at, open: true, status: "waiting", text: `waits for ${words(wait.kind)} ${wait.key}`, busy: false });
  }
  const starts = bars.map((bar) => bar.from);
  return { rows, bars, from: starts.reduce((one, other) => Math.min(one, other), at), to: at };
}

export interface Scale {
  width: number;
  x: (at: number) => number;
  gaps: { from: number; to: number; x: number }[]; // collapsed idle time
}

const GAP = 34; // pixels of a collapsed stretch

// Map time to pixels. Stretches in which no call and no lease ran are collapsed if they are long.
export function scaleOf(chart: Chart, width: number): Scale {
  const busy = chart.bars.filter((bar) => bar.busy).map((bar) => [bar.from, bar.to] as const);
  busy.sort((one, other) => one[0] - other[0]);
  const joined: [number, number][] = [];
  for (const [from, to] of [[chart.from, chart.from] as const, ...busy, [chart.to, chart.to] as const]) {
    const last = joined[joined.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else joined.push([from, to]);
  }
  const active = joined.reduce((sum, [from, to]) => sum + to - from, 0);
  const long = Math.max(active * 0.15, 0.5);
  const pieces: { from: number; to: number; gap: boolean }[] = [];
  joined.forEach(([from, to], at) => {
    const before = joined[at - 1];
    if (before && from - before[1] > long) pieces.push({ from: before[1], to: from, gap: true });
    else if (before && pieces.length) pieces[pieces.length - 1]!.to = from;
    const last = pieces[pieces.length - 1];
    if (last && !last.gap) last.to = to;
    else pieces.push({ from, to, gap: false });
  });
  const gaps = pieces.filter((piece) => piece.gap).length;
  const shown = pieces.reduce((sum, piece) => sum + (piece.gap ? 0 : piece.to - piece.from), 0);
  const gap = Math.min(GAP, (width * 0.4) / Math.max(1, gaps));
  const left = Math.max(10, width - gaps * gap);
  const places: { from: number; to: number; x: number; width: number; gap: boolean }[] = [];
  let x = 0;
  for (const piece of pieces) {
    const size = piece.gap ? gap : shown > 0 ? ((piece.to - piece.from) / shown) * left : left / pieces.length;
    places.push({ ...piece, x, width: size });
    x += size;
  }
  return {
    width,
    gaps: places.filter((place) => place.gap).map((place) => ({ from: place.from, to: place.to, x: place.x + place.width / 2 })),
    x: (at) => {
      let low = 0;
      let high = places.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (places[middle]!.to < at) low = middle + 1;
        else high = middle;
      }
      const place = places[low]!;
      const span = place.to - place.from;
      return place.x + (span > 0 ? Math.max(0, Math.min(1, (at - place.from) / span)) : 0) * place.width;
    },
  };
}

const ROW = 24;
const CANVAS_ABOVE = 2000; // bars; a browser draws more than that faster without elements

export function Timeline({ view, at, whole, end }: { view: View; at: number; whole: View; end: number }) {
  const [table, setTable] = useState(false);
  const [width, setWidth] = useState(800);
  const [tip, setTip] = useState("");
  const box = useRef<HTMLDivElement>(null);
  const narrow = useNarrow();
  const label = narrow ? 104 : 220;
  // The scale is that of the whole run, so that nothing jumps while the slider moves.
  const scale = useMemo(() => scaleOf(chartOf(whole, end), Math.max(60, width - label - 14)), [whole, end, width, label]);
  const chart = chartOf(view, at);
  useLayoutEffect(() => {
    const measure = () => setWidth(box.current!.clientWidth);
    const watcher = new ResizeObserver(measure);
    watcher.observe(box.current!);
    measure(); // before the first picture, so that it never shows the wrong width
    return () => watcher.disconnect();
  }, []);
  const large = chart.bars.length > CANVAS_ABOVE;
  return (
    <div class="timeline" ref={box}>
      <div class="timeline-tools">
        <span class="muted" aria-live="polite">{tip || `${chart.rows.length} rows, ${chart.bars.length} bars${scale.gaps.length ? ", idle time collapsed" : ""}`}</span>
        <div class="segments" role="group" aria-label="Show the timeline as">
          <button type="button" aria-pressed={!table} onClick={() => setTable(false)}>Bars</button>
          <button type="button" aria-pressed={table} onClick={() => setTable(true)}>Table</button>
        </div>
      </div>
      {!chart.rows.length && <Empty title="Nothing has run yet"><p>Bars appear when a worker takes the run.</p></Empty>}
      {chart.rows.length > 0 && (table
        ? <BarTable chart={chart} />
        : <Bars chart={chart} scale={scale} label={label} at={at} end={end} large={large} onTip={setTip} />)}
    </div>
  );
}

const VISIBLE = 560; // pixels; longer timelines scroll

function Bars(props: { chart: Chart; scale: Scale; label: number; at: number; end: number; large: boolean; onTip: (text: string) => void }) {
  const { chart, scale, label, at, large, onTip } = props;
  const height = chart.rows.length * ROW;
  const total = label + scale.width + 14;
  const [top, setTop] = useState(0);
  const from = Math.max(0, Math.floor(top / ROW) - 4);
  const to = Math.min(chart.rows.length, Math.ceil((top + VISIBLE) / ROW) + 4);
  const rows = chart.rows.slice(from, to);
  const bars = chart.bars.filter((bar) => bar.row >= from && bar.row < to);
  const inner = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    inner.current!.style.height = `${height + 8}px`;
  }, [height]);
  const summary = `Timeline with ${chart.rows.length} rows. The table shows the same as text.`;
  return (
    <div class="bars-box">
      <Axis scale={scale} label={label} total={total} from={chart.from} to={props.end} />
      <div class="bars-scroll" onScroll={(event) => setTop(event.currentTarget.scrollTop)} tabIndex={0} role="group" aria-label={summary}>
        <div class="bars-inner" ref={inner}>
          {large
            ? <Canvas chart={chart} rows={rows} bars={bars} from={from} scale={scale} label={label} total={total} at={at} onTip={onTip} />
            : (
              <svg class="bars" width={total} height={height + 8} role="img" aria-label={summary}>
                {scale.gaps.map((gap) => <line key={gap.from} x1={label + gap.x} x2={label + gap.x} y1="0" y2={height} class="gap-line" />)}
                {rows.map((row, offset) => (
                  <g key={from + offset} transform={`translate(0 ${(from + offset) * ROW})`}>
                    {(from + offset) % 2 === 1 && <rect x="0" width={total} height={ROW} class="stripe" />}
                    <text x="22" y="16" class={`bar-label kind-${row.kind}`}>{fit(row.label, label - 28)}<title>{row.label}</title></text>
                    <g transform="translate(4 6)"><Shape status={row.status} /></g>
                  </g>
                ))}
                {bars.map((bar, index) => {
                  const x = label + scale.x(bar.from);
                  const size = Math.max(3, label + scale.x(bar.to) - x);
                  return (
                    <g key={index} onMouseEnter={() => onTip(tipOf(bar))} onMouseLeave={() => onTip("")}>
                      <rect
                        x={x} y={bar.row * ROW + 5} width={size} height={ROW - 10} rx="3"
                        class={`try tone-${toneOf(bar.status)} kind-${chart.rows[bar.row]!.kind}${bar.open ? " open" : ""}`}
                      />
                      {bar.mark && <path d={`M${x + size - 4} ${bar.row * ROW + 2}l8 8m0-8l-8 8`} class="lost" />}
                      <title>{tipOf(bar)}</title>
                    </g>
                  );
                })}
                <line x1={label + scale.x(at)} x2={label + scale.x(at)} y1="0" y2={height} class="now-line" />
              </svg>
            )}
        </div>
      </div>
    </div>
  );
}

function tipOf(bar: Bar): string {
  return `${short(bar.text, 300)} · ${clock(bar.from)} · ${bar.open ? "so far " : ""}${duration(bar.to - bar.from)}`;
}

function fit(text: string, pixels: number): string {
  return short(text, Math.max(6, Math.floor(pixels / 7)));
}

function Axis({ scale, label, total, from, to }: { scale: Scale; label: number; total: number; from: number; to: number }) {
  const last = scale.gaps[scale.gaps.length - 1];
  return (
    <svg class="axis" width={total} height="20" aria-hidden="true">
      {!(scale.gaps[0] && scale.gaps[0].x < 90) && <text x={label} y="13">{clock(from)}</text>}
      {scale.gaps.map((gap) => (
        <text key={gap.from} x={label + gap.x} y="13" text-anchor="middle" class="gap-text">⋯ {duration(gap.to - gap.from)}</text>
      ))}
      {!(last && last.x > scale.width - 90) && scale.width > 220 && <text x={label + scale.width} y="13" text-anchor="end">{clock(to)}</text>}
    </svg>
  );
}

function Canvas(props: {
  chart: Chart; rows: Row[]; bars: Bar[]; from: number; scale: Scale; label: number; total: number; at: number; onTip: (text: string) => void;
}) {
  const { chart, rows, bars, from, scale, label, total, at, onTip } = props;
  const place = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const canvas = place.current!;
    const ratio = devicePixelRatio || 1;
    const height = rows.length * ROW;
    canvas.width = total * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${total}px`;
    canvas.style.height = `${height}px`;
    canvas.style.top = `${from * ROW}px`;
    const pen = canvas.getContext("2d")!;
    const style = getComputedStyle(canvas);
    const colour = (name: string) => style.getPropertyValue(name).trim() || "#888";
    const tones = new Map<string, string>();
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, total, height);
    pen.font = `12px ${style.fontFamily}`;
    rows.forEach((row, offset) => {
      if ((from + offset) % 2) {
        pen.fillStyle = colour("--stripe");
        pen.fillRect(0, offset * ROW, total, ROW);
      }
      pen.fillStyle = colour("--text");
      pen.fillText(fit(row.label, label - 28), 22, offset * ROW + 16);
    });
    for (const bar of bars) {
      const tone = toneOf(bar.status);
      if (!tones.has(tone)) tones.set(tone, colour(`--${tone}`));
      pen.fillStyle = tones.get(tone)!;
      const x = label + scale.x(bar.from);
      pen.fillRect(x, (bar.row - from) * ROW + 5, Math.max(3, label + scale.x(bar.to) - x), ROW - 10);
    }
    pen.fillStyle = colour("--accent");
    pen.fillRect(label + scale.x(at), 0, 1, height);
  });
  const look = (event: MouseEvent) => {
    const edge = place.current!.getBoundingClientRect();
    const row = from + Math.floor((event.clientY - edge.top) / ROW);
    const x = event.clientX - edge.left - label;
    const hit = bars.find((bar) => bar.row === row && scale.x(bar.from) - 2 <= x && x <= Math.max(scale.x(bar.to), scale.x(bar.from) + 3));
    onTip(hit ? tipOf(hit) : chart.rows[row]?.label ?? "");
  };
  return <canvas ref={place} class="bars canvas" role="img" aria-label="Timeline. The table shows the same as text." onMouseMove={look} onMouseLeave={() => onTip("")} />;
}

const TABLE_PAGE = 200;

function BarTable({ chart }: { chart: Chart }) {
  const [most, setMost] = useState(TABLE_PAGE);
  const bars = chart.bars.slice(0, most);
  return (
    <div class="table-box">
      <table>
        <caption class="away">Tries, waits, children and leases of the run</caption>
        <thead><tr><th>Call</th><th>Kind</th><th>Status</th><th>From</th><th class="right">Took</th><th>Details</th></tr></thead>
        <tbody>
          {bars.map((bar, index) => {
            const row = chart.rows[bar.row]!;
            return (
              <tr key={index}>
                <td>{row.run ? <RunLink id={row.run}><T text={row.label} /></RunLink> : <T text={short(row.label, 80)} />}</td>
                <td class="muted">{row.kind}</td>
                <td><Status status={bar.status} /></td>
                <td title={local(bar.from)}>{clock(bar.from)}</td>
                <td class="right">{bar.open ? "so far " : ""}{duration(bar.to - bar.from)}</td>
                <td class="muted"><T text={short(bar.text, 200)} /></td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {chart.bars.length > most && (
        <p class="pad"><button type="button" class="button" onClick={() => setMost(most + TABLE_PAGE)}>Show {TABLE_PAGE} more of {chart.bars.length}</button></p>
      )}
    </div>
  );
}
