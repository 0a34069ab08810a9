// The keyboard. A view binds its keys while it is shown; the list of keys shows all that are bound.
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";

export interface Key {
  keys: string; // "g r" is g, then r
  does: string;
  run: (event: KeyboardEvent) => void;
}

export const bound = signal<Key[]>([]);
let first = "";
let firstAt = 0;

// Bind keys while a component is shown. The newest binding of a key wins.
export function useKeys(keys: Key[], inputs: unknown[] = []): void {
  const newest = useRef(keys); // a key does what the last rendering says, however fast the next key follows
  newest.current = keys;
  useLayoutEffect(() => {
    const mine = keys.map((key) => ({
      ...key, run: (event: KeyboardEvent) => newest.current.find((one) => one.keys === key.keys)?.run(event),
    }));
    bound.value = [...bound.peek(), ...mine];
    return () => {
      bound.value = bound.peek().filter((key) => !mine.includes(key));
    };
  }, inputs);
}

function typing(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  if (!element?.matches) return false;
  return element.matches("input:not([type=range]):not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing(event.target)) return;
  if (document.querySelector("dialog[open]")) return;
  const name = event.key === " " ? "Space" : event.key;
  const pair = Date.now() - firstAt < 1200 ? `${first} ${name}` : "";
  const keys = [...bound.value].reverse();
  const found = (pair && keys.find((key) => key.keys === pair)) || keys.find((key) => key.keys === name);
  first = name;
  firstAt = Date.now();
  if (!found) return;
  // A focused control keeps the keys that press or move it.
  const target = event.target as HTMLElement | null;
  if ((name === "Space" || name === "Enter") && target?.closest?.("button, a, summary, input")) return;
  if (name.startsWith("Arrow") && target?.closest?.("[role=tab], input:not([data-slider])")) return;
  event.preventDefault();
  first = "";
  found.run(event);
});
