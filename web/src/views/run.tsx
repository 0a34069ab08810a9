// One run: where it is and why, what may be done with it, and its history in several forms.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { address, get, getText, Problem, runPath, send, sentence } from "../api";
import { elements, member, parseExact, plain, type Exact } from "../exact";
import { bytes, duration, local, localTimes, now, relative, short, shortId, words } from "../format";
import { useKeys } from "../keys";
import { go, link, route } from "../router";
import { may, openRun } from "../session";
import { Story } from "../story";
import { onChanges, refresh, status as live } from "../stream";
import { FINAL, type Family, type PlanNode, type RunBrief, type RunRecord, type View } from "../types";
import { Bar, Block, Button, Confirm, Copy, Dialog, Empty, Failure, Icon, Json, RunLink, Status, T, Tabs, tell, Time, Told, useActions, useLoaded } from "../ui";
import { Events, missing, Verify } from "./events";
import { Graph } from "./graph";
import { Asks, sendSignal, useInbox } from "./inbox";
import { Timeline } from "./timeline";

const TABS = [
  { id: "timeline", title: "Timeline" }, { id: "plan", title: "Plan" }, { id: "events", title: "Events" },
  { id: "data", title: "Data" }, { id: "exports", title: "Exports" }, { id: "evidence", title: "Evidence" },
  { id: "family", title: "Family" }, { id: "verify", title: "Verify" }, { id: "raw", title: "Raw" },
];

interface Loaded {
  run: RunRecord;
  explanation: string;
}

async function load(id: string): Promise<Loaded> {
  const [run, explained] = await Promise.all([
    get<RunRecord>(runPath(id)),
    get<{ explanation: string }>(runPath(id, "/explain")).catch((error: unknown) => ({ explanation: sentence(error) })),
  ]);
  return { run, explanation: explained.explanation };
}

