// Small parts that every view uses.
import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { actions, sentence, type Act } from "./api";
import { parseExact, pretty, type Exact } from "./exact";
import { count, local, relative, visible, words } from "./format";
import { link } from "./router";

export type Children = ComponentChildren;

// Status: a colour, a shape and a word, so that none of them is needed alone.
const SHAPES: Record<string, JSX.Element> = {
  queued: <circle cx="6" cy="6" r="4.2" class="line" />,
  running: <><circle cx="6" cy="6" r="4.2" class="line" /><path d="M6 1.8a4.2 4.2 0 0 1 0 8.4z" class="fill" /></>,
  waiting: <path d="M3.5 2v8M8.5 2v8" class="line thick" />,
  cancel_requested: <><circle cx="6" cy="6" r="4.2" class="line dashed" /><path d="M4 6h4" class="line" /></>,
  succeeded: <path d="M2 6.4 4.8 9.2 10 3.2" class="line thick" />,
  failed: <path d="M2.6 2.6l6.8 6.8M9.4 2.6 2.6 9.4" class="line thick" />,
  canceled: <><circle cx="6" cy="6" r="4.2" class="line" /><path d="M3.2 8.8 8.8 3.2" class="line" /></>,
  timeout: <path d="M2.5 1.5h7M2.5 10.5h7M3.5 1.5c0 3 5 6 5 9M8.5 1.5c0 3-5 6-5 9" class="line" />,
  in_doubt: <><path d="M6 1.2 11 10.4H1z" class="line" /><path d="M6 4.6v2.6M6 8.6v.4" class="line" /></>,
  skipped: <path d="M2.5 6h7" class="line thick" />,
  missed: <path d="M6 1.6 10.4 6 6 10.4 1.6 6z" class="line" />,
  unknown: <rect x="2" y="2" width="8" height="8" class="line" />,
};
const TONES: Record<string, string> = {
  done: "succeeded", completed: "succeeded", succeeded: "succeeded", ready: "succeeded", released: "succeeded", ended: "succeeded",
  running: "running", started: "running", active: "running",
  queued: "queued", pending: "queued", created: "queued", scheduled: "queued", skipped: "skipped", missed: "missed",
  waiting: "waiting", parked: "waiting", buffered: "waiting", paused: "waiting", blocked: "waiting", retrying: "waiting", sleeping: "waiting",
  cancel_requested: "cancel_requested", cancelling: "cancel_requested",
  failed: "failed", lost: "failed", lease: "queued", error: "failed", dead: "failed",
  canceled: "canceled", cancelled: "canceled", cut_off: "canceled", stopped: "canceled", expired: "timeout", timeout: "timeout", timed_out: "timeout",
  in_doubt: "in_doubt", doubt: "in_doubt", reclaimed: "in_doubt", backoff: "waiting", exhausted: "in_doubt",
};

export function toneOf(status: string): string {
  return TONES[status] ?? "unknown";
}

export function Shape({ status }: { status: string }) {
  const tone = toneOf(status);
  return (
    <svg class={`shape tone-${tone}`} viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">{SHAPES[tone]}</svg>
  );
}

export function Status({ status, strong }: { status: string; strong?: boolean }) {
  return (
    <span class={`status tone-${toneOf(status)}${strong ? " strong" : ""}`}>
      <Shape status={status} />
      {words(status)}
    </span>
  );
}

// Text that a user can set. Characters that would change how other text shows appear as codes.
export function T({ text, class: name }: { text: unknown; class?: string }) {
  return <bdi class={name}>{visible(String(text ?? ""))}</bdi>;
}

// A text of the server, in which `backticks` mark code.
export function Told({ text }: { text: string }) {
  const parts = text.split("`");
  if (parts.length % 2 === 0) return <T text={text} />;
  return <>{parts.map((part, at) => (at % 2 ? <code key={at}><T text={part} /></code> : <T key={at} text={part} />))}</>;
}

export function Time({ at, both }: { at: number; both?: boolean }) {
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={local(at)}>
      {both ? `${local(at)} (${relative(at)})` : relative(at)}
    </time>
  );
}

export function RunLink({ id, children, tab }: { id: string; children?: Children; tab?: string }) {
  return <a class="mono" href={link(["runs", id, ...(tab ? [tab] : [])])}>{children ?? <T text={id} />}</a>;
}

