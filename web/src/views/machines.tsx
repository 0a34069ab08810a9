// The three state machines as tables, with the path of the run that was opened last.
import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { shortId, words } from "../format";
import { link } from "../router";
import { openRun } from "../session";
import { Story } from "../story";
import type { MachineTable, Page } from "../types";
import { Failure, Status, useLoaded } from "../ui";

interface Step {
  from: string | null;
  event: string;
  to: string;
  seq: number;
}

// The transitions of the job and of the run, in the order of the story.
function pathsOf(story: Story): { job: Step[]; run: Step[] } {
  const job: Step[] = [];
  const run: Step[] = [];
  let [state, status, id]: [string | null, string | null, string | null] = [null, null, null];
  story.items.forEach((item) => {
    const changes = item.changes as { state?: string; run?: { status?: string; id?: string } };
    if (changes.state !== undefined && (job.length === 0 || changes.state !== null)) {
      job.push({ from: state, event: item.type, to: changes.state, seq: item.seq });
      state = changes.state;
    }
    if (changes.run?.id !== undefined && changes.run.id !== id) [id, status] = [changes.run.id, null];
    if (changes.run?.status !== undefined) {
      run.push({ from: status, event: changes.run.status, to: changes.run.status, seq: item.seq });
      status = changes.run.status;
    }
  });
  return { job, run };
}

export function MachinesView() {
  const { value, error, reload } = useLoaded(() => get<Page<MachineTable>>("machines"), []);
  const [paths, setPaths] = useState<{ job: Step[]; run: Step[] } | null>(null);
  const id = openRun.value;
  useEffect(() => {
    setPaths(null);
    if (!id) return;
    const story = new Story(id);
    story.read().then(() => setPaths(pathsOf(story)), () => setPaths(null));
  }, [id]);
  return (
    <section class="view">
      <header class="head">
        <h1>Machines</h1>
        <p class="muted">Three tables decide what may happen, and every write is checked against them. {id
          ? <>Marked: the path of the run <a class="mono" href={link(["runs", id])}>{shortId(id)}</a>.</> : "Open a run to see its path here."}</p>
      </header>
      {error !== null && <Failure error={error} again={reload} />}
      {value?.items.map((table) => <Machine key={table.machine} table={table} path={paths?.[table.machine.toLowerCase() as "job" | "run"] ?? []} />)}
    </section>
  );
}

const SHOWN = 12;

function Machine({ table, path }: { table: MachineTable; path: Step[] }) {
  const targets = new Map(table.rows.map((row) => [`${row.from ?? ""} ${row.event}`, row.to]));
  const places = new Map<string, number[]>();
  path.forEach((step, at) => {
    const key = `${step.from ?? ""} ${step.event}`;
    places.set(key, [...(places.get(key) ?? []), at + 1]);
  });
  const starts = table.rows.some((row) => row.from === null) ? [null, ...table.states] : table.states;
  return (
    <div class="machine">
      <h2>{table.machine === "ReadyState" ? "Readiness" : table.machine}</h2>
      {path.length > 0 && (
        <ol class="path" aria-label={`Path of the run through the ${table.machine} machine`}>
          {path.slice(-SHOWN).map((step, at) => <li key={at}><span class="muted">{path.length > SHOWN ? path.length - SHOWN + at + 1 : at + 1}</span> <Status status={step.to} /></li>)}
        </ol>
      )}
      <div class="table-box" tabIndex={0} role="group" aria-label={`Transitions of ${table.machine}`}>
        <table class="matrix">
          <caption class="away">From each state (rows), each event (columns) leads to the state in the cell</caption>
          <thead><tr><th>from</th>{table.events.map((event) => <th key={event}><span>{words(event)}</span></th>)}</tr></thead>
          <tbody>
            {starts.map((state) => (
              <tr key={state ?? ""}>
                <th>{state === null ? <span class="muted">start</span> : <Status status={state} />}</th>
                {table.events.map((event) => {
                  const to = targets.get(`${state ?? ""} ${event}`);
                  const visits = places.get(`${state ?? ""} ${event}`);
                  return (
                    <td key={event} class={visits ? "visited" : ""}>
                      {to ? words(to) : <span class="none" aria-label="refused">–</span>}
                      {visits && <span class="visits" aria-label={`step ${visits.join(", ")}`}>{visits.length > 4 ? `${visits.slice(0, 3).join(",")}…` : visits.join(",")}</span>}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
