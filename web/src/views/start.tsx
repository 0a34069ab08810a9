// Start a run: a form made from the parameters of a job.
import { useEffect, useState } from "preact/hooks";
import { parseExact } from "../exact";
import { short } from "../format";
import { go, route } from "../router";
import { entries, may, readEntries } from "../session";
import type { Entry, RunRecord } from "../types";
import { Empty, Failure, T, tell, useActions } from "../ui";
import { Boundary, initial, jsonOf, Mistake, SchemaForm, type Entered } from "./form";

export function StartView() {
  const wanted = route.value.query.get("job");
  const [error, setError] = useState<unknown>(null);
  useEffect(() => void readEntries().catch(setError), []);
  const open = entries.value.filter((entry) => entry.open !== false || true);
  const nameOf = (entry: Entry) => `${entry.plugin_id}.${entry.entry_id}`;
  const chosen = open.find((entry) => nameOf(entry) === wanted) ?? (open.length === 1 ? open[0] : undefined);
  if (!may("submit")) return <section class="view"><h1>Start</h1><Empty title="Starting needs a token with the scope submit" /></section>;
  return (
    <section class="view narrow">
      <header class="head"><h1>Start a run</h1></header>
      {error !== null && <Failure error={error} />}
      {!open.length && error === null && <Empty title="No jobs are declared"><p>Serve a file with jobs: <code>holdfast dev shop.py</code>.</p></Empty>}
      {open.length > 0 && (
        <label class="field">
          <span>Job</span>
          <select value={chosen ? nameOf(chosen) : ""} onChange={(event) => go(["start"], new URLSearchParams([["job", event.currentTarget.value]]), true)}>
            <option value="">choose a job…</option>
            {open.map((entry) => <option key={nameOf(entry)} value={nameOf(entry)}>{short(nameOf(entry), 120)}</option>)}
          </select>
        </label>
      )}
      {chosen && <Boundary key={nameOf(chosen)}><StartForm entry={chosen} /></Boundary>}
    </section>
  );
}

const OPTIONS: [string, string, string][] = [
  ["idempotency_key", "Idempotency key", "A second start with the same key returns the same run."],
  ["delay", "Delay", "Such as 10m or 2d."],
  ["deadline", "Deadline", "Such as 3d, from now."],
  ["priority", "Priority", "A whole number. Higher runs first."],
  ["queue", "Queue", "The job's own queue if empty."],
  ["group", "Group", "A tenant, for fair shares and limits."],
];

function StartForm({ entry }: { entry: Entry }) {
  const schema = entry.parameters;
  const [value, setValue] = useState<Entered>(() => initial({ schema, root: schema }));
  const [options, setOptions] = useState<Record<string, string>>({});
  const [attributes, setAttributes] = useState("");
  const [mistake, setMistake] = useState<Mistake | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const act = useActions();
  const submit = async (event: Event) => {
    event.preventDefault();
    setMistake(null);
    setError(null);
    const parts = [`"plugin_id":${JSON.stringify(entry.plugin_id)}`, `"entry_id":${JSON.stringify(entry.entry_id)}`];
    try {
      parts.push(`"args":${jsonOf({ schema, root: schema }, value, "", true) ?? "{}"}`);
      for (const [name, text] of Object.entries(options)) {
        if (!text.trim()) continue;
        if (name === "priority" && !/^-?\d+$/.test(text.trim())) throw new Mistake(name, "must be a whole number");
        parts.push(`"${name}":${name === "priority" ? text.trim() : JSON.stringify(text.trim())}`);
      }
      if (attributes.trim()) parts.push(`"attributes":${(parseExact(attributes), attributes)}`);
    } catch (caught) {
      if (caught instanceof Mistake) setMistake(caught);
      else setError(caught);
      return;
    }
    setBusy(true);
    try {
      const run = await act<RunRecord>("runs", `{${parts.join(",")}}`);
      tell("The run is stored and starts when a worker is free.");
      go(["runs", run.run_id]);
    } catch (caught) {
      setError(caught);
      setBusy(false);
    }
  };
  return (
    <form class="start" onSubmit={(event) => void submit(event)} noValidate>
      {entry.description && <p class="muted"><T text={short(entry.description, 500)} /></p>}
      <SchemaForm schema={schema} value={value} onChange={(next) => { setValue(next); setMistake(null); }} mistake={mistake} />
      <details>
        <summary>More: key, delay, deadline, priority, queue, attributes</summary>
        {OPTIONS.map(([name, title, help]) => (
          <label class="field" key={name}>
            <span>{title} <span class="muted">{help}</span></span>
            <input type="text" value={options[name] ?? ""} onInput={(event) => setOptions({ ...options, [name]: event.currentTarget.value })} />
            {mistake?.path === name && <span class="wrong" role="alert">{title} {mistake.message}</span>}
          </label>
        ))}
        <label class="field"><span>Attributes <span class="muted">JSON object, such as {'{"customer": "ada"}'}</span></span>
          <input type="text" class="mono" value={attributes} onInput={(event) => setAttributes(event.currentTarget.value)} /></label>
      </details>
      {error !== null && <Failure error={error} />}
      <button type="submit" class="button primary" disabled={busy}>Start</button>
    </form>
  );
}
