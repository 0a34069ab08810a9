// Builds of the code with what needs each, the move of runs to another one, and the marked changes of job code.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, runPath } from "../api";
import { count, duration, now, short, shortId } from "../format";
import { may, whole } from "../session";
import type { BuildStatus, Change, Changes, MarkUse, Page, RunMisfit, RunRecord } from "../types";
import { Button, Dialog, Empty, Failure, RunLink, Shape, T, tell, toneOf, useActions, useLoaded } from "../ui";
import { NotForGroups, useReload } from "./queues";

const FOLLOW_MS = 500; // between looks at the run that moves runs
const FRESH_MS = 2500;
const MISFITS_SHOWN = 50;

export function BuildsView() {
  const { value, error, reload } = useLoaded(() => (whole.value ? get<Page<BuildStatus>>("builds") : Promise.resolve(null)), [whole.value]);
  const [moving, setMoving] = useState<string | null>(null);
  useReload(reload, 3);
  if (!whole.value) return <section class="view"><h1>Builds and changes</h1><NotForGroups /></section>;
  const builds = value?.items ?? [];
  return (
    <section class="view">
      <header class="head"><h1>Builds and changes</h1><p class="muted">Which code runs still need.</p></header>
      {error !== null && <Failure error={error} again={reload} />}
      {value && !builds.length && <Empty title="No builds"><p>A build appears here with its first live worker. <code>HOLDFAST_BUILD</code> names it.</p></Empty>}
      {builds.length > 0 && (
        <div class="table-box" tabIndex={0} role="group" aria-label="Builds">
          <table>
            <caption class="away">Builds</caption>
            <thead><tr><th>Build</th><th>State</th><th class="right">Workers</th><th class="right">Running</th><th class="right">Waiting</th><th class="right">Kept</th><th>Oldest kept run</th><th><span class="away">Actions</span></th></tr></thead>
            <tbody>{builds.map((build) => <BuildRow key={build.build} build={build} onMove={() => setMoving(build.build)} />)}</tbody>
          </table>
        </div>
      )}
      {builds.filter((one) => one.build === moving).map((build) => (
        <Move key={build.build} build={build} others={builds.filter((one) => one !== build)} onClose={() => setMoving(null)} reload={reload} />
      ))}
      {builds.length > 0 && <p class="muted note">Waiting counts runs that a build ran last. Any build goes on with those that are not kept. The workers of a drained build can be stopped.</p>}
      <ChangesPart />
    </section>
  );
}

function BuildRow({ build, onMove }: { build: BuildStatus; onMove: () => void }) {
  const state = build.current ? "active" : build.drained ? "done" : "waiting";
  return (
    <tr>
      <td class="name"><T text={short(build.build, 80)} /></td>
      <td><span class={`status tone-${toneOf(state)}`}><Shape status={state} /><T text={build.drained ? "drained" : build.reason ?? ""} /></span></td>
      <td class="right">{count(build.workers)}</td><td class="right">{count(build.running)}</td><td class="right">{count(build.waiting)}</td><td class="right">{count(build.kept)}</td>
      <td>{build.oldest ? <><RunLink id={build.oldest}>{shortId(build.oldest)}</RunLink>{build.oldest_at != null && <span class="muted"> {duration(now.value - build.oldest_at)}</span>}</> : <span class="muted">–</span>}</td>
      <td class="right nowrap">
        {build.kept > 0 && may("operate") && <Button onClick={onMove} label={`Move the runs of ${short(build.build, 60)}`}>Move…</Button>}
      </td>
    </tr>
  );
}

interface Moved {
  moved: number;
  misfits: RunMisfit[];
}

