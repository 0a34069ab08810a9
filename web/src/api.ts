// Calls of the API. Every address is relative to the document, so the page works under any mount prefix.
import { signal } from "@preact/signals";

const BASE = new URL("api/v1/", document.baseURI.replace(/[?#].*$/, ""));
const KEPT = "holdfast.token";

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string = "",
    readonly params: Record<string, unknown> = {},
  ) {
    super(message);
  }
}

export const token = signal<string | null>(null);
export const refused = signal<string>(""); // why the server does not accept the page's token; "" while it does

// Move a token from the address to the session storage, so that it is in no history, bookmark or screenshot.
export function takeToken(): void {
  const found = /^#t=([^&]*)(?:&(.*))?$/.exec(location.hash);
  if (found) history.replaceState(null, "", location.pathname + location.search + (found[2] ? `#${found[2]}` : ""));
  keepToken(found ? decoded(found[1]!) : sessionStorage.getItem(KEPT));
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Use this token from now on. One that no header can carry, such as a text that was pasted by mistake, is refused here.
export function keepToken(text: string | null): void {
  const fits = !text || /^[\x21-\x7e]+$/.test(text);
  if (text && fits) sessionStorage.setItem(KEPT, text);
  else sessionStorage.removeItem(KEPT);
  token.value = fits ? text || null : null;
  refused.value = fits ? "" : "This is not a token: a token has no spaces, accents or other special characters.";
}

export function address(path: string, query?: Query): URL {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") url.searchParams.append(name, String(one));
    }
  }
  return url;
}

export type Query = Record<string, string | number | string[] | undefined | null>;

const READ_SECONDS = 20; // until an answer must be there
const ACT_SECONDS = 60;
let accepted: string | null = null; // the last token that the server has accepted

// `seconds` is the time for the whole answer; 0 means no limit.
export async function send(path: string, options: RequestInit & { query?: Query; seconds?: number } = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  const used = token.value;
  if (used) headers.set("Authorization", `Bearer ${used}`);
  let response: Response;
  try {
    response = await fetch(address(path, options.query), {
      ...options, headers, credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer",
      signal: inTime(options.seconds ?? (options.method ? ACT_SECONDS : READ_SECONDS), options.signal),
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem(0, "unreachable", "the server does not answer", options.method
      ? "it may have received this. Try again: it is not done twice" : "is it running? The page tries again by itself");
  }
  if (response.ok) {
    accepted = used;
    return response;
  }
  const problem = await problemOf(response);
  if (response.status === 401 && token.value === used) {
    refused.value = !used ? "This server asks for a token."
      : used === accepted ? "The server no longer accepts this token." : "The server does not accept this token.";
  }
  throw problem;
}

function inTime(seconds: number, signal?: AbortSignal | null): AbortSignal | undefined {
  if (!seconds) return signal ?? undefined;
  const late = new AbortController();
  setTimeout(() => late.abort(), seconds * 1000);
  return signal ? AbortSignal.any([signal, late.signal]) : late.signal;
}

async function problemOf(response: Response): Promise<Problem> {
  try {
    const body = await response.json();
    return new Problem(response.status, body.code, body.detail ?? body.message, body.hint ?? "", body.params ?? {});
  } catch {
    return new Problem(response.status, "unknown", `the server answered with status ${response.status}`);
  }
}

export async function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return read<T>(await send(path, { query, signal }));
}

export async function getText(path: string, query?: Query): Promise<string> {
  const response = await send(path, { query });
  return response.text().catch(cutOff);
}

function read<T>(response: Response): Promise<T> {
  return (response.json() as Promise<T>).catch(cutOff);
}

function cutOff(): never {
  throw new Problem(0, "unreachable", "the answer of the server broke off");
}

export async function post<T>(path: string, body: unknown, query?: Query): Promise<T> {
  return postText<T>(path, JSON.stringify(body), query);
}

// Send JSON that is text already: numbers stay as the user wrote them.
export async function postText<T>(path: string, body: string, query?: Query, method = "POST", heads = {}): Promise<T> {
  const headers = { "Content-Type": "application/json", ...heads };
  return read<T>(await send(path, { method, body, query, headers }));
}

export type Act = <T>(path: string, body: unknown) => Promise<T>;

// Return a function that sends the actions of one form or dialog. `body` is JSON text, or a value. Each action has a key,
// and a repeat of the same content has the same key. So if an answer is lost, trying again changes nothing twice.
export function actions(): Act {
  let [content, key] = ["", ""];
  return async <T,>(path: string, body: unknown) => {
    const text = typeof body === "string" ? body : JSON.stringify(body);
    if (content !== `${path} ${text}`) {
      content = `${path} ${text}`;
      key = `page-${[...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    }
    const made = await postText<T>(path, text, undefined, "POST", { "Idempotency-Key": key });
    content = ""; // it is done: the same again is another action
    return made;
  };
}

export function runPath(id: string, rest = ""): string {
  return `runs/${encodeURIComponent(id)}${rest}`;
}

export function sentence(error: unknown): string {
  const problem = error as Problem;
  const text = String(problem.message ?? error);
  const hint = problem instanceof Problem && problem.hint ? `. ${capital(problem.hint)}` : "";
  return `${capital(text)}${hint}.`.replace(/\.\.$/, ".");
}

export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
