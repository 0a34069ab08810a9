// A form made from a JSON Schema. `form_value.ts` makes JSON text from what was entered.
import { Component } from "preact";
import { useEffect, useState } from "preact/hooks";
import { FORMATS, Chosen, Free, initial, itemOf, Mistake, MORE, moreOf, resolve, type Entered, type Fields, type Part, type Resolved } from "../form_value";
import { words } from "../format";
import type { Schema } from "../types";
import { Button, Failure, Json, T, type Children } from "../ui";

export { Free, freeText, initial, jsonOf, Mistake, type Entered } from "../form_value";

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

interface Shown extends FieldProps {
  id: string;
  resolved: Resolved;
  title: string;
  label: Children;
  notes: Children;
  common: { id: string; "aria-describedby": string | undefined; "aria-invalid": true | undefined };
}

export function SchemaForm({ schema, value, onChange, mistake }: { schema: Schema; value: Entered; onChange: (value: Entered) => void; mistake?: Mistake | null }) {
  return <Field part={{ schema, root: schema }} name="" path="" value={value} onChange={onChange} required mistake={mistake ?? null} top />;
}

// Shows the error of what is in it, so that the rest of the page goes on.
export class Boundary extends Component<{ children: Children }, { error: unknown }> {
  override state = { error: null as unknown };
  override componentDidCatch(error: unknown) {
    this.setState({ error });
  }
  render() {
    return this.state.error === null ? this.props.children : <Failure error={this.state.error} />;
  }
}

let counter = 0;

function Field(props: FieldProps) {
  const { part, name, path, value, required, mistake, top } = props;
  const [id] = useState(() => `field-${++counter}`);
  const resolved = resolve(part);
  const { schema, sort } = resolved;
  const inner = (top && sort === "object") || (value instanceof Chosen); // a part of it shows the mistake
  const wrong = mistake?.path === path && !inner ? mistake.message : "";
  useEffect(() => {
    if (wrong) document.getElementById(id)?.focus();
  }, [mistake]);
  const title = part.schema.title ?? (name ? words(name) : schema.title ?? "value");
  const help = part.schema.description ?? schema.description;
  const shown: Shown = {
    ...props, id, resolved, title,
    label: <><T text={title} />{!required && <span class="muted"> (optional)</span>}</>,
    notes: (
      <>
        {help && <span class="help" id={`${id}-help`}><T text={help} /></span>}
        {wrong && <span class="wrong" id={`${id}-wrong`} role="alert"><T text={title} /> <T text={wrong} /></span>}
      </>
    ),
    common: { id, "aria-describedby": [help ? `${id}-help` : "", wrong ? `${id}-wrong` : ""].filter(Boolean).join(" ") || undefined, "aria-invalid": wrong ? true : undefined },
  };
  if (top && sort === "object") return <ObjectFields {...shown} />;
  if (sort === "object" || sort === "map") return <Group {...shown}><ObjectFields {...shown} /></Group>;
  if (sort === "array" || sort === "tuple") return <Group {...shown}><Items {...shown} /></Group>;
  if (sort === "union") return <Union {...shown} />;
  if (sort === "boolean" || sort === "enum") return <Select {...shown} />;
  if (sort === "any") return <FreeField {...shown} />;
  return <TextField {...shown} />;
}

// A frame around fields or items. What need not be there can be left out.
function Group({ part, label, notes, value, onChange, required, resolved, title, children }: Shown & { children: Children }) {
  const optional = resolved.nullable || (!required && resolved.preset == null); // with a default, it is never without one
  const start = () => {
    const bare = { schema: { ...resolved.schema, default: undefined }, root: part.root };
    return resolved.sort === "array" ? [initial({ schema: itemOf(resolved.schema, 0), root: part.root })] : initial(bare);
  };
  return (
    <fieldset>
      <legend>{label}</legend>
      {notes}
      {value === undefined
        ? <Button onClick={() => onChange(start())} label={`Add ${title}`}>Add</Button>
        : <>{children}{optional && <Button kind="quiet" onClick={() => onChange(undefined)} label={`Leave out ${title}`}>Leave out</Button>}</>}
    </fieldset>
  );
}

