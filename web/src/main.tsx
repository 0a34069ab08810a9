// The frame of the page: navigation, token, live state, keys.
import { effect } from "@preact/signals";
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, keepToken, refused, sentence, takeToken, token } from "./api";
import { count } from "./format";
import { bound, useKeys } from "./keys";
import { go, route } from "./router";
import { applyTheme, asking, forget, may, me, readAsking, readEntries, readStats, setTheme, stats, theme, whole } from "./session";
import { connect, disconnect, held, onChanges, paused, status } from "./stream";
import type { TokenView } from "./types";
import { Button, Dialog, Failure, Icon, Notices, Shape, T } from "./ui";
import { BuildsView } from "./views/builds";
import { InboxView } from "./views/inbox";
import { MachinesView } from "./views/machines";
import { QueuesView } from "./views/queues";
import { currentTab, RunView } from "./views/run";
import { forgetList, RunsView } from "./views/runs";
import { ScheduleView, SchedulesView } from "./views/schedules";
import { StartView } from "./views/start";
import { GatesView, WorkersView } from "./views/workers";
import "uplot/dist/uPlot.min.css";
import "./app.css";

const PLACES = [
  { id: "runs", title: "Runs", key: "r" }, { id: "inbox", title: "Inbox", key: "i" }, { id: "start", title: "Start", key: "s" },
  { id: "schedules", title: "Schedules", key: "c" }, { id: "queues", title: "Queues", key: "q" }, { id: "workers", title: "Workers", key: "w" }, { id: "gates", title: "Gates", key: "t" },
  { id: "builds", title: "Builds", key: "b" },
  { id: "machines", title: "Machines", key: "m" },
];

function View() {
  const [place, id] = route.value.parts;
  if (place === "runs" && id) return <RunView key={id} id={id} tab={currentTab()} />;
  if (place === "inbox") return <InboxView />;
  if (place === "start") return <StartView />;
  if (place === "schedules") return id ? <ScheduleView key={id} id={id} /> : <SchedulesView />;
  if (place === "queues") return <QueuesView />;
  if (place === "workers") return <WorkersView />;
  if (place === "gates") return <GatesView />;
  if (place === "builds") return <BuildsView />;
  if (place === "machines") return <MachinesView />;
  return <RunsView />;
}