function Move({ build, others, onClose, reload }: { build: BuildStatus; others: BuildStatus[]; onClose: () => void; reload: () => void }) {
  const [to, setTo] = useState(others.find((one) => one.current)?.build ?? others.find((one) => one.workers)?.build ?? "");
  const [check, setCheck] = useState(true);
  const [run, setRun] = useState<RunRecord | null>(null);
  const [misfits, setMisfits] = useState<RunMisfit[]>([]);
  const [failed, setFailed] = useState<unknown>(null);
  const open = useRef(true);
  useEffect(() => () => void (open.current = false), []);
  const act = useActions();
  const busy = run !== null;
  const submit = async (event: Event) => {
    event.preventDefault();
    if (busy || !to.trim()) return;
    setFailed(null);
    setMisfits([]);
    try {
      let record = await act<RunRecord>("builds/move", { old: build.build, new: to.trim(), check });
      setRun(record);
      while (open.current && record.finished_at == null) {
        await new Promise((wake) => setTimeout(wake, FOLLOW_MS));
        record = await get<RunRecord>(runPath(record.run_id));
        setRun(record);
      }
      if (!open.current) return;
      if (record.status !== "succeeded") throw new Error(`the move has ${record.status}: run ${record.run_id} says why`);
      const { result } = await get<{ result: Moved }>(runPath(record.run_id, "/result"));
      reload();
      setTimeout(reload, FRESH_MS); // a server may show for so long what it has read before
      if (!result.misfits.length) {
        tell(`Moved ${runs(result.moved)} to ${to.trim()}.`);
        onClose();
        return;
      }
      setMisfits(result.misfits);
    } catch (caught) {
      setFailed(caught);
    }
    setRun(null);
  };
  return (
    <Dialog title={`Move the runs of build ${short(build.build, 60)}`} onClose={onClose} wide={misfits.length > 0}>
      <form onSubmit={(event) => void submit(event)}>
        <p>{build.kept === 1 ? "1 run is" : `${count(build.kept)} runs are`} kept for this build. Workers of the new build continue {build.kept === 1 ? "it" : "them"}.</p>
        <label class="field"><span>New build</span>
          <input type="text" list="known-builds" value={to} onInput={(event) => setTo(event.currentTarget.value)} autofocus required />
          <datalist id="known-builds">{others.map((one) => <option key={one.build} value={one.build} />)}</datalist></label>
        <label class="check"><input type="checkbox" checked={check} onChange={(event) => setCheck(event.currentTarget.checked)} /> <span>Check each run first</span></label>
        <p class="muted">{check
          ? "The server replays each run through its own code, which must be that of the new build. This calls nothing. If a run does not fit, none is moved."
          : "A run that does not fit the new code asks in the inbox which code goes on."}</p>
        {run && <p role="status">{run.message || "The move has begun."} <RunLink id={run.run_id}>{shortId(run.run_id)}</RunLink></p>}
        {misfits.length > 0 && <Misfits misfits={misfits} />}
        {failed !== null && <Failure error={failed} />}
        <div class="dialog-foot"><Button onClick={onClose}>{busy ? "Close" : "Back"}</Button><button type="submit" class="button primary" disabled={busy || !to.trim()}>Move</button></div>
      </form>
    </Dialog>
  );
}

function Misfits({ misfits }: { misfits: RunMisfit[] }) {
  return (
    <div role="alert">
      <p class="bad">{misfits.length === 1 ? "1 run does not fit" : `${count(misfits.length)} runs do not fit`}, so none was moved.</p>
      <ul class="misfits">
        {misfits.slice(0, MISFITS_SHOWN).map((one) => (
          <li key={one.run_id}><RunLink id={one.run_id}>{shortId(one.run_id)}</RunLink> <T text={short(one.reasons.join("; "), 300)} />
            {one.line ? <span class="muted"> <T text={short(one.line, 200)} /></span> : null}</li>
        ))}
      </ul>
      {misfits.length > MISFITS_SHOWN && <p class="muted">and {count(misfits.length - MISFITS_SHOWN)} more</p>}
    </div>
  );
}

function runs(number: number): string {
  return number === 1 ? "1 run" : `${count(number)} runs`;
}

