// A form made from a JSON Schema. It yields JSON text, so that numbers reach the server as the user wrote them.
import { useState } from "preact/hooks";
import { parseExact } from "../exact";
import { words } from "../format";
import type { Schema } from "../types";
import { Button, T } from "../ui";

// What the user has entered: text for a leaf, an object for fields, a list for items, undefined for nothing.
export type Entered = string | boolean | undefined | Entered[] | { [name: string]: Entered };

interface Part {
  schema: Schema;
  root: Schema;
}

function resolve({ schema, root }: Part): { schema: Schema; nullable: boolean } {
  let nullable = false;
  for (let step = 0; step < 20; step++) {
    if (schema.$ref) {
      const name = schema.$ref.split("/").pop()!;
      schema = { ...(root.$defs?.[name] ?? {}), ...(schema.description ? { description: schema.description } : {}) };
      continue;
    }
    const choices = schema.anyOf ?? schema.oneOf;
    if (choices) {
      const left = choices.filter((one) => one.type !== "null");
      if (left.length < choices.length) nullable = true;
      if (left.length === 1) {
        schema = { ...left[0]!, default: schema.default, description: schema.description ?? left[0]!.description };
        continue;
      }
    }
    if (Array.isArray(schema.type) && schema.type.includes("null")) {
      nullable = true;
      const left = schema.type.filter((one) => one !== "null");
      schema = { ...schema, type: left.length === 1 ? left[0] : left };
    }
    break;
  }
  return { schema, nullable };
}

type Sort = "object" | "array" | "enum" | "boolean" | "number" | "integer" | "string" | "json";

function sortOf(schema: Schema): Sort {
  if (schema.enum) return "enum";
  if (schema.type === "object" && schema.properties) return "object";
  if (schema.type === "array" && schema.items) return "array";
  if (schema.type === "boolean" || schema.type === "number" || schema.type === "integer" || schema.type === "string") return schema.type;
  return "json";
}

export function initial(part: Part): Entered {
  const { schema } = resolve(part);
  const preset = part.schema.default ?? schema.default;
  const sort = sortOf(schema);
  if (sort === "object") {
    return Object.fromEntries(Object.entries(schema.properties!).map(([name, inner]) => [name, initial({ schema: inner, root: part.root })]));
  }
  if (preset === undefined || preset === null) return sort === "array" ? undefined : sort === "boolean" ? undefined : "";
  if (sort === "array") return undefined;
  if (sort === "boolean") return preset as boolean;
  if (sort === "string") return String(preset);
  return JSON.stringify(preset);
}

export class Mistake extends Error {
  constructor(readonly path: string, message: string) {
    super(message);
  }
}

// The JSON text of what was entered; undefined if the user left it out.
export function jsonOf(part: Part, value: Entered, path: string, required: boolean): string | undefined {
  const { schema, nullable } = resolve(part);
  const sort = sortOf(schema);
  const fail = (message: string): never => {
    throw new Mistake(path, message);
  };
  if (sort === "object") {
    const fields = (value ?? {}) as { [name: string]: Entered };
    const parts: string[] = [];
    for (const [name, inner] of Object.entries(schema.properties!)) {
      const needed = schema.required?.includes(name) ?? false;
      const text = jsonOf({ schema: inner, root: part.root }, fields[name], path ? `${path}.${name}` : name, needed);
      if (text !== undefined) parts.push(`${JSON.stringify(name)}:${text}`);
    }
    return !parts.length && !required && path ? undefined : `{${parts.join(",")}}`;
  }
  if (sort === "array") {
    if (value === undefined) return required ? "[]" : undefined;
    const items = value as Entered[];
    return `[${items.map((item, at) => jsonOf({ schema: schema.items!, root: part.root }, item, `${path}[${at}]`, true)).join(",")}]`;
  }
  if (sort === "boolean") return value === undefined ? (required ? (nullable ? "null" : "false") : undefined) : String(value);
  const text = (value as string | undefined) ?? "";
  if (sort === "string") {
    if (text === "" && !required) return undefined;
    if (text === "" && nullable) return "null";
    if (schema.minLength !== undefined && text.length < schema.minLength) fail(`needs at least ${schema.minLength} characters`);
    if (schema.maxLength !== undefined && text.length > schema.maxLength) fail(`has more than ${schema.maxLength} characters`);
    return JSON.stringify(text);
  }
  if (text.trim() === "") {
    if (!required) return undefined;
    return nullable ? "null" : fail("is needed");
  }
  if (sort === "enum") return text;
  if (sort === "integer" && !/^-?\d+$/.test(text.trim())) fail("must be a whole number");
  if (sort === "number" && !/^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(text.trim())) fail("must be a number");
  if (sort === "integer" || sort === "number") {
    const number = Number(text);
    if (schema.minimum !== undefined && number < schema.minimum) fail(`must be at least ${schema.minimum}`);
    if (schema.maximum !== undefined && number > schema.maximum) fail(`must be at most ${schema.maximum}`);
    return text.trim().replace(/^(-?)0+(?=\d)/, "$1");
  }
  try {
    parseExact(text);
  } catch (error) {
    fail((error as Error).message);
  }
  return text.trim();
}

