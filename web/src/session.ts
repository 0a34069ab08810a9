// Who the user is, and what the page keeps for the user on this device.
import { computed, signal } from "@preact/signals";
import { get } from "./api";
import type { Entry, Page, Stats, TokenView } from "./types";

const SCOPES = ["read", "signal", "submit", "operate", "admin"];

export const me = signal<TokenView | null>(null);
export const stats = signal<Stats | null>(null); // null for tokens of a group, which may not read it
export const entries = signal<Entry[]>([]);
export const asking = signal<number | null>(null); // how many runs wait for an answer; null if not known
export const openRun = signal<string | null>(null); // the run that the user opened last

export function may(scope: string): boolean {
  return me.value !== null && SCOPES.indexOf(me.value.scope) >= SCOPES.indexOf(scope);
}

export const whole = computed(() => me.value !== null && me.value.group === null);

export async function readStats(): Promise<void> {
  if (!whole.value) return;
  stats.value = await get<Stats>("stats");
}

const ASKING_SECONDS = 3;
let askedAt = 0;

// Count what waits for a person, not more often than every few seconds.
export async function readAsking(): Promise<void> {
  if (Date.now() - askedAt < ASKING_SECONDS * 1000) return;
  askedAt = Date.now();
  asking.value = (await get<Page<unknown>>("inbox", { limit: 100 })).items.length;
}

export async function readEntries(): Promise<void> {
  entries.value = (await get<Page<Entry>>("entries")).items;
}

export type Theme = "system" | "light" | "dark";
export const theme = signal<Theme>((localStorage.getItem("holdfast.theme") as Theme | null) ?? "system");

export function setTheme(name: Theme): void {
  theme.value = name;
  localStorage.setItem("holdfast.theme", name);
  applyTheme();
}

export function applyTheme(): void {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}

export interface SavedView {
  name: string;
  query: string;
}

export const savedViews = signal<SavedView[]>(readSaved());

function readSaved(): SavedView[] {
  try {
    const kept = JSON.parse(localStorage.getItem("holdfast.views") ?? "[]") as SavedView[];
    return kept.filter((one) => typeof one.name === "string" && typeof one.query === "string");
  } catch {
    return [];
  }
}

// Change the saved views as they are now: another tab may have changed them, too.
export function saveViews(change: (views: SavedView[]) => SavedView[]): void {
  savedViews.value = change(readSaved());
  localStorage.setItem("holdfast.views", JSON.stringify(savedViews.value));
}

addEventListener("storage", (event) => {
  if (event.key === "holdfast.views" || event.key === null) savedViews.value = readSaved();
});

// Forget everything that came from the server.
export function forget(): void {
  me.value = null;
  stats.value = null;
  entries.value = [];
  asking.value = null;
  openRun.value = null;
}