function ObjectFields({ part, path, value, onChange, mistake, top, resolved }: Shown) {
  const { schema, sort } = resolved;
  const fields = (value ?? {}) as Fields;
  const more = moreOf(schema, sort);
  const pairs = (fields[MORE] ?? []) as [string, Entered][];
  const setPairs = (next: [string, Entered][]) => onChange({ ...fields, [MORE]: next });
  const at = (name: string) => (path ? `${path}.${name}` : name);
  const named = Object.entries(schema.properties ?? {});
  return (
    <>
      {top && !named.length && !more && <p class="muted">No values are needed.</p>}
      {named.map(([name, one]) => (
        <Field
          key={name} part={{ schema: one, root: part.root }} name={name} path={at(name)} value={fields[name]}
          onChange={(next) => onChange({ ...fields, [name]: next })} required={schema.required?.includes(name) ?? false} mistake={mistake}
        />
      ))}
      {pairs.map(([name, one], place) => (
        <div class="item" key={place}>
          <div class="pair">
            <label class="field"><span>Name {place + 1}</span>
              <input type="text" value={name} autocomplete="off" onInput={(event) => setPairs(pairs.map((pair, other) => (other === place ? [event.currentTarget.value, pair[1]] : pair)))} /></label>
            <Field
              part={{ schema: more ?? {}, root: part.root }} name={`Value ${place + 1}`} path={at(name)} value={one} required mistake={mistake}
              onChange={(next) => setPairs(pairs.map((pair, other) => (other === place ? [pair[0], next] : pair)))}
            />
          </div>
          <Button kind="quiet" label={`Remove value ${place + 1}`} onClick={() => setPairs(pairs.filter((_, other) => other !== place))}>×</Button>
        </div>
      ))}
      {more && <Button onClick={() => setPairs([...pairs, ["", initial({ schema: more, root: part.root })]])}>{named.length ? "Add another value" : "Add a value"}</Button>}
    </>
  );
}

function Items({ part, path, value, onChange, mistake, resolved }: Shown) {
  const { schema, sort } = resolved;
  const items = value as Entered[];
  const fixed = sort === "tuple";
  return (
    <>
      {items.map((item, at) => (
        <div class="item" key={at}>
          <Field
            part={{ schema: itemOf(schema, at), root: part.root }} name={`${at + 1}`} path={`${path}[${at}]`} value={item} required mistake={mistake}
            onChange={(next) => onChange(items.map((other, place) => (place === at ? next : other)))}
          />
          {!fixed && <Button kind="quiet" label={`Remove item ${at + 1}`} onClick={() => onChange(items.filter((_, place) => place !== at))}>×</Button>}
        </div>
      ))}
      {!fixed && <Button onClick={() => onChange([...items, initial({ schema: itemOf(schema, items.length), root: part.root })])}>Add an item</Button>}
    </>
  );
}

const KINDS: Record<string, string> = { integer: "whole number", number: "number", string: "text", boolean: "yes or no", array: "list", tuple: "list", object: "object", map: "object", any: "anything", json: "JSON" };

function kindOf(part: Part): string {
  const { schema, sort } = resolve(part);
  if (sort === "enum") return schema.enum!.map(String).join(" or ");
  return schema.title ?? (sort === "string" && schema.format ? words(schema.format) : KINDS[sort] ?? sort);
}

function Union({ part, path, value, onChange, required, mistake, resolved, label, notes, common }: Shown) {
  const at = value instanceof Chosen ? value.at : -1;
  const choose = (text: string) => onChange(text === "" ? undefined : new Chosen(Number(text), initial({ schema: resolved.choices[Number(text)]!, root: part.root })));
  const clear = !required || resolved.nullable ? "none" : "choose…";
  return (
    <div class="field">
      <label for={common.id}>{label}</label>
      <select {...common} value={at < 0 ? "" : String(at)} onChange={(event) => choose(event.currentTarget.value)}>
        <option value="">{clear}</option>
        {resolved.choices.map((one, place) => <option key={place} value={String(place)}>{kindOf({ schema: one, root: part.root })}</option>)}
      </select>
      {notes}
      {value instanceof Chosen && (
        <Field key={at} part={{ schema: resolved.choices[at]!, root: part.root }} name={kindOf({ schema: resolved.choices[at]!, root: part.root })} path={path} value={value.value} required mistake={mistake} onChange={(next) => onChange(new Chosen(at, next))} />
      )}
    </div>
  );
}

