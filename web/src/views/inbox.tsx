// The inbox: everything that waits for a person, answered in place.
import { useEffect, useRef, useState } from "preact/hooks";
import { capital, get, Problem, runPath, type Act } from "../api";
import { parseExact } from "../exact";
import { count, short, visible } from "../format";
import { useKeys } from "../keys";
import { link } from "../router";
import { asking, may } from "../session";
import { onChanges, paused, refresh, reread } from "../stream";
import type { InboxItem, Page, Schema } from "../types";
import { Block, Button, Confirm, Empty, Failure, Shape, T, tell, Time, useActions, useLoaded } from "../ui";
import { missing } from "./events";
import { Boundary, Free, FreeInput, freeText, initial, jsonOf, Mistake, SchemaForm, type Entered } from "./form";

const KINDS = ["doubt", "answer", "budget", "deploy"] as const;
const TITLES = { doubt: "In doubt", answer: "Questions", budget: "Budgets", deploy: "Deploys" };
const NAMES = { doubt: "In doubt", answer: "Question", budget: "Budget", deploy: "New code" };
const MOST = 100;

interface Inbox {
  items: InboxItem[];
  error: unknown;
  loaded: boolean;
  more: (() => void) | null; // reads another page; null if there is none
  reload: () => void;
}

// What waits for a person: all, of one kind, or of one run.
export function useInbox(kind: string | null = null, run: string | null = null): Inbox {
  const pages = useRef(1);
  const { value, error, reload } = useLoaded(async () => {
    const items: InboxItem[] = [];
    let next: string | null = null;
    for (let page = 0; page < pages.current && (page === 0 || next !== null); page++) {
      const read: Page<InboxItem> = await get("inbox", { limit: MOST, cursor: next, kind, run_id: run });
      items.push(...read.items);
      next = read.next;
    }
    return { items, next };
  }, [kind, run]);
  const more = () => {
    pages.current++;
    reload();
  };
  useEffect(() => {
    pages.current = 1;
    let timer: number | undefined;
    const stop = onChanges(() => {
      const before = paused.value;
      timer ??= window.setTimeout(() => {
        timer = undefined;
        if (paused.value && !before) reread(); // the user has paused the page since
        else reload();
      }, 400);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [kind, run]);
  return { items: value?.items ?? [], error, loaded: value !== null, more: value?.next != null ? more : null, reload };
}

export function InboxView() {
  const [kind, setKind] = useState<(typeof KINDS)[number] | null>(null);
  const { items, error, loaded, more, reload } = useInbox(kind);
  useEffect(() => {
    if (loaded && kind === null) asking.value = items.length;
  }, [items, loaded, kind]);
  const number = (one: string | null) => {
    if (!loaded || (kind !== one && (more || kind !== null))) return ""; // not known
    return ` ${items.filter((item) => !one || item.kind === one).length}${more ? "+" : ""}`;
  };
  const focus = (step: number) => {
    const cards = [...document.querySelectorAll<HTMLElement>(".card[data-ask]")];
    const at = cards.findIndex((card) => card.contains(document.activeElement));
    cards[Math.max(0, Math.min(cards.length - 1, at + step))]?.focus();
  };
  useKeys([
    { keys: "j", does: "Next question", run: () => focus(1) },
    { keys: "k", does: "Previous question", run: () => focus(-1) },
  ]);
  return (
    <section class="view">
      <header class="head"><h1>Inbox</h1><p class="muted">What waits for a person, oldest first. Answers are recorded with your name.</p></header>
      {error !== null && <Failure error={missing(error)} again={reload} />}
      {(items.length > 0 || kind !== null) && (
        <div class="segments" role="group" aria-label="Show">
          {[null, ...KINDS].map((one) => (
            <button type="button" key={one} aria-pressed={kind === one} onClick={() => setKind(one)}>{one ? TITLES[one] : "All"}{number(one)}</button>
          ))}
        </div>
      )}
      {loaded && !items.length && error === null && (
        <Empty title={kind ? "Nothing of this kind waits for you" : "Nothing waits for you"}>
          <p>A tool in doubt, a question with a form, a spent budget, or code that does not fit a run appears here.</p>
        </Empty>
      )}
      <Asks items={items} onDone={reload} />
      {more && <p class="pad"><Button onClick={more}>Show more</Button></p>}
    </section>
  );
}

// A card for each question. The next question of a run gets a card of its own, without what was entered for the last.
export function Asks({ items, onDone, here }: { items: InboxItem[]; onDone: () => void; here?: boolean }) {
  return <div class="cards">{items.map((item) => <Ask key={`${item.id} ${item.node} ${item.started}`} item={item} onDone={onDone} here={here} />)}</div>;
}

function Ask({ item, onDone, here }: { item: InboxItem; onDone: () => void; here?: boolean }) {
  return (
    <article class="card" data-ask tabIndex={-1} aria-label={visible(item.question)}>
      <div class="card-head">
        <span class={`status tone-${item.kind === "answer" ? "waiting" : "in_doubt"}`}><Shape status={item.kind === "doubt" ? "in_doubt" : item.kind === "budget" ? "exhausted" : "waiting"} />{NAMES[item.kind]}</span>
        <span class="muted">{!here && <><T text={short(item.entry_id, 60)} /> · <a href={link(["runs", item.run_id])}>open the run</a> · </>}since <Time at={item.since} />
          {item.until ? <> · until <Time at={item.until} /></> : null}</span>
      </div>
      <p class="question"><T text={short(capital(item.question), 600)} /></p>
      {item.misfit && <p class="bad">The last answer could not be used: <T text={short(item.misfit, 300)} /></p>}
      {item.call && item.call.args && !item.question.includes(item.call.args) && <Block text={item.call.args} label="arguments" />}
      {item.kind === "doubt" && <Doubt item={item} onDone={onDone} />}
      {item.kind === "answer" && <Boundary><Answer item={item} onDone={onDone} /></Boundary>}
      {item.kind === "budget" && <Budget item={item} onDone={onDone} />}
      {item.kind === "deploy" && <Deploy item={item} onDone={onDone} />}
    </article>
  );
}

interface Send {
  error: unknown;
  busy: boolean;
  setError: (error: unknown) => void;
  act: Act;
  run: (send: () => Promise<unknown>, done: string) => Promise<void>;
}

function useSend(item: InboxItem, onDone: () => void): Send {
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const act = useActions();
  useEffect(() => setBusy(false), [item.since]); // the same is asked again
  const run = async (send: () => Promise<unknown>, done: string) => {
    setBusy(true); // and still after the answer: the card goes when the list is read again
    setError(null);
    try {
      await send();
      tell(done);
      refresh();
      onDone();
    } catch (caught) {
      if (isClosed(caught)) {
        tell(`${item.title || item.key}: ${closedText(caught)} Your answer was not stored.`, true);
        onDone();
      }
      setError(caught);
      setBusy(false);
    }
  };
  return { error, busy, setError, act, run };
}

// Whether the question is no longer open: another person was first, or the run went on.
function isClosed(error: unknown): error is Problem {
  return error instanceof Problem && (error.code === "question_closed" || error.code === "not_in_doubt");
}

function closedText(problem: Problem): string {
  const by = problem.params.answered_by;
  return typeof by === "string" ? `${by} has answered first.` : "this question is no longer open. Another person may have answered it.";
}

function NeedsScope({ scope }: { scope: string }) {
  return <p class="muted">Answering needs a token with the scope {scope}.</p>;
}

function Doubt({ item, onDone }: { item: InboxItem; onDone: () => void }) {
  const { error, busy, setError, act, run } = useSend(item, onDone);
  const [result, setResult] = useState(new Free(""));
  const [failing, setFailing] = useState(false);
  if (!may("operate")) return <NeedsScope scope="operate" />;
  const name = item.title || item.key;
  const answer = (word: string, extra = "") => act(runPath(item.run_id, "/resolve"), `{"step":${JSON.stringify(item.key)},"answer":"${word}"${extra}${item.started ? `,"started":${item.started}` : ""}}`);
  const done = () => run(() => {
    const text = freeText(result, (message) => { throw new Error(`the result ${message}`); });
    return answer("done", text === undefined ? "" : `,"result":${text}`);
  }, `${name}: recorded as done.`);
  return (
    <>
      <div class="answers">
        <div class="answer">
          <div class="field"><label for={`result-${item.id}`}>It happened. Its result was <span class="muted">(optional)</span></label>
            <FreeInput free={result} onChange={(next) => { setResult(next); setError(null); }} common={{ id: `result-${item.id}` }} label="Its result" />
          </div>
          <Button kind="primary" disabled={busy} onClick={done}>Done</Button>
        </div>
        <div class="answer-row">
          <Button disabled={busy} onClick={() => run(() => answer("not_done"), `${name}: it runs again.`)}>Not done: run it again</Button>
          <Button kind="danger" disabled={busy} onClick={() => setFailing(true)}>Fail the step…</Button>
        </div>
      </div>
      {error !== null && <Failure error={error} />}
      {failing && (
        <Confirm title={`Fail ${short(name, 60)}`} verb="Fail the step" danger onClose={() => setFailing(false)} onYes={async () => { await answer("fail"); tell(`${name}: recorded as failed.`); refresh(); onDone(); }}>
          <p>The call raises an error in the job's code. The job fails if its code does not handle it.</p>
        </Confirm>
      )}
    </>
  );
}

function Answer({ item, onDone }: { item: InboxItem; onDone: () => void }) {
  const schema: Schema = item.form ?? { title: "Your answer" };
  const { error, busy, setError, act, run } = useSend(item, onDone);
  const [value, setValue] = useState<Entered>(() => initial({ schema, root: schema }));
  const [mistake, setMistake] = useState<Mistake | null>(null);
  if (!may("signal")) return <NeedsScope scope="signal" />;
  const submit = async (event: Event) => {
    event.preventDefault();
    setMistake(null);
    let text: string | undefined;
    try {
      text = jsonOf({ schema, root: schema }, value, "", item.form != null);
    } catch (caught) {
      if (caught instanceof Mistake) return setMistake(caught);
      throw caught;
    }
    const body = `{"key":${JSON.stringify(item.key)},"payload":${text ?? "null"}${nodeOf(item)}}`;
    await run(async () => {
      try {
        const { outcome } = await act<{ outcome: string }>(runPath(item.run_id, "/signal"), body);
        if (outcome !== "delivered" && outcome !== "repeat") throw new Problem(409, "question_closed", `the answer is ${outcome}`);
      } catch (caught) {
        const wrong = mistakeOf(caught);
        if (wrong) setMistake(wrong);
        throw caught;
      }
    }, `${item.title || item.key}: answered.`);
  };
  return (
    <form class="answer-form" onSubmit={(event) => void submit(event)} noValidate>
      <SchemaForm schema={schema} value={value} onChange={(next) => { setValue(next); setMistake(null); setError(null); }} mistake={mistake} />
      {error !== null && <Failure error={error} />}
      <button type="submit" class="button primary" disabled={busy}>Answer</button>
    </form>
  );
}

// The field that the server refused: "answer.lines[0].amount: must be at most 100, got 101".
function mistakeOf(error: unknown): Mistake | null {
  const reason = error instanceof Problem && error.status === 422 ? String(error.params.reason ?? "") : "";
  const found = /^answer\.?([^:]*): (.*)$/s.exec(reason);
  return found ? new Mistake(found[1]!, found[2]!) : null;
}

function Budget({ item, onDone }: { item: InboxItem; onDone: () => void }) {
  const units = Object.keys(item.amounts ?? {});
  const { error, busy, act, run } = useSend(item, onDone);
  const [amounts, setAmounts] = useState<Record<string, string>>({});
  const [tried, setTried] = useState(false);
  if (!may("operate")) return <NeedsScope scope="operate" />;
  const given = Object.entries(amounts).map(([unit, text]): [string, string] => [unit, text.trim()]).filter(([, text]) => text !== "");
  const wrong = (unit: string) => given.some(([one, text]) => one === unit && !/^\d+(\.\d+)?$/.test(text));
  const grant = (event: Event) => {
    event.preventDefault();
    setTried(true);
    if (given.some(([unit]) => wrong(unit))) return;
    const body = `{"amounts":{${given.map(([unit, text]) => `${JSON.stringify(unit)}:${text.replace(/^0+(?=\d)/, "")}`).join(",")}}${nodeOf(item)}}`;
    void run(() => act(runPath(item.run_id, "/grant"), body), "The budget was raised.");
  };
  const shown = units.length ? units : ["tokens"];
  return (
    <form class="answers" onSubmit={grant}>
      {shown.map((unit) => (
        <label class="field" key={unit}>
          <span>Add {unit} {item.amounts?.[unit] && <span class="muted">{count(item.amounts[unit]!.spent)} spent of {count(item.amounts[unit]!.limit)}</span>}</span>
          <input type="text" inputMode="decimal" value={amounts[unit] ?? ""} aria-invalid={tried && wrong(unit) ? true : undefined} onInput={(event) => setAmounts({ ...amounts, [unit]: event.currentTarget.value })} />
          {tried && wrong(unit) && <span class="wrong" role="alert">{unit} must be a number such as 5000 or 1.5, without separators</span>}
        </label>
      ))}
      {error !== null && <Failure error={error} />}
      <button type="submit" class="button primary" disabled={busy || !given.length}>Grant</button>
    </form>
  );
}

// The code of the run does not fit its history.
function Deploy({ item, onDone }: { item: InboxItem; onDone: () => void }) {
  const { error, busy, act, run } = useSend(item, onDone);
  const [ending, setEnding] = useState<"fork" | "fail" | null>(null);
  if (!may("operate")) return <NeedsScope scope="operate" />;
  const { began, build } = item.deploy ?? {};
  const answer = (word: string) => act(runPath(item.run_id, "/answer"), `{"answer":"${word}"${nodeOf(item)}}`);
  return (
    <>
      <div class="answer-row">
        <Button kind="primary" disabled={busy} onClick={() => run(() => answer("accept"), "The run goes on with the new call.")}>Accept the new call</Button>
        {began && began !== build && <Button disabled={busy} onClick={() => run(() => answer("build"), `The run goes on with build ${began}.`)}>Go on with build <T text={short(began, 40)} /></Button>}
        <Button disabled={busy} onClick={() => setEnding("fork")}>Fork…</Button>
        <Button kind="danger" disabled={busy} onClick={() => setEnding("fail")}>Fail the run…</Button>
      </div>
      {error !== null && <Failure error={error} />}
      {ending && (
        <Confirm title={ending === "fork" ? "Fork the run" : "Fail the run"} verb={ending === "fork" ? "Cancel and fork" : "Fail the run"} danger onClose={() => setEnding(null)} onYes={async () => { await answer(ending); tell(ending === "fork" ? "The run was forked." : "The run has failed."); refresh(); onDone(); }}>
          <p>{ending === "fork" ? "The run is cancelled. A new run reuses its results up to this call, and makes all later calls again." : "The run ends as failed. It can be retried."}</p>
        </Confirm>
      )}
    </>
  );
}

// The part of an answer that names its question.
function nodeOf({ node }: { node?: string }): string {
  return node ? `,"node":${JSON.stringify(node)}` : "";
}

export async function sendSignal(act: Act, id: string, key: string, payload: string, node?: string): Promise<string> {
  const text = payload.trim() || "null";
  parseExact(text);
  const { outcome } = await act<{ outcome: string }>(runPath(id, "/signal"), `{"key":${JSON.stringify(key)},"payload":${text}${nodeOf({ node })}}`);
  return outcome;
}
