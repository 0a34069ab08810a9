// The inbox: everything that waits for a person, answered in place.
import { useEffect, useState } from "preact/hooks";
import { capital, get, postText, Problem, runPath } from "../api";
import { parseExact } from "../exact";
import { count, short, visible } from "../format";
import { useKeys } from "../keys";
import { link } from "../router";
import { asking, may } from "../session";
import { onChanges, refresh } from "../stream";
import type { InboxItem, Page, Schema } from "../types";
import { Block, Button, Confirm, Empty, Failure, Shape, T, tell, Time, useLoaded } from "../ui";
import { missing } from "./events";
import { initial, jsonOf, Mistake, SchemaForm, type Entered } from "./form";

const KINDS = ["doubt", "answer", "budget"] as const;
const TITLES = { doubt: "In doubt", answer: "Questions", budget: "Budgets" };
const NAMES = { doubt: "In doubt", answer: "Question", budget: "Budget" };
const MOST = 100;

export function useInbox(): { items: InboxItem[]; error: unknown; loaded: boolean; more: boolean; reload: () => void } {
  const { value, error, reload } = useLoaded(() => get<Page<InboxItem>>("inbox", { limit: MOST }), []);
  useEffect(() => {
    let timer: number | undefined;
    const stop = onChanges(() => {
      timer ??= window.setTimeout(() => {
        timer = undefined;
        reload();
      }, 400);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, []);
  return { items: value?.items ?? [], error, loaded: value !== null, more: value?.next != null, reload };
}

export function InboxView() {
  const { items, error, loaded, more, reload } = useInbox();
  const [kind, setKind] = useState<(typeof KINDS)[number] | null>(null);
  const shown = items.filter((item) => !kind || item.kind === kind);
  useEffect(() => {
    if (loaded) asking.value = items.length;
  }, [items, loaded]);
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
      {items.length > 0 && (
        <div class="segments" role="group" aria-label="Show">
          <button type="button" aria-pressed={kind === null} onClick={() => setKind(null)}>All {items.length}{more ? "+" : ""}</button>
          {KINDS.map((one) => {
            const number = items.filter((item) => item.kind === one).length;
            return number ? <button type="button" key={one} aria-pressed={kind === one} onClick={() => setKind(one)}>{TITLES[one]} {number}</button> : null;
          })}
        </div>
      )}
      {loaded && !items.length && error === null && (
        <Empty title="Nothing waits for you">
          <p>A tool in doubt, a question with a form, or a spent budget appears here.</p>
        </Empty>
      )}
      <div class="cards">{shown.map((item) => <Ask key={item.id} item={item} onDone={reload} />)}</div>
      {more && <p class="muted pad">More wait. They appear when these are answered.</p>}
    </section>
  );
}

export function Ask({ item, onDone, here }: { item: InboxItem; onDone: () => void; here?: boolean }) {
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
      {item.kind === "answer" && <Answer item={item} onDone={onDone} />}
      {item.kind === "budget" && <Budget item={item} onDone={onDone} />}
    </article>
  );
}

function useSend(onDone: () => void): { error: unknown; busy: boolean; setError: (error: unknown) => void; run: (act: () => Promise<unknown>, done: string) => Promise<void> } {
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const run = async (act: () => Promise<unknown>, done: string) => {
    setBusy(true);
    setError(null);
    try {
      await act();
      tell(done);
      refresh();
      onDone();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return { error, busy, setError, run };
}

function NeedsScope({ scope }: { scope: string }) {
  return <p class="muted">Answering needs a token with the scope {scope}.</p>;
}

function Doubt({ item, onDone }: { item: InboxItem; onDone: () => void }) {
  const { error, busy, setError, run } = useSend(onDone);
  const [result, setResult] = useState("");
  const [failing, setFailing] = useState(false);
  if (!may("operate")) return <NeedsScope scope="operate" />;
  const name = item.title || item.key;
  const answer = (word: string, extra = "") => postText(runPath(item.run_id, "/resolve"), `{"step":${JSON.stringify(item.key)},"answer":"${word}"${extra}}`);
  const done = () => {
    let text = result.trim();
    try {
      if (text) parseExact(text);
    } catch {
      text = JSON.stringify(result); // plain text is a string
    }
    return run(() => answer("done", text ? `,"result":${text}` : ""), `${name}: recorded as done.`);
  };
  return (
    <>
      <div class="answers">
        <div class="answer">
          <label class="field"><span>It happened. Its result was <span class="muted">(JSON or text, optional)</span></span>
            <input type="text" class="mono" value={result} onInput={(event) => { setResult(event.currentTarget.value); setError(null); }} />
          </label>
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
  const schema: Schema = item.form ?? {};
  const { error, busy, setError, run } = useSend(onDone);
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
    const body = `{"key":${JSON.stringify(item.key)},"payload":${text ?? "null"}}`;
    await run(async () => {
      try {
        await postText(runPath(item.run_id, "/signal"), body);
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
  const { error, busy, run } = useSend(onDone);
  const [amounts, setAmounts] = useState<Record<string, string>>({});
  if (!may("operate")) return <NeedsScope scope="operate" />;
  const given = Object.entries(amounts).filter(([, text]) => /^\d+(\.\d+)?$/.test(text.trim()));
  const grant = (event: Event) => {
    event.preventDefault();
    const body = `{"amounts":{${given.map(([unit, text]) => `${JSON.stringify(unit)}:${text.trim()}`).join(",")}}}`;
    void run(() => postText(runPath(item.run_id, "/grant"), body), "The budget was raised.");
  };
  const shown = units.length ? units : ["tokens"];
  return (
    <form class="answers" onSubmit={grant}>
      {shown.map((unit) => (
        <label class="field" key={unit}>
          <span>Add {unit} {item.amounts?.[unit] && <span class="muted">{count(item.amounts[unit]!.spent)} spent of {count(item.amounts[unit]!.limit)}</span>}</span>
          <input type="text" inputMode="decimal" value={amounts[unit] ?? ""} onInput={(event) => setAmounts({ ...amounts, [unit]: event.currentTarget.value })} />
        </label>
      ))}
      {error !== null && <Failure error={error} />}
      <button type="submit" class="button primary" disabled={busy || !given.length}>Grant</button>
    </form>
  );
}

export async function sendSignal(id: string, key: string, payload: string): Promise<string> {
  const text = payload.trim() || "null";
  parseExact(text);
  const { outcome } = await postText<{ outcome: string }>(runPath(id, "/signal"), `{"key":${JSON.stringify(key)},"payload":${text}}`);
  return outcome;
}
