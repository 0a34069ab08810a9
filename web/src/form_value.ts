// What a user enters into a form made from a JSON Schema: where it begins, and the JSON text that it makes.
// Numbers stay text, so that they reach the server as the user wrote them.
import { parseExact } from "./exact";
import type { Schema } from "./types";

// Text for a leaf, an object for fields, a list for items or pairs, undefined for what is left out.
export type Entered = string | boolean | null | undefined | Chosen | Free | Entered[] | Fields;
export interface Fields { [name: string]: Entered }

// One choice of a union, with what was entered for it.
export class Chosen {
  constructor(readonly at: number, readonly value: Entered) {}
}

// A value of any type, entered as JSON or as text.
export class Free {
  constructor(readonly text: string, readonly as: "json" | "text" = "json") {}
}

export interface Part {
  schema: Schema;
  root: Schema;
}

export class Mistake extends Error {
  constructor(readonly path: string, message: string) {
    super(message);
  }
}

export const MORE = "\u0000"; // the name under which an object keeps values that its type does not name
const DEEPEST = 16; // levels that a form opens by itself; a type may contain itself

export type Sort = "object" | "map" | "array" | "tuple" | "enum" | "boolean" | "number" | "integer" | "string" | "union" | "any" | "json";

export interface Resolved {
  schema: Schema;
  nullable: boolean;
  sort: Sort;
  choices: Schema[]; // of a union
  preset: unknown; // the default; undefined if there is none
}

function choicesOf(schema: Schema): Schema[] {
  return (schema.anyOf ?? schema.oneOf ?? []).flatMap((one) => (one.anyOf ?? one.oneOf ? choicesOf(one) : [one]));
}

// Follow references, and take out null.
export function resolve({ schema, root }: Part): Resolved {
  const preset = schema.default;
  let nullable = false;
  for (let step = 0; step < 20; step++) {
    const { title, description, ...own } = schema;
    const outer = { ...(title ? { title } : {}), ...(description ? { description } : {}) };
    if (schema.$ref) {
      schema = { ...(root.$defs?.[schema.$ref.split("/").pop()!] ?? {}), ...outer };
      continue;
    }
    if (schema.allOf?.length === 1) {
      schema = { ...own, ...schema.allOf[0]!, allOf: undefined, ...outer };
      continue;
    }
    const choices = choicesOf(schema);
    const left = choices.filter((one) => one.type !== "null");
    if (left.length < choices.length) nullable = true;
    if (left.length && schema.format === "decimal") schema = { ...schema, type: "string", anyOf: undefined };
    else if (left.length === 1) {
      schema = { ...left[0]!, ...outer };
      continue;
    } else if (left.length) return { schema, nullable, sort: "union", choices: left, preset };
    if (Array.isArray(schema.type)) {
      const types = schema.type.filter((one) => one !== "null");
      if (types.length < schema.type.length) nullable = true;
      if (types.length > 1) return { schema, nullable, sort: "union", choices: types.map((type) => ({ type })), preset };
      schema = { ...schema, type: types[0] };
    }
    break;
  }
  if (schema.const !== undefined) schema = { ...schema, enum: [schema.const] };
  if (schema.enum?.includes(null)) nullable = true;
  return { schema, nullable, sort: sortOf(schema), choices: [], preset };
}

function sortOf(schema: Schema): Sort {
  if (schema.enum) return "enum";
  if (schema.properties) return "object";
  if (schema.type === "object") return schema.additionalProperties === false ? "object" : "map";
  if (schema.prefixItems) return "tuple";
  if (schema.type === "array") return "array";
  if (schema.type === "boolean" || schema.type === "number" || schema.type === "integer" || schema.type === "string") return schema.type;
  return schema.type === undefined && !schema.allOf && !schema.not && !schema.$ref ? "any" : "json";
}

// The schema of values that an object may have in addition; undefined if it takes none.
export function moreOf(schema: Schema, sort: Sort): Schema | undefined {
  const more = schema.additionalProperties;
  if (more === undefined) return sort === "map" ? {} : undefined;
  return more === true ? {} : more === false ? undefined : more;
}

export const itemOf = (schema: Schema, at: number): Schema => schema.prefixItems?.[at] ?? (typeof schema.items === "object" ? schema.items : {});