// The marked changes. A server counts so many runs at once; the user asks for the rest.
function ChangesPart() {
  const { value, error, reload } = useLoaded(() => get<Changes>("changes"), []);
  const [more, setMore] = useState<Changes | null>(null);
  const [counting, setCounting] = useState(false);
  const [failed, setFailed] = useState<unknown>(null);
  const open = useRef(true);
  useEffect(() => () => void (open.current = false), []);
  useEffect(() => setMore(null), [value]);
  const shown = more ?? value;
  const rest = async () => {
    setCounting(true);
    setFailed(null);
    try {
      let sum = shown!;
      while (open.current && sum.next) {
        sum = joined(sum, await get<Changes>("changes", { cursor: sum.next }));
        setMore(sum);
      }
    } catch (caught) {
      setFailed(caught);
    }
    setCounting(false);
  };
  return (
    <section class="part" aria-labelledby="changes">
      <header class="head"><h2 id="changes">Marked changes</h2>
        {shown && <p class="muted">{shown.complete ? `${runs(shown.runs)} that have not ended` : `The newest ${runs(shown.runs)} that have not ended`}</p>}
        {shown && <Button onClick={reload} disabled={counting}>Count again</Button>}
        {shown?.next && <Button onClick={() => void rest()} disabled={counting}>{counting ? "Counting…" : "Count all"}</Button>}</header>
      {error !== null && <Failure error={error} again={reload} />}
      {failed !== null && <Failure error={failed} />}
      {shown && !shown.changes.length && !shown.unread.length && <Empty title="No marked changes"><p>Job code marks one with <code>if changed("2026-11-fee"):</code>. Runs under way stay on the old side.</p></Empty>}
      {shown && shown.changes.length > 0 && (
        <div class="table-box" tabIndex={0} role="group" aria-label="Marked changes">
          <table>
            <caption class="away">Marked changes</caption>
            <thead><tr><th>Mark</th><th class="right">Old side</th><th class="right">New side</th><th class="right">Not known</th><th>Used at</th><th>The old side</th></tr></thead>
            <tbody>{shown.changes.map((change) => <ChangeRow key={change.mark} change={change} complete={shown.complete} unread={shown.unread} />)}</tbody>
          </table>
        </div>
      )}
      {shown && shown.unread.length > 0 && <p class="muted note">A mark cannot be read from the code at <Places uses={shown.unread} />. It is listed once a run records it.</p>}
    </section>
  );
}

function ChangeRow({ change, complete, unread }: { change: Change; complete: boolean; unread: MarkUse[] }) {
  return (
    <tr>
      <td class="name"><T text={short(change.mark, 100)} /></td>
      <td class="right">{count(change.old)}</td><td class="right">{count(change.new)}</td><td class="right">{count(change.unknown)}</td>
      <td>{change.uses.length ? <Places uses={change.uses} /> : <span class="muted">–</span>}</td>
      <td class="advice">{change.removable ? <span class="status tone-succeeded"><Shape status="done" />can be removed</span> : <Advice change={change} complete={complete} unread={unread} />}</td>
    </tr>
  );
}

function Advice({ change, complete, unread }: { change: Change; complete: boolean; unread: MarkUse[] }) {
  if (change.old) return <>needed by {change.oldest ? <RunLink id={change.oldest}>{shortId(change.oldest)}</RunLink> : "a run"}{change.old > 1 ? ` and ${count(change.old - 1)} more` : ""}</>;
  if (!change.uses.length) return <span class="muted">{unread.length ? "perhaps used where the mark cannot be read" : "not in the code of this server"}</span>;
  if (complete) return <span class="muted">may be needed: <code>holdfast changes</code> replays the runs that are not known</span>;
  return <span class="muted">may be needed by a run that was not counted</span>;
}

function Places({ uses }: { uses: MarkUse[] }) {
  return <>{uses.map((use, at) => (
    <span key={`${use.file}:${use.line}`} class="mono" title={`${use.file}:${use.line}`}>{at ? ", " : ""}<T text={short(`${use.file.split("/").slice(-2).join("/")}:${use.line}`, 80)} /></span>
  ))}</>;
}

// The sum of two parts of a walk through the runs.
export function joined(first: Changes, second: Changes): Changes {
  const parts = new Map<string, Change>();
  for (const change of [...first.changes, ...second.changes]) {
    const before = parts.get(change.mark);
    parts.set(change.mark, before ? {
      ...before, old: before.old + change.old, new: before.new + change.new, unknown: before.unknown + change.unknown,
      oldest: [before.oldest, change.oldest].filter((run) => run != null).sort()[0] ?? null,
    } : change);
  }
  const changes = [...parts.values()].map((one) => ({ ...one, removable: second.complete && one.uses.length > 0 && !one.old && !one.unknown }));
  changes.sort((one, other) => (one.mark < other.mark ? -1 : 1));
  return { ...second, changes, runs: first.runs + second.runs };
}
