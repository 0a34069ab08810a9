// JSON read without loss. JSON.parse rounds numbers above 2^53 and cannot tell 1.0 from 1; here numbers stay text.

export type Exact =
  | { kind: "object"; entries: [string, Exact][] }
  | { kind: "array"; items: Exact[] }
  | { kind: "string"; value: string }
  | { kind: "number" | "word"; text: string };

const SPACE = /[ \t\n\r]*/y;
const ATOM = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;
const TEXT = /"(?:[^"\\]|\\.)*"/y;

export function parseExact(source: string): Exact {
  let at = 0;
  const fail = (): never => {
    throw new SyntaxError(`not JSON at character ${at + 1}`);
  };
  const match = (pattern: RegExp): string | null => {
    pattern.lastIndex = at;
    const found = pattern.exec(source);
    if (!found) return null;
    at = pattern.lastIndex;
    return found[0];
  };
  const text = (): string => JSON.parse(match(TEXT) ?? fail()) as string;
  const comma = (end: string): boolean => {
    match(SPACE);
    const next = source[at++];
    if (next !== "," && next !== end) fail();
    return next === ",";
  };
  const value = (depth: number): Exact => {
    if (depth > 200) fail();
    match(SPACE);
    const first = source[at];
    if (first === "{") {
      const entries: [string, Exact][] = [];
      at++;
      match(SPACE);
      if (source[at] === "}") at++;
      else do {
        match(SPACE);
        const name = text();
        match(SPACE);
        if (source[at++] !== ":") fail();
        entries.push([name, value(depth + 1)]);
      } while (comma("}"));
      return { kind: "object", entries };
    }
    if (first === "[") {
      const items: Exact[] = [];
      at++;
      match(SPACE);
      if (source[at] === "]") at++;
      else do items.push(value(depth + 1)); while (comma("]"));
      return { kind: "array", items };
    }
    if (first === '"') return { kind: "string", value: text() };
    const atom = match(ATOM) ?? fail();
    return { kind: /[tfn]/.test(atom[0]!) ? "word" : "number", text: atom };
  };
  const made = value(0);
  match(SPACE);
  if (at !== source.length) fail();
  return made;
}

export function member(node: Exact | undefined, name: string): Exact | undefined {
  return node?.kind === "object" ? node.entries.find(([key]) => key === name)?.[1] : undefined;
}

export function elements(node: Exact | undefined): Exact[] {
  return node?.kind === "array" ? node.items : [];
}

// Text of a JSON value with line breaks; a short list or object stays on one line.
export function pretty(node: Exact, indent = ""): string {
  if (node.kind === "string") return JSON.stringify(node.value);
  if (node.kind !== "object" && node.kind !== "array") return node.text;
  const inner = indent + "  ";
  const parts = node.kind === "array"
    ? node.items.map((item) => pretty(item, inner))
    : node.entries.map(([name, item]) => `${JSON.stringify(name)}: ${pretty(item, inner)}`);
  const [open, close] = node.kind === "array" ? "[]" : "{}";
  const short = parts.reduce((sum, part) => sum + part.length + 2, 0) < 72 && !parts.some((part) => part.includes("\n"));
  if (!parts.length) return open! + close;
  if (short) return node.kind === "array" ? `[${parts.join(", ")}]` : `{ ${parts.join(", ")} }`;
  return `${open}\n${parts.map((part) => inner + part).join(",\n")}\n${indent}${close}`;
}

export function plain(node: Exact | undefined): string {
  return node === undefined ? "" : node.kind === "string" ? node.value : pretty(node);
}