// What a form shows at first. What is not needed and has no default begins as left out.
export function initial(part: Part, needed = true, depth = 0): Entered {
  const { preset, sort, schema, nullable } = resolve(part);
  if (preset !== undefined) return entered(part, preset, depth);
  if (sort === "enum" && needed && !nullable && schema.enum!.length === 1) return JSON.stringify(schema.enum![0]);
  if (sort === "number" || sort === "integer" || sort === "string" || sort === "enum" || sort === "json") return "";
  if (sort === "any") return new Free("");
  if (!needed || nullable || depth > DEEPEST || sort === "union") return undefined;
  if (sort === "boolean") return false;
  if (sort === "object" || sort === "map") return entered(part, {}, depth);
  if (sort === "tuple") return schema.prefixItems!.map((inner) => initial({ schema: inner, root: part.root }, true, depth + 1));
  return [];
}

// What a user would enter for a JSON value.
export function entered(part: Part, value: unknown, depth = 0): Entered {
  const { sort, schema, choices } = resolve(part);
  const within = (inner: Schema, one: unknown) => entered({ schema: inner, root: part.root }, one, depth + 1);
  if (sort === "any") return value === null || value === undefined ? new Free("") : new Free(JSON.stringify(value));
  if (sort === "enum") return JSON.stringify(value);
  if (sort === "boolean") return value as boolean | null;
  if (value === null) return sort === "object" || sort === "map" || sort === "array" || sort === "tuple" || sort === "union" ? undefined : "";
  if (sort === "union") {
    const at = choices.findIndex((one) => fits({ schema: one, root: part.root }, value));
    return at < 0 ? undefined : new Chosen(at, within(choices[at]!, value));
  }
  if ((sort === "object" || sort === "map") && typeof value === "object") {
    const given = value as Record<string, unknown>;
    const named = Object.entries(schema.properties ?? {});
    const fields = named.map(([name, inner]): [string, Entered] => [
      name, Object.hasOwn(given, name) ? within(inner, given[name]) : initial({ schema: inner, root: part.root }, schema.required?.includes(name), depth + 1),
    ]);
    const more = moreOf(schema, sort);
    const others = more ? Object.entries(given).filter(([name]) => !named.some(([known]) => known === name)) : [];
    return Object.fromEntries([...fields, [MORE, others.map(([name, one]) => [name, within(more!, one)])]]);
  }
  if ((sort === "array" || sort === "tuple") && Array.isArray(value)) return value.map((one, at) => within(itemOf(schema, at), one));
  return sort === "string" ? String(value) : JSON.stringify(value);
}

function fits(part: Part, value: unknown): boolean {
  const { sort, schema } = resolve(part);
  if (sort === "enum") return schema.enum!.some((one) => JSON.stringify(one) === JSON.stringify(value));
  if (sort === "integer") return Number.isInteger(value);
  if (sort === "array" || sort === "tuple") return Array.isArray(value);
  if (sort === "object" || sort === "map") {
    if (typeof value !== "object" || Array.isArray(value) || value === null) return false;
    const given = value as Record<string, unknown>;
    return Object.entries(schema.properties ?? {}).every(([name, inner]) =>
      Object.hasOwn(given, name) ? resolve({ schema: inner, root: part.root }).sort !== "enum" || fits({ schema: inner, root: part.root }, given[name])
        : !schema.required?.includes(name));
  }
  return sort === "any" || sort === "json" || typeof value === sort;
}

export const characters = (text: string): number => [...text].length; // not UTF-16 units

