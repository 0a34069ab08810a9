// The story of a run: patches that turn the view before an event into the view after it (RFC 7396).
import { get, runPath } from "./api";
import type { Page, StoryItem, View } from "./types";

type Json = Record<string, unknown>;
const STRIDE = 500; // events between two kept views
const PAGE = 2000; // the most that the server gives

// Apply a merge patch to `target` in place. A null removes a field. A job may call a node `__proto__`: fields of an
// object's prototype are neither read nor set.
export function patch(target: Json, changes: Json): void {
  for (const name of Object.keys(changes)) {
    const change = changes[name];
    if (change === null) delete target[name];
    else if (typeof change === "object" && !Array.isArray(change)) {
      let inner = Object.hasOwn(target, name) ? target[name] : null;
      if (typeof inner !== "object" || inner === null || Array.isArray(inner)) put(target, name, (inner = {}));
      patch(inner as Json, change as Json);
    } else put(target, name, change);
  }
}

function put(target: Json, name: string, value: unknown): void {
  Object.defineProperty(target, name, { value, writable: true, enumerable: true, configurable: true });
}

export class Story {
  items: StoryItem[] = [];
  private kept: Json[] = [{}]; // the view after 0, STRIDE, 2 * STRIDE … events
  private last: Json = {};
  private cursor = "";
  private at = -1;
  private shown: Json = {};

  constructor(readonly id: string) {}

  // Read what is new. Return whether there was anything.
  async read(): Promise<boolean> {
    const before = this.items.length;
    for (;;) {
      const page = await get<Page<StoryItem>>(runPath(this.id, "/story"), { cursor: this.cursor, limit: PAGE });
      for (const item of page.items) {
        if (this.items.length && item.seq <= this.items[this.items.length - 1]!.seq) continue;
        this.items.push(item);
        patch(this.last, item.changes);
        if (this.items.length % STRIDE === 0) this.kept.push(structuredClone(this.last));
      }
      const newest = this.items[this.items.length - 1];
      if (newest) this.cursor = String(newest.seq);
      if (page.next === null || !page.items.length) return this.items.length > before;
      this.cursor = page.next;
    }
  }

  // The view after so many events. The caller must not change it, and it changes with the next call.
  view(position: number): View {
    if (position >= this.items.length) return this.last as View;
    if (position < this.at || this.at < 0 || position - this.at > STRIDE) {
      const nearest = Math.floor(position / STRIDE);
      this.shown = structuredClone(this.kept[nearest]!);
      this.at = nearest * STRIDE;
    }
    while (this.at < position) patch(this.shown, this.items[this.at++]!.changes as Json);
    return this.shown as View;
  }
}