const ICONS: Record<string, string> = {
  runs: "M3 4h10M3 8h10M3 12h10",
  inbox: "M2.5 9 4 3.5h8L13.5 9v3.5h-11zM2.5 9H6c0 2.4 4 2.4 4 0h3.5",
  schedules: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 5v3.2l2.2 1.6",
  start: "M5 3.2v9.6L12.6 8z",
  queues: "M3 3v10M7 6v7M11 4v9",
  workers: "M3 3h10v7H3zM6 13h4M8 10v3",
  gates: "M3 13V6l5-3 5 3v7M6 13V9h4v4",
  builds: "M8 2 13.5 5 8 8 2.5 5zM2.5 8 8 11l5.5-3M2.5 11 8 14l5.5-3",
  machines: "M4 4h3v3H4zM9 9h3v3H9zM7 5.5h3.5V9M5.5 7v3.5H9",
  copy: "M5.5 5.5h7v7h-7zM3.5 10.5v-7h7",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.2v9.6L12.6 8z",
  moon: "M12.5 9.8A5 5 0 0 1 6.2 3.5a5 5 0 1 0 6.3 6.3z",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M12.6 3.4l-.7.7M4.1 11.9l-.7.7",
  half: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  close: "M4 4l8 8M12 4l-8 8",
  search: "M7 2.8a4.2 4.2 0 1 0 0 8.4 4.2 4.2 0 0 0 0-8.4zM10.2 10.2 13.5 13.5",
  bookmark: "M4 2.5h8v11L8 10.6 4 13.5z",
  download: "M8 2.5v7.5M4.8 7 8 10.2 11.2 7M3 13.2h10",
  left: "M10 3.5 5.5 8 10 12.5",
  right: "M6 3.5 10.5 8 6 12.5",
  keys: "M2 4.5h12v7H2zM4.5 7h.5M7.2 7h.5M10 7h.5M5 9.3h6",
};

export function Icon({ name }: { name: string }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path d={ICONS[name]} />
    </svg>
  );
}

export interface ButtonProps {
  children: Children;
  onClick: () => unknown;
  kind?: "primary" | "danger" | "quiet";
  disabled?: boolean;
  label?: string;
  pressed?: boolean;
}

export function Button({ children, onClick, kind, disabled, label, pressed }: ButtonProps) {
  return (
    <button
      type="button"
      class={`button ${kind ?? ""}`}
      disabled={disabled}
      aria-label={label}
      title={label}
      aria-pressed={pressed}
      onClick={() => void onClick()}
    >
      {children}
    </button>
  );
}

// Copy text. The clipboard API is missing on plain HTTP beyond localhost, so a selection serves there.
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "away";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

export function Copy({ text, label = "Copy" }: { text: string | (() => string); label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await copyText(typeof text === "string" ? text : text());
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" class="copy" title={label} aria-label={label} onClick={() => void copy()}>
      {done ? <span aria-live="polite">Copied</span> : <Icon name="copy" />}
    </button>
  );
}

const SHOWN = 20_000; // characters of a text that are shown before the user asks for the rest

// A JSON value, or any text, in a box with a copy button. `source` is the text of the value as the server sent it.
export function Json({ source, node, label }: { source?: string; node?: Exact; label: string }) {
  const [all, setAll] = useState(false);
  let text = source ?? "";
  try {
    const value = node ?? parseExact(text);
    text = value.kind === "string" ? value.value : pretty(value);
  } catch {
    // Not JSON: shown as it is.
  }
  return <Block text={text} label={label} all={all} onAll={() => setAll(true)} />;
}

export function Block({ text, label, all, onAll }: { text: string; label: string; all?: boolean; onAll?: () => void }) {
  const cut = !all && text.length > SHOWN;
  return (
    <div class="block">
      <pre tabIndex={0} aria-label={label}>{visible(cut ? text.slice(0, SHOWN) : text)}</pre>
      <div class="block-tools">
        {cut && onAll && <Button kind="quiet" onClick={onAll}>Show all {count(text.length)} characters</Button>}
        <Copy text={text} label={`Copy ${label}`} />
      </div>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: Children }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <div class="empty-text">{children}</div>}
    </div>
  );
}

export function Failure({ error, again }: { error: unknown; again?: () => void }) {
  return (
    <div class="failure" role="alert">
      <Shape status="failed" />
      <span><Told text={sentence(error)} /></span>
      {again && <Button onClick={again}>Try again</Button>}
    </div>
  );
}

// Messages that appear for some seconds.
export const notices = signal<{ id: number; text: string; bad: boolean }[]>([]);
let noticeId = 0;

export function tell(text: string, bad = false): void {
  const id = ++noticeId;
  notices.value = [...notices.value.slice(-3), { id, text, bad }];
  setTimeout(() => (notices.value = notices.value.filter((one) => one.id !== id)), bad ? 12_000 : 5000);
}