function Select({ value, onChange, required, resolved, title, label, notes, common }: Shown) {
  const { schema, sort, nullable, preset } = resolved;
  const yesNo = sort === "boolean";
  if (yesNo && required && !nullable) {
    return (
      <div class="field check">
        <label for={common.id}>
          <input type="checkbox" {...common} checked={value === true} onChange={(event) => onChange(event.currentTarget.checked)} /> <span><T text={title} /></span>
        </label>
        {notes}
      </div>
    );
  }
  const texts = yesNo ? ["true", "false"] : schema.enum!.filter((one) => one !== null).map((one) => JSON.stringify(one));
  const shown = yesNo ? ["yes", "no"] : schema.enum!.filter((one) => one !== null).map(String);
  const text = value === undefined || value === "" ? "" : String(value);
  const pick = (next: string) => onChange(!yesNo ? next : next === "" ? undefined : next === "null" ? null : next === "true");
  return (
    <div class="field">
      <label for={common.id}>{label}</label>
      <select {...common} value={text} onChange={(event) => pick(event.currentTarget.value)}>
        {(preset === undefined || text === "") && <option value="">{required ? "choose…" : "not set"}</option>}
        {texts.map((one, at) => <option key={one} value={one}>{shown[at]}</option>)}
        {nullable && <option value="null">none</option>}
      </select>
      {notes}
    </div>
  );
}

// Text with a switch: is it JSON, or a text as it is?
export function FreeInput({ free, onChange, common, label, rows }: { free: Free; onChange: (free: Free) => void; common: Record<string, unknown>; label: string; rows?: number }) {
  const set = (text: string) => onChange(new Free(text, free.as));
  return (
    <div class="free">
      {rows
        ? <textarea {...common} rows={rows} class="mono" value={free.text} spellcheck={false} onInput={(event) => set(event.currentTarget.value)} />
        : <input {...common} type="text" class="mono" value={free.text} autocomplete="off" onInput={(event) => set(event.currentTarget.value)} />}
      <select aria-label={`${label} is`} value={free.as} onChange={(event) => onChange(new Free(free.text, event.currentTarget.value as "json"))}>
        <option value="json">JSON</option><option value="text">text</option>
      </select>
    </div>
  );
}

function FreeField({ value, onChange, title, label, notes, common }: Shown) {
  return (
    <div class="field">
      <label for={common.id}>{label}</label>
      <FreeInput free={value instanceof Free ? value : new Free("")} onChange={onChange} common={common} label={title} rows={3} />
      {notes}
    </div>
  );
}

function TextField({ value, onChange, name, resolved, label, notes, common }: Shown) {
  const { schema, sort } = resolved;
  const text = typeof value === "string" ? value : "";
  const json = sort === "json";
  const format = sort === "string" ? FORMATS[schema.format ?? ""] : undefined;
  const long = json || (sort === "string" && !format && /text|note|comment|body|description|reason/.test(name));
  const type = (event: { currentTarget: { value: string } }) => onChange(event.currentTarget.value);
  return (
    <div class="field">
      <label for={common.id}>{label}{json && <span class="muted"> · JSON</span>}</label>
      {long
        ? <textarea {...common} rows={json ? 4 : 3} class={json ? "mono" : ""} value={text} spellcheck={!json} onInput={type} />
        : (
          <input
            {...common} type="text" value={text} autocomplete="off" placeholder={format ? `such as ${format[0]}` : undefined}
            inputMode={sort === "integer" ? "numeric" : sort === "number" || schema.format === "decimal" ? "decimal" : undefined} onInput={type}
          />
        )}
      {notes}
      {json && <details><summary>Its JSON Schema</summary><Json source={JSON.stringify(schema)} label="schema" /></details>}
    </div>
  );
}
