// Routes in the part of the address after #, which never reaches the server: #/runs?status=failed
import { computed, signal } from "@preact/signals";

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));
addEventListener("popstate", () => (hash.value = location.hash));

export interface Route {
  parts: string[];
  query: URLSearchParams;
}

export const route = computed<Route>(() => {
  const [path, query] = hash.value.replace(/^#\/?/, "").split("?", 2);
  const parts = (path || "runs").split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { parts, query: new URLSearchParams(query ?? "") };
});

export function link(parts: string[], query?: URLSearchParams): string {
  const text = query?.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(parts: string[], query?: URLSearchParams, replace = false): void {
  const to = link(parts, query);
  if (replace) history.replaceState(null, "", to);
  else if (to !== location.hash) history.pushState(null, "", to);
  hash.value = location.hash;
}