export function RunView({ id, tab }: { id: string; tab: string }) {
  const { value, error, reload } = useLoaded(() => load(id), [id]);
  const [version, setVersion] = useState(0);
  useEffect(() => {
    openRun.value = id;
    let timer: number | undefined;
    const stop = onChanges((changed, missed) => {
      const ours = missed || changed.has(id) || [...changed.values()].some((run) => run.task_id !== null && run.task_id === value?.run.task_id);
      if (!ours || timer !== undefined) return;
      timer = window.setTimeout(() => {
        timer = undefined;
        reload();
        setVersion((before) => before + 1);
      }, 100);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [id, value?.run.task_id]);
  const name = value?.run.entry_id;
  useEffect(() => {
    if (name) document.title = `${short(name, 60)} ${shortId(id)} · Holdfast`;
  }, [id, name]);
  const past = useStory(id, version);
  const pick = (name: string) => go(["runs", id, name], undefined, true);
  const step = (by: number) => {
    const at = TABS.findIndex((one) => one.id === tab);
    pick(TABS[(at + by + TABS.length) % TABS.length]!.id);
  };
  useKeys([
    { keys: "]", does: "Next tab", run: () => step(1) },
    { keys: "[", does: "Previous tab", run: () => step(-1) },
    { keys: "u", does: "Back to the list", run: () => history.length > 1 ? history.back() : go(["runs"]) },
  ], [tab, id]);
  if (error !== null && !value) {
    const gone = error instanceof Problem && (error.status === 404 || error.status === 400);
    return (
      <section class="view">
        {gone
          ? <Empty title="No run has this id"><p>It may have been deleted, or it belongs to a group that your token cannot see.</p><a class="button" href="#/runs">All runs</a></Empty>
          : <Failure error={error} again={reload} />}
      </section>
    );
  }
  if (!value) return <section class="view"><p class="loading muted" role="status">Reading the run…</p></section>;
  return (
    <section class="view run">
      <Head run={value.run} explanation={value.explanation} view={past.story.view(past.length)} />
      <Tabs tabs={TABS} current={tab} onPick={pick} label="Parts of the run" />
      <div class="panel" role="tabpanel" aria-label={TABS.find((one) => one.id === tab)?.title ?? tab}>
        {(tab === "timeline" || tab === "plan") && <History run={value.run} tab={tab} version={version} past={past} />}
        {tab === "events" && <Events id={id} />}
        {tab === "data" && <Data run={value.run} version={version} />}
        {tab === "exports" && <Exports id={id} version={version} />}
        {tab === "evidence" && <Evidence id={id} version={version} />}
        {tab === "family" && <FamilyTree id={id} version={version} />}
        {tab === "verify" && <Verify id={id} />}
        {tab === "raw" && <Raw id={id} version={version} />}
      </div>
    </section>
  );
}

// The page has the error, and the form for an answer, right there. What the explanation says of commands is for a terminal.
function forReaders(explanation: string, run: RunRecord): string {
  return explanation.replace(` (${run.error?.message})`, "").replace(/: see `holdfast inbox`/g, "").replace(/ Answer with `resolve`: [^.]*\./g, "");
}

interface Past {
  story: Story;
  length: number; // events read so far
  loaded: boolean;
  error: unknown;
}

// The story of a run, read again whenever the run changes.
function useStory(id: string, version: number): Past {
  const story = useMemo(() => new Story(id), [id]);
  const [state, setState] = useState<Omit<Past, "story">>({ length: 0, loaded: false, error: null });
  const reading = useRef<Promise<unknown>>(Promise.resolve());
  useEffect(() => {
    reading.current = reading.current.then(() => story.read()).then(
      () => setState({ length: story.items.length, loaded: true, error: null }),
      (error) => setState({ length: story.items.length, loaded: true, error }),
    );
  }, [story, version]);
  return { story, ...state };
}

function Head({ run, explanation, view }: { run: RunRecord; explanation: string; view: View }) {
  const ended = FINAL.has(run.status);
  const end = run.finished_at ?? (ended ? run.updated_at : now.value);
  const steps = run.step != null ? `step ${run.step}${run.step_total != null ? ` of ${run.step_total}` : ""}` : "";
  const where = [run.stage, run.message, steps].filter(Boolean).join(" · ");
  return (
    <header class="run-head">
      <div class="run-title">
        <Status status={run.status} strong />
        <h1><span class="muted"><T text={short(run.plugin_id, 40)} />.</span><T text={short(run.entry_id, 80)} /></h1>
        <Actions run={run} view={view} />
      </div>
      <p class="run-id mono muted"><T text={run.run_id} /> <Copy text={run.run_id} label="Copy the id" /></p>
      <p class="explain"><Told text={short(localTimes(forReaders(explanation, run)), 1000)} /></p>
      {!ended && run.progress != null && <Bar value={run.progress} />}
      <dl class="facts wide-facts">
        {where && !ended && <div><dt>Where</dt><dd><T text={short(where, 200)} /></dd></div>}
        <div><dt>Created</dt><dd><Time at={run.created_at} both /></dd></div>
        {run.started_at != null && <div><dt>{ended ? "Took" : "Runs for"}</dt><dd>{duration(end - run.started_at)}</dd></div>}
        {!ended && run.eta_seconds != null && <div><dt>Left</dt><dd>about {duration(run.eta_seconds)}</dd></div>}
        {run.idempotency_key && <div><dt>Key</dt><dd><T text={short(run.idempotency_key, 120)} /> <Copy text={run.idempotency_key} label="Copy the key" /></dd></div>}
        {run.cancel_reason && <div><dt>Cancel reason</dt><dd><T text={short(run.cancel_reason, 300)} /></dd></div>}
        {run.continues && <div><dt>Continues</dt><dd><RunLink id={run.continues}>{shortId(run.continues)}</RunLink></dd></div>}
        {run.continued_as && <div><dt>Continued as</dt><dd><RunLink id={run.continued_as}>{shortId(run.continued_as)}</RunLink></dd></div>}
        {Object.entries(run.attributes ?? {}).map(([name, value]) => (
          <div key={name}><dt><T text={short(name, 40)} /></dt><dd><a href={link(["runs"], new URLSearchParams([[`attr.${name}`, String(value)]]))}><T text={short(String(value), 120)} /></a></dd></div>
        ))}
      </dl>
      {run.error && <ErrorBox error={run.error} />}
      {!ended && <AsksOf run={run} />}
    </header>
  );
}

function ErrorBox({ error }: { error: NonNullable<RunRecord["error"]> }) {
  const { traceback, ...rest } = error.details ?? {};
  return (
    <div class="error-box">
      <p><strong><T text={error.code} /></strong> <T text={short(error.message, 2000)} /> <Copy text={`${error.code}: ${error.message}`} label="Copy the error" /></p>
      {typeof traceback === "string" && <details><summary>Traceback</summary><Block text={traceback} label="traceback" /></details>}
      {Object.keys(rest).length > 0 && <details><summary>Details</summary><Json source={JSON.stringify(rest)} label="error details" /></details>}
    </div>
  );
}

function AsksOf({ run }: { run: RunRecord }) {
  const { items, reload } = useInbox(null, run.run_id);
  return items.length ? <Asks items={items} onDone={reload} here /> : null;
}

const RETRIED = new Set<string>(["failed", "timeout"]); // what can be retried
type Verb = "cancel" | "retry" | "pause" | "resume" | "signal" | "fork";

function Actions({ run, view }: { run: RunRecord; view: View }) {
  const paused = Object.values(view.waiting ?? {}).some((wait) => wait.kind === "pause");
  const [verb, setVerb] = useState<Verb | null>(null);
  const ended = FINAL.has(run.status);
  const [asked, setAsked] = useState(false); // to pause; the run stops at its next step only
  const close = () => setVerb(null);
  const send = useActions();
  const act = (name: string, done: string) => async (reason: string) => {
    const body = name === "pause" || name === "resume" ? {} : { reason: reason || null };
    const made = await send<RunRecord>(runPath(run.run_id, `/${name}`), body);
    tell(done);
    if (name === "pause" || name === "resume") setAsked(name === "pause");
    refresh();
    if (made.run_id !== run.run_id) go(["runs", made.run_id]);
  };
  useKeys([
    ...(may("operate") && !ended ? [{ keys: "c", does: "Cancel the run", run: () => setVerb("cancel") }] : []),
    ...(may("operate") && RETRIED.has(run.status) ? [{ keys: "r", does: "Retry the run", run: () => setVerb("retry") }] : []),
    ...(may("signal") && !ended ? [{ keys: "s", does: "Send a signal", run: () => setVerb("signal") }] : []),
  ], [run.status, run.run_id]);
  const name = <strong><T text={short(run.entry_id, 60)} /> <span class="mono">{shortId(run.run_id)}</span></strong>;
  return (
    <div class="actions">
      {!ended && may("signal") && <Button onClick={() => setVerb("signal")}>Signal…</Button>}
      {!ended && may("operate") && (
        <>
          {paused || asked ? <Button kind="primary" onClick={() => setVerb("resume")}>Resume…</Button> : <Button onClick={() => setVerb("pause")}>Pause…</Button>}
          <Button kind="danger" onClick={() => setVerb("cancel")} disabled={run.status === "cancel_requested"}>Cancel…</Button>
        </>
      )}
      {RETRIED.has(run.status) && may("operate") && <Button kind="primary" onClick={() => setVerb("retry")}>Retry…</Button>}
      {may("submit") && <Button onClick={() => setVerb("fork")}>Fork…</Button>}
      {verb === "cancel" && (
        <Confirm title="Cancel the run" verb="Cancel the run" danger reason="wanted" onClose={close} onYes={act("cancel", "Cancellation requested.")}>
          <p>{name} is asked to stop at its next step. Its cleanup code runs. Steps that ended stay recorded.</p>
        </Confirm>
      )}
      {verb === "retry" && (
        <Confirm title="Retry the run" verb="Retry" reason="needed" onClose={close} onYes={act("retry", "A new run continues the job.")}>
          <p>{name} is reopened as a new run. It continues after the last recorded step.</p>
        </Confirm>
      )}
      {verb === "pause" && (
        <Confirm title="Pause the run" verb="Pause" onClose={close} onYes={act("pause", "The run pauses at its next step.")}>
          <p>{name} stops at its next step and waits until you resume it.</p>
        </Confirm>
      )}
      {verb === "resume" && (
        <Confirm title="Resume the run" verb="Resume" onClose={close} onYes={act("resume", "The run goes on.")}>
          <p>{name} goes on with its next step.</p>
        </Confirm>
      )}
      {verb === "signal" && <SignalDialog run={run} view={view} onClose={close} />}
      {verb === "fork" && <ForkDialog run={run} view={view} onClose={close} />}
    </div>
  );
}

const ANSWERED = new Set(["signal", "human", "webhook"]);

function SignalDialog({ run, view, onClose }: { run: RunRecord; view: View; onClose: () => void }) {
  const [open] = useState(() => Object.values(view.waiting ?? {}).filter((wait) => ANSWERED.has(wait.kind)));
  const waits = open.map((wait) => wait.key);
  const act = useActions();
  const [key, setKey] = useState(waits[0] ?? "");
  const [payload, setPayload] = useState("");
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!key.trim()) return;
    try {
      const asked = open.find((wait) => wait.kind === "human" && wait.key === key.trim());
      const outcome = await sendSignal(act, run.run_id, key.trim(), payload, asked?.node);
      tell(outcome === "kept" ? "The signal is kept until the run waits for it." : `The signal was ${words(outcome)}.`);
      refresh();
      onClose();
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <Dialog title="Send a signal" onClose={onClose}>
      <form onSubmit={(event) => void submit(event)}>
        <p>A wait for this key in <strong><T text={short(run.entry_id, 60)} /></strong> ends with the payload. A signal that comes early is kept.</p>
        <label class="field"><span>Key</span><input type="text" value={key} list="waits" onInput={(event) => setKey(event.currentTarget.value)} autofocus /></label>
        <datalist id="waits">{waits.map((one) => <option key={one} value={one} />)}</datalist>
        <label class="field"><span>Payload <span class="muted">JSON, empty means null</span></span>
          <textarea class="mono" rows={4} value={payload} spellcheck={false} onInput={(event) => { setPayload(event.currentTarget.value); setError(null); }} /></label>
        {error !== null && <Failure error={error} />}
        <div class="dialog-foot"><Button onClick={onClose}>Back</Button><button type="submit" class="button primary" disabled={!key.trim()}>Send</button></div>
      </form>
    </Dialog>
  );
}

function ForkDialog({ run, view, onClose }: { run: RunRecord; view: View; onClose: () => void }) {
  const steps = Object.entries(view.calls ?? {}).filter(([, call]) => call.kind === "step" || call.kind === "tool").map(([step]) => step);
  const nodes = Object.keys(view.nodes ?? {});
  const [place, setPlace] = useState("");
  const [kind, setKind] = useState<"from_step" | "from_node">(nodes.length ? "from_node" : "from_step");
  const [error, setError] = useState<unknown>(null);
  const act = useActions();
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!place.trim()) return;
    try {
      const made = await act<RunRecord>(runPath(run.run_id, "/fork"), { [kind]: place.trim() });
      onClose();
      tell("The fork has started.");
      go(["runs", made.run_id]);
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <Dialog title="Fork the run" onClose={onClose}>
      <form onSubmit={(event) => void submit(event)}>
        <p>A new run starts with the same arguments. It reuses the recorded results up to the named place, and runs from there.</p>
        <label class="field"><span>Fork from a</span>
          <select value={kind} onChange={(event) => setKind(event.currentTarget.value as "from_step")}><option value="from_step">step</option><option value="from_node">plan node</option></select></label>
        <label class="field"><span>Name</span><input type="text" value={place} list="places" onInput={(event) => { setPlace(event.currentTarget.value); setError(null); }} autofocus /></label>
        <datalist id="places">{(kind === "from_step" ? steps : nodes).slice(0, 200).map((one) => <option key={one} value={one} />)}</datalist>
        {error !== null && <Failure error={error} />}
        <div class="dialog-foot"><Button onClick={onClose}>Back</Button><button type="submit" class="button primary" disabled={!place.trim()}>Fork</button></div>
      </form>
    </Dialog>
  );
}

// Timeline or plan, with the slider that goes through the run's past.
function History({ run, tab, version, past }: { run: RunRecord; tab: string; version: number; past: Past }) {
  const { story, length, loaded, error } = past;
  const [position, setPosition] = useState<number | null>(null); // null is the newest: live
  useEffect(() => setPosition(null), [story]);
  if (!loaded) return <p class="loading muted" role="status">Reading the history…</p>;
  if (error !== null && !length) return <Failure error={missing(error)} />;
  const at = position ?? length;
  const ended = FINAL.has(run.status);
  const newest = story.items[length - 1]?.at ?? run.created_at;
  const whole = story.view(length);
  const end = ended ? newest : Math.max(newest, now.value);
  const view = story.view(at);
  const time = position === null ? end : story.items[at - 1]?.at ?? run.created_at;
  return (
    <>
      {tab === "timeline"
        ? <Timeline view={view} at={time} whole={{ ...whole }} end={ended ? newest : Math.ceil(end / 2) * 2} />
        : <PlanTab run={run} view={view} version={version} />}
      {length > 0 && <Slider story={story} length={length} position={position} onMove={setPosition} view={view} moving={!ended} />}
    </>
  );
}

function PlanTab({ run, view, version }: { run: RunRecord; view: View; version: number }) {
  const { value, error } = useLoaded(() => get<{ nodes: PlanNode[] }>(runPath(run.run_id, "/plan")), [run.run_id], version); // a plan may grow
  const nodes = useRef<{ text: string; nodes: PlanNode[] }>({ text: "", nodes: [] });
  if (error !== null && !value) {
    return error instanceof Problem && error.status === 404
      ? <Empty title="This run has no plan"><p>Its steps are plain code. The timeline shows them.</p></Empty>
      : <Failure error={missing(error)} />;
  }
  if (!value) return <p class="loading muted" role="status">Reading the plan…</p>;
  const text = JSON.stringify(value.nodes);
  if (text !== nodes.current.text) nodes.current = { text, nodes: value.nodes };
  return <Graph nodes={nodes.current.nodes} view={view} />;
}

const SPEEDS = [1, 5, 20, 100];

function Slider(props: { story: Story; length: number; position: number | null; onMove: (position: number | null) => void; view: View; moving: boolean }) {
  const { story, length, position, onMove, view, moving } = props;
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(5);
  const at = position ?? length;
  const move = (to: number) => onMove(to >= length ? null : Math.max(0, to));
  const toggle = () => {
    if (!playing && at >= length) move(0);
    setPlaying(!playing);
  };
  useEffect(() => {
    if (!playing) return;
    const timer = setInterval(() => {
      if (at >= length) return setPlaying(false);
      move(at + Math.max(1, Math.round(speed / 5)));
    }, Math.max(50, 1000 / speed));
    return () => clearInterval(timer);
  }, [playing, at, length, speed]);
  useKeys([
    { keys: "ArrowLeft", does: "One event back in time", run: () => move(at - 1) },
    { keys: "ArrowRight", does: "One event forward in time", run: () => move(at + 1) },
    { keys: "Space", does: "Play the history, or stop", run: toggle },
    { keys: "End", does: "Newest event", run: () => onMove(null) },
    { keys: "Home", does: "Before the first event", run: () => move(0) },
  ], [at, length, playing]);
  const item = story.items[at - 1];
  const asOf = item ? `event ${item.seq} of ${length}, ${words(item.type)}, ${local(item.at)}` : "before the first event";
  return (
    <div class="slider">
      <Button onClick={() => move(at - 1)} label="One event back"><Icon name="left" /></Button>
      <Button onClick={toggle} label={playing ? "Stop" : "Play the history"} pressed={playing}><Icon name={playing ? "pause" : "play"} /></Button>
      <Button onClick={() => move(at + 1)} label="One event forward"><Icon name="right" /></Button>
      <input
        type="range" data-slider min={0} max={length} value={at} aria-label="Position in the history" aria-valuetext={asOf}
        onInput={(event) => move(Number(event.currentTarget.value))}
      />
      <label class="speed"><span class="away">Speed</span>
        <select value={String(speed)} onChange={(event) => setSpeed(Number(event.currentTarget.value))}>{SPEEDS.map((one) => <option key={one} value={String(one)}>{one}×</option>)}</select></label>
      <Button onClick={() => onMove(null)} pressed={position === null} disabled={position === null}>{position === null ? (moving && live.value === "live" ? "Live" : "Newest") : "To newest"}</Button>
      <p class="slider-text" aria-live="polite">
        {item ? <><strong>{item.seq}</strong> of {length} · {words(item.type)} · <span title={local(item.at)}>{relative(item.at)}</span></> : "Before the first event"}
        {view.state && <> · <Status status={view.state} /></>}
        {view.run && <> · run <Status status={view.run.status} /></>}
        {view.worker && <> · <T text={short(view.worker, 40)} /></>}
        {view.attempt ? <> · attempt {view.attempt}</> : null}
      </p>
    </div>
  );
}

// Arguments and result, exactly as recorded.
function Data({ run, version }: { run: RunRecord; version: number }) {
  const { value, error } = useLoaded(async () => {
    const [result, first] = await Promise.all([
      getText(runPath(run.run_id, "/result")),
      getText(runPath(run.run_id, "/events"), { limit: 1 }),
    ]);
    const created = member(elements(member(parseExact(first), "items"))[0], "payload");
    return { result: member(parseExact(result), "result"), created };
  }, [run.run_id], `${run.status} ${version}`);
  if (error !== null && !value) return <Failure error={error} />;
  if (!value) return <p class="loading muted" role="status">Reading…</p>;
  const args = member(value.created, "args") ?? member(value.created, "arguments") ?? member(member(value.created, "spec"), "args") ?? value.created;
  return (
    <div class="pad columns">
      <div><h3>Arguments</h3>{args ? <Json node={args} label="arguments" /> : <p class="muted">None.</p>}</div>
      <div>
        <h3>Result</h3>
        {run.status === "succeeded" && value.result ? <Json node={value.result} label="result" />
          : <p class="muted">{FINAL.has(run.status) ? `The run ended without a result${run.error ? ". The error is above" : ""}.` : "The run has not ended yet."}</p>}
      </div>
      {run.metrics && Object.keys(run.metrics).length > 0 && (
        <div><h3>Metrics</h3><dl class="facts">{Object.entries(run.metrics).map(([name, number]) => <><dt><T text={name} /></dt><dd>{String(number)}</dd></>)}</dl></div>
      )}
    </div>
  );
}

const LISTED = 200;

function useExactList(path: string, version: number): { items: Exact[] | null; error: unknown } {
  const { value, error } = useLoaded(async () => elements(member(parseExact(await getText(path, { limit: LISTED })), "items")), [path], version);
  return { items: value, error };
}

function Exports({ id, version }: { id: string; version: number }) {
  const { items, error } = useExactList(runPath(id, "/exports"), version);
  const save = async (number: string, name: string) => {
    try {
      const content = await (await send(runPath(id, `/exports/${number}/content`), { seconds: 0 })).blob();
      const anchor = document.createElement("a");
      anchor.href = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
      anchor.download = name.replace(/[^\w.-]+/g, "_") || "export";
      anchor.click();
      setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
    } catch (caught) {
      tell(sentence(caught), true);
    }
  };
  if (error !== null && !items) return <Failure error={error} />;
  if (!items) return <p class="loading muted" role="status">Reading exports…</p>;
  if (!items.length) return <Empty title="No exports"><p>A job publishes what it makes with <code>export(value, name)</code>.</p></Empty>;
  return (
    <div class="pad stack">
      {items.map((item) => {
        const field = (name: string) => plain(member(item, name));
        const value = member(item, "value");
        return (
          <article class="card" key={field("number")}>
            <div class="card-head">
              <h3><T text={short(field("name"), 120)} /></h3>
              <span class="muted"><T text={field("media_type")} /> · {bytes(Number(field("size")))} · <Time at={Number(field("at"))} />{field("provisional") === "true" ? " · provisional" : ""}</span>
              <Button onClick={() => save(field("number"), field("name"))} label={`Download ${short(field("name"), 60)}`}><Icon name="download" /></Button>
            </div>
            {value && plain(value) !== "null" && <Json node={value} label={`export ${field("name")}`} />}
          </article>
        );
      })}
    </div>
  );
}

function Evidence({ id, version }: { id: string; version: number }) {
  const { items, error } = useExactList(runPath(id, "/evidence"), version);
  if (error !== null && !items) return <Failure error={error} />;
  if (!items) return <p class="loading muted" role="status">Reading evidence…</p>;
  if (!items.length) return <Empty title="No evidence"><p>A result that arrives after its attempt has lost the job is kept here. It helps to answer what is in doubt.</p></Empty>;
  return (
    <div class="pad stack">
      {items.map((item, index) => {
        const field = (name: string) => plain(member(item, name));
        const result = member(item, "result");
        return (
          <article class="card" key={index}>
            <div class="card-head"><h3><T text={short(field("node"), 120)} /></h3><span class="muted">attempt {field("attempt")} · <Time at={Number(field("at"))} /></span></div>
            {field("error") && field("error") !== "null" && <p class="bad"><T text={short(field("error"), 1000)} /></p>}
            {result && <Json node={result} label="late result" />}
          </article>
        );
      })}
    </div>
  );
}

function FamilyTree({ id, version }: { id: string; version: number }) {
  const { value, error } = useLoaded(() => get<Family>(runPath(id, "/family")), [id], version);
  if (error !== null && !value) return <Failure error={missing(error)} />;
  if (!value) return <p class="loading muted" role="status">Reading the family…</p>;
  const above = value.ancestors ?? (value.parent ? [value.parent] : []);
  const alone = !above.length && !value.children.length && !value.earlier.length && !value.later.length;
  return (
    <div class="pad family">
      {alone && <Empty title="No relatives"><p>Parents, children, retries and forks of the run appear here.</p></Empty>}
      <Kin title="Above" runs={above} />
      <Kin title="Earlier: retried, continued or forked from" runs={value.earlier} />
      <Kin title={`Children${value.children_total > value.children.length ? `, the first ${value.children.length} of ${value.children_total}` : ""}`} runs={value.children} />
      <Kin title="Later: retries, continuations and forks" runs={value.later} />
    </div>
  );
}

function Kin({ title, runs }: { title: string; runs: RunBrief[] }) {
  if (!runs.length) return null;
  return (
    <>
      <h3>{title}</h3>
      <ul class="kin">
        {runs.map((run) => (
          <li key={run.run_id}>
            <Status status={run.status} /> {run.relation && run.relation !== "child" && <span class="muted">{run.relation}</span>} <a href={link(["runs", run.run_id])}><T text={short(run.entry_id, 80)} /></a> <span class="mono muted">{shortId(run.run_id)}</span>
            <span class="muted right"><Time at={run.created_at} />{run.finished_at ? `, took ${duration(run.finished_at - run.created_at)}` : ""}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

function Raw({ id, version }: { id: string; version: number }) {
  const { value, error } = useLoaded(() => getText(runPath(id)), [id], version);
  if (error !== null && value === null) return <Failure error={error} />;
  const command = `curl -H "Authorization: Bearer $HOLDFAST_TOKEN" ${address(runPath(id)).href}`;
  return (
    <div class="pad">
      {value !== null && <Json source={value} label="record" />}
      <p class="muted">The same with curl: <code class="wrap">{command}</code> <Copy text={command} label="Copy the command" /></p>
    </div>
  );
}

export function currentTab(): string {
  const name = route.value.parts[2];
  return TABS.some((tab) => tab.id === name) ? name! : "timeline";
}
