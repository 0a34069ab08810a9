// Workers: what each runs, which step, since when. And the gates that they hold closed.
import { get } from "../api";
import { duration, now, relative, short, shortId, words } from "../format";
import { link } from "../router";
import { whole } from "../session";
import type { GateCard, Page, WorkerStatus } from "../types";
import { Empty, Failure, Status, T, Time, useLoaded } from "../ui";
import { NotForGroups, useReload } from "./queues";

export function WorkersView() {
  const { value, error, reload } = useLoaded(() => (whole.value ? get<Page<WorkerStatus>>("workers") : Promise.resolve(null)), [whole.value]);
  useReload(reload, 1);
  const workers = [...(value?.items ?? [])].sort((one, other) => Number(other.alive) - Number(one.alive) || (other.card.seen_at ?? 0) - (one.card.seen_at ?? 0));
  return (
    <section class="view">
      <header class="head"><h1>Workers</h1>{value && <p class="muted">{workers.filter((one) => one.alive).length} alive</p>}</header>
      {!whole.value && <NotForGroups />}
      {error !== null && <Failure error={error} again={reload} />}
      {value && !workers.length && <Empty title="No workers"><p>Runs wait until one is started: <code>holdfast worker shop.py</code>, or <code>holdfast dev shop.py</code> for both.</p></Empty>}
      <div class="cards">{workers.map((one) => <Worker key={one.card.name} worker={one} />)}</div>
    </section>
  );
}

function Worker({ worker }: { worker: WorkerStatus }) {
  const { card, running } = worker;
  return (
    <article class={`card worker${worker.alive ? "" : " gone"}`}>
      <div class="card-head">
        <h2><Status status={worker.alive ? (running.length ? "running" : "ready") : "dead"} /> <T text={short(card.name, 60)} /></h2>
        <span class="muted"><T text={short(card.host, 60)} /> · process {card.pid} · {running.length} of {card.slots} slots
          {card.build ? <> · build <T text={short(card.build, 40)} /></> : null}
          {card.started_at ? <> · since <Time at={card.started_at} /></> : null}{!worker.alive && card.seen_at ? <> · last seen <Time at={card.seen_at} /></> : null}</span>
      </div>
      {card.blocked && <p class="bad">Takes no jobs: <T text={short(card.blocked, 300)} /></p>}
      {running.length > 0 ? (
        <div class="table-box">
          <table>
            <caption class="away">Jobs of {card.name}</caption>
            <thead><tr><th>Job</th><th>Run</th><th>Step now</th><th class="right">Attempt</th><th class="right">Runs for</th></tr></thead>
            <tbody>
              {running.slice(0, 100).map((job) => (
                <tr key={job.job}>
                  <td><T text={short(job.entry, 60)} /></td>
                  <td><a class="mono" href={link(["runs", job.job])}>{shortId(job.job)}</a></td>
                  <td>{job.steps.length
                    ? job.steps.slice(0, 3).map((step) => <div key={step.node}><T text={short(stepName(step.node), 60)} /> <span class="muted">{step.tool ? "tool, " : ""}{duration(now.value - step.since)}</span></div>)
                    : <span class="muted">between steps</span>}
                    {job.steps.length > 3 && <div class="muted">and {job.steps.length - 3} more</div>}</td>
                  <td class="right">{job.attempt}</td>
                  <td class="right">{duration(now.value - job.since)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : worker.alive && <p class="muted">Waits for jobs of {card.queues ? card.queues.join(", ") : "all queues"}.</p>}
    </article>
  );
}

function stepName(node: string): string {
  return node.replace(/:[0-9a-f]{4,}(?=$|\.)/, "");
}

interface GateView {
  worker: string;
  at: number;
  gate: GateCard;
}

export function GatesView() {
  const { value, error, reload } = useLoaded(() => (whole.value ? get<Page<GateView>>("gates") : Promise.resolve(null)), [whole.value]);
  useReload(reload, 2);
  const gates = [...(value?.items ?? [])].sort((one, other) => Number(one.gate.state === "ready") - Number(other.gate.state === "ready"));
  return (
    <section class="view">
      <header class="head"><h1>Gates</h1><p class="muted">A gate holds work back until what it needs is ready, such as a service or a budget.</p></header>
      {!whole.value && <NotForGroups />}
      {error !== null && <Failure error={error} again={reload} />}
      {value && !gates.length && <Empty title="No gates"><p>A job waits for a gate with <code>await ready(gate)</code>. Gates of running workers appear here.</p></Empty>}
      {gates.length > 0 && (
        <div class="table-box" tabIndex={0} role="group" aria-label="Gates of all workers">
          <table>
            <caption class="away">Gates of all workers</caption>
            <thead><tr><th>Gate</th><th>State</th><th>Why</th><th class="right">Waiting</th><th>Jobs</th><th>Worker</th><th class="right">Reported</th></tr></thead>
            <tbody>
              {gates.map(({ worker, at, gate }) => (
                <tr key={worker + gate.name}>
                  <td><T text={short(gate.name, 80)} /></td>
                  <td><Status status={gate.state} /></td>
                  <td><T text={short([gate.why, gate.held, gate.violation].filter(Boolean).map((text) => words(text!)).join("; "), 200)} />
                    {gate.opens_at ? <span class="muted">{gate.why || gate.held || gate.violation ? "; " : ""}opens {relative(gate.opens_at)}</span> : null}</td>
                  <td class="right">{gate.waiting ?? 0}</td>
                  <td>{(gate.jobs ?? []).slice(0, 5).map((job) => <div key={job}><a class="mono" href={link(["runs", job])}>{shortId(job)}</a></div>)}</td>
                  <td class="muted"><T text={short(worker, 40)} /></td>
                  <td class="right muted"><Time at={at} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