function Frame() {
  const [help, setHelp] = useState(false);
  const [account, setAccount] = useState(false);
  const here = route.value.parts[0];
  useEffect(() => {
    document.title = `${PLACES.find((place) => place.id === here)?.title ?? "Runs"} · Holdfast`;
  }, [here, route.value.parts[1]]); // the page of a run has a title of its own
  useEffect(() => {
    let timer: number | undefined;
    const stop = onChanges(() => {
      timer ??= window.setTimeout(() => {
        timer = undefined;
        void Promise.allSettled([readStats(), readAsking()]);
      }, 1000);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, []);
  useKeys([
    { keys: "?", does: "Show the keys", run: () => setHelp(true) },
    { keys: "p", does: "Pause or resume live updates", run: () => (paused.value = !paused.value) },
    { keys: "d", does: "Light, dark or the system's theme", run: nextTheme },
    ...PLACES.map((place) => ({ keys: `g ${place.key}`, does: `Go to ${place.title}`, run: () => go([place.id]) })),
  ]);
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
      <nav class="side" aria-label="Views">
        <a class="brand" href="#/runs"><Mark /> <span>Holdfast</span></a>
        {PLACES.filter((place) => place.id !== "start" || may("submit")).map((place) => (
          <a key={place.id} href={`#/${place.id}`} class="place" aria-current={here === place.id ? "page" : undefined}>
            <Icon name={place.id} /> <span>{place.title}</span>
            {place.id === "inbox" && asking.value ? <span class="badge" aria-label={`${asking.value} wait`}>{asking.value >= 100 ? "99+" : count(asking.value)}</span> : null}
          </a>
        ))}
      </nav>
      <header class="top">
        <Live />
        <span class="spring" />
        <Button kind="quiet" onClick={nextTheme} label={`Theme: ${theme.value}`}><Icon name={theme.value === "light" ? "sun" : theme.value === "dark" ? "moon" : "half"} /></Button>
        <Button kind="quiet" onClick={() => setHelp(true)} label="Keys"><Icon name="keys" /></Button>
        <Button kind="quiet" onClick={() => setAccount(true)}><T text={me.value?.name ?? (token.value ? "token" : "local")} /></Button>
      </header>
      <main id="main" tabIndex={-1}><View /></main>
      {help && <Help onClose={() => setHelp(false)} />}
      {account && <Account onClose={() => setAccount(false)} />}
    </div>
  );
}

function Mark() {
  return (
    <svg viewBox="0 0 32 32" width="20" height="20" aria-hidden="true" class="mark">
      <rect width="32" height="32" rx="7" /><path d="M10 7v18M22 7v18M10 16h12" /><circle cx="16" cy="16" r="3.2" />
    </svg>
  );
}

function nextTheme(): void {
  setTheme(theme.value === "system" ? "light" : theme.value === "light" ? "dark" : "system");
}

function Live() {
  const state = paused.value ? "paused" : status.value;
  const text = { live: "Live", paused: held.value ? `Paused, ${count(held.value)} ${held.value === 1 ? "change waits" : "changes wait"}` : "Paused", broken: "Connection lost, trying again", connecting: "Connecting" }[state];
  return (
    <span class="live">
      <span class={`live-state ${state}`} role="status">
        <Shape status={state === "live" ? "running" : state === "paused" ? "paused" : state === "broken" ? "failed" : "queued"} /> {text}
      </span>
      <Button kind="quiet" onClick={() => (paused.value = !paused.value)} label={paused.value ? "Resume live updates" : "Pause live updates"} pressed={paused.value}>
        <Icon name={paused.value ? "play" : "pause"} />
      </Button>
    </span>
  );
}

function Help({ onClose }: { onClose: () => void }) {
  const merged = new Map<string, string[]>();
  for (const key of bound.value) {
    const same = merged.get(key.does) ?? [];
    merged.set(key.does, same.includes(key.keys) ? same : [...same, key.keys]);
  }
  return (
    <Dialog title="Keys" onClose={onClose}>
      <table class="keys">
        <tbody>
          {[...merged].map(([does, keys]) => (
            <tr key={does}><th scope="row">{does}</th><td>{keys.map((one) => <span key={one}>{one.split(" ").map((part) => <kbd key={part}>{part}</kbd>)}</span>)}</td></tr>
          ))}
          <tr><th scope="row">Close a dialog</th><td><kbd>Escape</kbd></td></tr>
          <tr><th scope="row">Move between tabs</th><td><kbd>ArrowLeft</kbd><kbd>ArrowRight</kbd></td></tr>
        </tbody>
      </table>
    </Dialog>
  );
}

function Account({ onClose }: { onClose: () => void }) {
  const who = me.value;
  return (
    <Dialog title="Your access" onClose={onClose}>
      <dl class="facts">
        <dt>Token</dt><dd><T text={who?.name ?? "none: this server needs none from this machine"} /></dd>
        <dt>Scope</dt><dd>{who?.scope}</dd>
        <dt>Group</dt><dd><T text={who?.group ?? "all groups"} /></dd>
        <dt>Recorded as</dt><dd><T text={who?.actor ?? ""} /></dd>
        {who?.expires_at && <><dt>Expires</dt><dd>{new Date(who.expires_at * 1000).toLocaleString()}</dd></>}
        {whole.value && stats.value && <><dt>Workers</dt><dd>{stats.value.workers} alive</dd></>}
      </dl>
      <p class="muted">The token stays in this tab and is forgotten when you close it. <a href="page/THIRD_PARTY.txt" target="_blank" rel="noreferrer">Licences</a></p>
      <div class="dialog-foot">
        {token.value && <Button onClick={() => { keepToken(null); location.reload(); }}>Forget the token</Button>}
        <Button kind="primary" onClick={onClose}>Close</Button>
      </div>
    </Dialog>
  );
}

function SignIn() {
  const [text, setText] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    if (text.trim()) {
      keepToken(text.trim());
      start();
      setText("");
    }
  };
  return (
    <main class="sign-in">
      <form onSubmit={submit}>
        <h1><Mark /> Holdfast</h1>
        <p role="alert">{refused.value}</p>
        <label class="field">
          <span>Token</span>
          <input type="password" value={text} autocomplete="off" onInput={(event) => setText(event.currentTarget.value)} autofocus />
        </label>
        <button type="submit" class="button primary" disabled={!text.trim()}>Open the dashboard</button>
        <p class="muted">Make one with <code>holdfast tokens create --name ada --scope operate</code>. It stays in this tab.</p>
      </form>
    </main>
  );
}

function App() {
  if (refused.value) return <SignIn />;
  return <>{me.value ? <Frame /> : <Opening />}<Notices /></>;
}

function Opening() {
  const [error, setError] = useState<unknown>(null);
  const [slow, setSlow] = useState(false);
  useEffect(() => {
    const timer = window.setTimeout(() => setSlow(true), SLOW_MS);
    return () => clearTimeout(timer);
  }, []);
  useEffect(() => {
    let timer: number | undefined;
    const look = () => opening.then(() => setError(null), (caught) => {
      setError(caught);
      timer = window.setTimeout(() => { start(); look(); }, 3000);
    });
    look();
    return () => clearTimeout(timer);
  }, []);
  if (error === null && !slow) return null;
  return (
    <main class="sign-in">
      <div>
        <h1><Mark /> Holdfast</h1>
        {error !== null
          ? <><Failure error={error} /><p class="muted">{sentence("The page tries again every three seconds")}</p></>
          : <p class="muted" role="status">Waits for the answer of the server…</p>}
      </div>
    </main>
  );
}

const SLOW_MS = 300; // a page that opens faster shows no message before

let opening: Promise<void> = Promise.resolve();

function start(): void {
  if (refused.value) return;
  opening = (async () => {
    me.value = await get<TokenView>("token");
    connect();
    await Promise.allSettled([readStats(), readEntries(), readAsking()]);
  })();
  opening.catch(() => undefined); // shown by Opening
}

// A refused token empties the page: everything that came from the server leaves the memory with it.
effect(() => {
  if (!refused.value) return;
  keepTokenOut();
});

function keepTokenOut(): void {
  const why = refused.peek();
  sessionStorage.removeItem("holdfast.token");
  token.value = null;
  refused.value = why;
  disconnect();
  forget();
  forgetList();
  document.title = "Holdfast";
}

applyTheme();
takeToken();
dispatchEvent(new Event("hashchange")); // the address after the token is the first route
addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#t=")) return;
  takeToken();
  go(["runs"], undefined, true);
  start();
});
start();
render(<App />, document.getElementById("app")!);