// Texts with a format: an example, and what every such text looks like. The server checks them in full.
export const FORMATS: Record<string, [string, RegExp]> = {
  "date-time": ["2026-05-17T09:30:00Z", /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?$/i],
  date: ["2026-05-17", /^\d{4}-\d\d-\d\d$/],
  time: ["09:30:00", /^\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?$/i],
  duration: ["PT1H30M", /^[+-]?P(?=.)/i],
  uuid: ["7f7c5d2e-9f0b-4d35-8f63-0a5a2e6f5f10", /^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$/i],
  decimal: ["12.50", /^[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i],
};

type Fail = (message: string) => never;

// The JSON text of what was entered; undefined if the user left it out.
export function jsonOf(part: Part, value: Entered, path: string, required: boolean): string | undefined {
  const resolved = resolve(part);
  const { preset, nullable } = resolved;
  const fail: Fail = (message) => {
    throw new Mistake(path, message);
  };
  const text = written(part, resolved, value, path, required, fail);
  const constant = resolved.schema.enum?.length === 1 && !nullable; // it may tell the choices of a union apart
  if (text !== undefined) return !required && !constant && text === JSON.stringify(preset) ? undefined : text;
  if (required) return nullable ? "null" : fail("is needed");
  if (preset === undefined || preset === null) return undefined;
  return nullable ? "null" : fail("is needed: it cannot be empty"); // a default that the user has cleared
}

function written(part: Part, resolved: Resolved, value: Entered, path: string, required: boolean, fail: Fail): string | undefined {
  const { schema, sort, choices } = resolved;
  const within = (inner: Schema, one: Entered, name: string, needed = true) => jsonOf({ schema: inner, root: part.root }, one, name, needed);
  if (value === null) return "null";
  if (sort === "boolean") return value === undefined ? undefined : String(value);
  if (sort === "union") return value instanceof Chosen ? within(choices[value.at]!, value.value, path) : undefined;
  if (sort === "any") return value instanceof Free ? freeText(value, fail) : undefined;
  if (sort === "object" || sort === "map") {
    if (value === undefined) return undefined;
    const fields = value as Fields;
    const inner = (name: string) => (path ? `${path}.${name}` : name);
    const parts: string[] = [];
    for (const [name, one] of Object.entries(schema.properties ?? {})) {
      const text = within(one, fields[name], inner(name), schema.required?.includes(name) ?? false);
      if (text !== undefined) parts.push(`${JSON.stringify(name)}:${text}`);
    }
    const names = new Set(Object.keys(schema.properties ?? {}));
    for (const [name, one] of (fields[MORE] ?? []) as [string, Entered][]) {
      if (names.has(name)) fail(`has the name ${name || "“”"} twice`);
      names.add(name);
      parts.push(`${JSON.stringify(name)}:${within(moreOf(schema, sort) ?? {}, one, inner(name))}`);
    }
    return `{${parts.join(",")}}`;
  }
  if (sort === "array" || sort === "tuple") {
    if (value === undefined) return undefined;
    const items = value as Entered[];
    if (sort === "array" && items.length < (schema.minItems ?? 0)) fail(`needs at least ${schema.minItems} items`);
    if (sort === "array" && items.length > (schema.maxItems ?? Infinity)) fail(`has more than ${schema.maxItems} items`);
    return `[${items.map((item, at) => within(itemOf(schema, at), item, `${path}[${at}]`)).join(",")}]`;
  }
  const text = typeof value === "string" ? value : "";
  if (sort === "string") return stringText(resolved, text, required, fail);
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  if (sort === "integer" || sort === "number") return numberText(schema, trimmed, sort, fail);
  if (sort === "json") parsed(trimmed, fail);
  return trimmed;
}

function stringText({ schema, nullable, preset }: Resolved, text: string, required: boolean, fail: Fail): string | undefined {
  const format = FORMATS[schema.format ?? ""];
  if (text === "" && (nullable || format || (!required && preset === undefined))) return undefined;
  if (format && !format[1].test(text.trim())) fail(`must look like ${format[0]}`);
  if (schema.minLength !== undefined && characters(text) < schema.minLength) fail(`needs at least ${schema.minLength} characters`);
  if (schema.maxLength !== undefined && characters(text) > schema.maxLength) fail(`has more than ${schema.maxLength} characters`);
  if (schema.pattern !== undefined && !matches(schema.pattern, text)) fail(`must match ${schema.pattern}`);
  return JSON.stringify(format ? text.trim() : text);
}

function matches(pattern: string, text: string): boolean {
  try {
    return new RegExp(pattern, "u").test(text);
  } catch {
    return true; // a pattern that only Python knows: the server checks it
  }
}

function numberText(schema: Schema, text: string, sort: Sort, fail: Fail): string {
  if (sort === "integer" && !/^-?\d+$/.test(text)) fail("must be a whole number");
  if (!/^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(text)) fail("must be a number such as 1234 or 1.5");
  const number = Number(text);
  if (schema.minimum !== undefined && number < schema.minimum) fail(`must be at least ${schema.minimum}`);
  if (schema.maximum !== undefined && number > schema.maximum) fail(`must be at most ${schema.maximum}`);
  if (schema.exclusiveMinimum !== undefined && number <= schema.exclusiveMinimum) fail(`must be more than ${schema.exclusiveMinimum}`);
  if (schema.exclusiveMaximum !== undefined && number >= schema.exclusiveMaximum) fail(`must be less than ${schema.exclusiveMaximum}`);
  return text.replace(/^(-?)0+(?=\d)/, "$1");
}

function parsed(text: string, fail: Fail): void {
  try {
    parseExact(text);
  } catch (error) {
    fail(`is ${(error as Error).message}`);
  }
}

// The JSON text of a value of any type. Text that is not JSON is refused unless the user says that it is text.
export function freeText(free: Free, fail: Fail): string | undefined {
  if (free.as === "text") return JSON.stringify(free.text);
  const text = free.text.trim();
  if (text === "") return undefined;
  parsed(text, (message) => fail(`${message}. Choose “text” to send it as text`));
  return text;
}
