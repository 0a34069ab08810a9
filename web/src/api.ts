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
  if (found) {
    sessionStorage.setItem(KEPT, decodeURIComponent(found[1]!));
    history.replaceState(null, "", location.pathname + location.search + (found[2] ? `#${found[2]}` : ""));
  }
  token.value = sessionStorage.getItem(KEPT);
}

export function keepToken(text: string | null): void {
  if (text) sessionStorage.setItem(KEPT, text);
  else sessionStorage.removeItem(KEPT);
  token.value = text;
  refused.value = "";
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

export async function send(path: string, options: RequestInit & { query?: Query } = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  const used = token.value;
  if (used) headers.set("Authorization", `Bearer ${used}`);
  let response: Response;
  try {
    response = await fetch(address(path, options.query), {
      ...options, headers, credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Problem(0, "unreachable", "the server does not answer", options.method
      ? "it may have received this. Try again: it is not done twice" : "is it running? The page tries again by itself");
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status === 401 && token.value === used) {
    refused.value = used ? "The server no longer accepts this token." : "This server asks for a token.";
  }
  throw problem;
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
  return (await (await send(path, { query, signal })).json()) as T;
}

export async function getText(path: string, query?: Query): Promise<string> {
  return (await send(path, { query })).text();
}

export async function post<T>(path: string, body: unknown, query?: Query): Promise<T> {
  return postText<T>(path, JSON.stringify(body), query);
}

// Send JSON that is text already: numbers stay as the user wrote them.
export async function postText<T>(path: string, body: string, query?: Query, method = "POST", heads = {}): Promise<T> {
  const headers = { "Content-Type": "application/json", ...heads };
  return (await (await send(path, { method, body, query, headers })).json()) as T;
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