export function SchemaForm({ schema, value, onChange, mistake }: { schema: Schema; value: Entered; onChange: (value: Entered) => void; mistake?: Mistake | null }) {
  return <Field part={{ schema, root: schema }} name="" path="" value={value} onChange={onChange} required mistake={mistake ?? null} top />;
}

interface FieldProps {
  part: Part;
  name: string;
  path: string;
  value: Entered;
  onChange: (value: Entered) => void;
  required: boolean;
  mistake: Mistake | null;
  top?: boolean;
}

let counter = 0;

function Field({ part, name, path, value, onChange, required, mistake, top }: FieldProps) {
  const [id] = useState(() => `field-${++counter}`);
  const { schema, nullable } = resolve(part);
  const sort = sortOf(schema);
  const wrong = mistake?.path === path && !(top && sort === "object") ? mistake.message : "";
  const title = schema.title && !name ? schema.title : name ? words(name) : "value";
  const help = part.schema.description ?? schema.description;
  const label = <><T text={title} />{!required && <span class="muted"> (optional)</span>}</>;
  const notes = (
    <>
      {help && <span class="help" id={`${id}-help`}><T text={help} /></span>}
      {wrong && <span class="wrong" id={`${id}-wrong`} role="alert">{title} {wrong}</span>}
    </>
  );
  const described = [help ? `${id}-help` : "", wrong ? `${id}-wrong` : ""].filter(Boolean).join(" ") || undefined;
  const common = { id, "aria-describedby": described, "aria-invalid": wrong ? true : undefined } as const;
  if (sort === "object") {
    const fields = (value ?? {}) as { [name: string]: Entered };
    const inner = Object.entries(schema.properties!).map(([key, one]) => (
      <Field
        key={key} part={{ schema: one, root: part.root }} name={key} path={path ? `${path}.${key}` : key} value={fields[key]}
        onChange={(next) => onChange({ ...fields, [key]: next })} required={schema.required?.includes(key) ?? false} mistake={mistake}
      />
    ));
    if (top) return <>{inner.length ? inner : <p class="muted">No values are needed.</p>}</>;
    return <fieldset><legend>{label}</legend>{notes}{inner}</fieldset>;
  }
  if (sort === "array") {
    const items = (value as Entered[] | undefined) ?? [];
    return (
      <fieldset>
        <legend>{label}</legend>
        {notes}
        {items.map((item, at) => (
          <div class="item" key={at}>
            <Field
              part={{ schema: schema.items!, root: part.root }} name={`${at + 1}`} path={`${path}[${at}]`} value={item} required mistake={mistake}
              onChange={(next) => onChange(items.map((other, place) => (place === at ? next : other)))}
            />
            <Button kind="quiet" label={`Remove item ${at + 1}`} onClick={() => onChange(items.filter((_, place) => place !== at))}>×</Button>
          </div>
        ))}
        <Button onClick={() => onChange([...items, initial({ schema: schema.items!, root: part.root })])}>Add an item</Button>
      </fieldset>
    );
  }
  if (sort === "boolean") {
    if (required && !nullable) {
      return (
        <div class="field check">
          <label for={id}>
            <input type="checkbox" {...common} checked={value === true} onChange={(event) => onChange(event.currentTarget.checked)} /> <span><T text={title} /></span>
          </label>
          {notes}
        </div>
      );
    }
    return (
      <div class="field">
        <label for={id}>{label}</label>
        <select {...common} value={value === undefined ? "" : String(value)} onChange={(event) => onChange(event.currentTarget.value === "" ? undefined : event.currentTarget.value === "true")}>
          <option value="">not set</option><option value="true">yes</option><option value="false">no</option>
        </select>
        {notes}
      </div>
    );
  }
  const text = typeof value === "string" ? value : "";
  if (sort === "enum") {
    return (
      <div class="field">
        <label for={id}>{label}</label>
        <select {...common} value={text} onChange={(event) => onChange(event.currentTarget.value)}>
          <option value="">{required ? "choose…" : "not set"}</option>
          {schema.enum!.filter((one) => one !== null).map((one) => <option key={JSON.stringify(one)} value={JSON.stringify(one)}>{String(one)}</option>)}
        </select>
        {notes}
      </div>
    );
  }
  const long = sort === "json" || (sort === "string" && /text|note|comment|body|description|reason/.test(name));
  return (
    <div class="field">
      <label for={id}>{label}{sort === "json" && <span class="muted"> · JSON</span>}</label>
      {long
        ? <textarea {...common} rows={sort === "json" ? 4 : 3} class={sort === "json" ? "mono" : ""} value={text} spellcheck={sort !== "json"} onInput={(event) => onChange(event.currentTarget.value)} />
        : (
          <input
            {...common} type="text" value={text} autocomplete="off"
            inputMode={sort === "integer" ? "numeric" : sort === "number" ? "decimal" : undefined} onInput={(event) => onChange(event.currentTarget.value)}
          />
        )}
      {notes}
    </div>
  );
}
