// The one stream of the page. It is read with fetch, because an EventSource cannot send the token in a header.
import { effect, signal } from "@preact/signals";
import { Problem, refused, send, token } from "./api";
import type { RunRecord } from "./types";

export type Link = "connecting" | "live" | "paused" | "broken";
export const status = signal<Link>("connecting");
export const paused = signal(false);
export const held = signal(0); // changes that wait until the user ends the pause

type Listener = (changed: Map<string, RunRecord>, missed: boolean) => void;
const listeners = new Set<Listener>();
const HELD_MAX = 5000;
const SILENT_MS = 40_000; // the server writes at least every 15 seconds
const DRAW_MS = 200;

let waiting = new Map<string, RunRecord>();
let missed = false; // changes may be missing: listeners read everything again
let acted = false; // the user has acted: listeners read everything again, also while the page is paused
let lastId = "";
let timer: number | undefined;

// Call `listener` with the changed runs, at most five times a second, never while the tab is hidden or paused.
export function onChanges(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function deliver(): void {
  timer = undefined;
  if (paused.value && acted) {
    acted = false;
    for (const listener of [...listeners]) listener(new Map(), true);
  }
  if (paused.value || document.hidden) {
    held.value = waiting.size;
    return;
  }
  acted = false;
  if (!waiting.size && !missed) return;
  const [changed, gap] = [waiting, missed];
  waiting = new Map();
  missed = false;
  held.value = 0;
  for (const listener of [...listeners]) listener(changed, gap);
}

function arrange(): void {
  timer ??= window.setTimeout(deliver, DRAW_MS);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) arrange();
});
effect(() => {
  if (!paused.value) arrange();
});

export function take(record: RunRecord): void {
  waiting.delete(record.run_id);
  waiting.set(record.run_id, record);
  if (waiting.size > HELD_MAX) {
    waiting.clear();
    missed = true;
  }
  arrange();
}

// Let the listeners read everything again; while the page is paused, after the pause.
export function reread(): void {
  missed = true;
  arrange();
}

// Tell the listeners at once, after an action of the user, that runs have changed.
export function refresh(): void {
  acted = true;
  reread();
}

export interface Message {
  event: string;
  id: string;
  data: string;
}

// Split a stream of text into messages. Comments and unknown fields are left out.
export class Messages {
  private rest = "";

  *read(text: string): Generator<Message> {
    this.rest += text;
    const blocks = this.rest.split("\n\n");
    this.rest = blocks.pop()!;
    for (const block of blocks) {
      const message: Message = { event: "message", id: "", data: "" };
      for (const line of block.split("\n")) {
        const found = /^(event|id|data): ?(.*)$/s.exec(line);
        if (found) message[found[1] as keyof Message] += found[1] === "event" ? "" : found[2]!;
        if (found?.[1] === "event") message.event = found[2]!;
      }
      if (message.data) yield message;
    }
  }
}

let reading: AbortController | undefined;

export function connect(): void {
  reading?.abort();
  reading = new AbortController();
  status.value = "connecting";
  void follow(reading.signal);
}

export function disconnect(): void {
  reading?.abort();
  waiting = new Map();
  lastId = "";
  missed = false;
  held.value = 0;
}

async function follow(signal: AbortSignal): Promise<void> {
  let pause = 250;
  let failed = false; // requests of the views may have failed meanwhile, too
  while (!signal.aborted) {
    const used = token.value;
    const silent = new AbortController();
    let alarm = window.setTimeout(() => silent.abort(), SILENT_MS);
    try {
      const heads: Record<string, string> = lastId ? { "Last-Event-ID": lastId } : {};
      const response = await send("stream", { signal: AbortSignal.any([signal, silent.signal]), headers: heads, seconds: 0 });
      const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
      const messages = new Messages();
      status.value = "live";
      pause = 250;
      if (!lastId || failed) reread(); // what happened before the stream began
      failed = false;
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(alarm);
        alarm = window.setTimeout(() => silent.abort(), SILENT_MS);
        for (const message of messages.read(value)) {
          lastId = message.id || lastId;
          if (message.event === "reset") reread(); // the server cannot tell what happened since the last id
          if (message.event === "run") take(JSON.parse(message.data) as RunRecord);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status === 401) return;
      failed = true;
    } finally {
      clearTimeout(alarm);
    }
    if (signal.aborted || token.value !== used || refused.value) return;
    // The server ended the stream, or the connection broke. It may have ended because the token was revoked: a
    // request tells, and empties the page.
    status.value = "broken";
    try {
      await send("token", { signal });
    } catch {
      if (refused.value) return;
      failed = true;
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, 5000);
  }
}
