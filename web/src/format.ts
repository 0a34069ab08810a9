// Times, durations and texts as people read them.
import { signal } from "@preact/signals";

export const now = signal(Date.now() / 1000); // moves once a second while the page is visible
setInterval(() => {
  if (!document.hidden) now.value = Date.now() / 1000;
}, 1000);

const LOCAL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const HOUR = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const COUNT = new Intl.NumberFormat();

export function local(at: number): string {
  return LOCAL.format(at * 1000);
}

export function clock(at: number): string {
  return now.value - at < 86_400 ? HOUR.format(at * 1000) : DAY.format(at * 1000);
}

export function count(number: number): string {
  return COUNT.format(number);
}

const UNITS: [number, string][] = [[86_400, "d"], [3600, "h"], [60, "m"], [1, "s"]];

// A duration in at most two units: 850 ms, 4.2 s, 3m 10s, 2d 4h.
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0) seconds = 0;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  let rest = Math.round(seconds);
  const parts: string[] = [];
  for (const [size, unit] of UNITS) {
    const number = Math.floor(rest / size);
    rest -= number * size;
    if (number || parts.length) parts.push(`${number}${unit}`);
    if (parts.length === 2) break;
  }
  return parts.filter((part) => !/^0/.test(part)).join(" ");
}

export function relative(at: number): string {
  const away = now.value - at;
  if (Math.abs(away) < 1.5) return "now";
  return away > 0 ? `${coarse(away)} ago` : `in ${coarse(-away)}`;
}

function coarse(seconds: number): string {
  for (const [size, unit] of UNITS) if (seconds >= size) return `${Math.round(seconds / size)}${unit}`;
  return "0s";
}

export function bytes(size: number): string {
  if (size < 1024) return `${size} B`;
  if (size < 1024 ** 2) return `${(size / 1024).toFixed(1)} KiB`;
  return `${(size / 1024 ** 2).toFixed(1)} MiB`;
}

// Characters that change how other text is shown, or that do not show at all, appear as their code.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function visible(text: string): string {
  return text.replace(HIDDEN, (one) => `\u27e8U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}

export function short(text: string, most: number): string {
  const shown = visible(text.length > most * 4 ? text.slice(0, most * 4) : text);
  return shown.length > most ? `${shown.slice(0, most - 1)}…` : shown;
}

export function shortId(id: string): string {
  return id.length > 14 ? `…${id.slice(-10)}` : id;
}

export function words(name: string): string {
  return name.replaceAll("_", " ");
}

// The server writes times in UTC. Readers want their own.
export function localTimes(text: string): string {
  return text.replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC/g, (_, day: string, time: string) => local(Date.parse(`${day}T${time}Z`) / 1000));
}