export function Notices() {
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.value.map((one) => (
        <div key={one.id} class={`notice${one.bad ? " bad" : ""}`}>
          <Shape status={one.bad ? "failed" : "succeeded"} />
          <T text={one.text} />
          <button
            type="button" class="copy" aria-label="Dismiss"
            onClick={() => (notices.value = notices.value.filter((other) => other.id !== one.id))}
          >
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}

// A modal dialog. The browser keeps the focus inside and gives it back.
export function Dialog({ title, onClose, children, wide }: { title: string; onClose: () => void; children: Children; wide?: boolean }) {
  const place = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = place.current!;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return (
    <dialog
      ref={place}
      class={wide ? "wide" : ""}
      aria-label={title}
      onCancel={(event) => { event.preventDefault(); onClose(); }}
      onMouseDown={(event) => { if (event.target === place.current) onClose(); }}
    >
      <div class="dialog-head">
        <h2>{title}</h2>
        <button type="button" class="copy" aria-label="Close the dialog" onClick={onClose}><Icon name="close" /></button>
      </div>
      <div class="dialog-body">{children}</div>
    </dialog>
  );
}

// The actions of a form or dialog, each of which is done once even if the user repeats it after a lost answer.
export function useActions(): Act {
  return useState(actions)[0];
}

// A question before an action. `verb` names what happens when the user agrees.
export function Confirm(props: {
  title: string; verb: string; danger?: boolean; children?: Children;
  onClose: () => void; onYes: (reason: string) => Promise<unknown>;
  reason?: "needed" | "wanted"; typed?: string;
}) {
  const [reason, setReason] = useState("");
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const ready = (props.reason !== "needed" || reason.trim()) && (!props.typed || typed.trim() === props.typed);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!ready || busy) return;
    setBusy(true);
    setError(null);
    try {
      if ((await props.onYes(reason.trim())) !== false) props.onClose(); // false: the caller shows what happened
      else setBusy(false);
    } catch (caught) {
      setError(caught);
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <form onSubmit={(event) => void submit(event)}>
        {props.children}
        {props.reason && (
          <label class="field">
            <span>Reason{props.reason === "wanted" ? " (optional)" : ""}</span>
            <input type="text" value={reason} onInput={(event) => setReason(event.currentTarget.value)} autofocus />
          </label>
        )}
        {props.typed && (
          <label class="field">
            <span>Type {props.typed} to confirm</span>
            <input type="text" inputMode="numeric" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
          </label>
        )}
        {error !== null && <Failure error={error} />}
        <div class="dialog-foot">
          <Button onClick={props.onClose}>Back</Button>
          <button type="submit" class={`button ${props.danger ? "danger" : "primary"}`} disabled={!ready || busy}>{props.verb}</button>
        </div>
      </form>
    </Dialog>
  );
}

export interface Tab {
  id: string;
  title: Children;
}

// Keeps what is chosen in a strip in sight: on a phone a strip is wider than the screen.
export function useChosenInSight(chosen: string, selector: string) {
  const strip = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    strip.current?.querySelector(selector)?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [chosen]);
  return strip;
}

export function Tabs({ tabs, current, onPick, label }: { tabs: Tab[]; current: string; onPick: (id: string) => void; label: string }) {
  const place = useChosenInSight(current, "[aria-selected=true]");
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    const at = tabs.findIndex((tab) => tab.id === current);
    const next = tabs[(at + step + tabs.length) % tabs.length]!;
    onPick(next.id);
    place.current?.querySelector<HTMLElement>(`[data-tab="${next.id}"]`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} ref={place} onKeyDown={move}>
      {tabs.map((tab) => (
        <button
          type="button" role="tab" key={tab.id} data-tab={tab.id} aria-selected={tab.id === current}
          tabIndex={tab.id === current ? 0 : -1} onClick={() => onPick(tab.id)}
        >
          {tab.title}
        </button>
      ))}
    </div>
  );
}

export function Bar({ value }: { value: number }) {
  const bar = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (bar.current) bar.current.style.width = `${Math.max(0, Math.min(1, value)) * 100}%`;
  }, [value]);
  const percent = Math.round(value * 100);
  return (
    <div class="bar" role="progressbar" aria-label="Progress" aria-valuenow={percent} aria-valuemin={0} aria-valuemax={100}>
      <div ref={bar} />
    </div>
  );
}

// Load something when the inputs change, and again when `version` changes or `reload` is called. The last value stays
// while it loads again.
export function useLoaded<V>(load: () => Promise<V>, inputs: unknown[], version?: unknown): { value: V | null; error: unknown; reload: () => void } {
  const [state, setState] = useState<{ value: V | null; error: unknown }>({ value: null, error: null });
  const turn = useRef(0);
  const reload = () => {
    const mine = ++turn.current;
    load().then(
      (value) => mine === turn.current && setState({ value, error: null }),
      (error) => mine === turn.current && setState((before) => ({ value: before.value, error })),
    );
  };
  useEffect(() => {
    setState({ value: null, error: null });
    reload();
    return () => void turn.current++;
  }, inputs);
  const loaded = useRef(version);
  useEffect(() => {
    if (loaded.current === version) return;
    loaded.current = version;
    reload();
  }, [version]);
  return { ...state, reload };
}
