// The graph of a plan, in layers from left to right. The layout is our own: a thousand nodes take some milliseconds.
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { short, words } from "../format";
import type { PlanNode, View } from "../types";
import { Button, Empty, Shape, Status, T, toneOf } from "../ui";

const WIDTH = 172;
const HEIGHT = 34;
const APART = 64; // between layers
const BETWEEN = 12; // between nodes of a layer

export interface Place {
  x: number;
  y: number;
}

export interface Layout {
  places: Map<string, Place>;
  edges: { from: string; to: string; path: string; chosen: boolean }[];
  width: number;
  height: number;
}

// Longest-path layers, then sweeps that put each node near the middle of its neighbours.
export function layout(nodes: PlanNode[]): Layout {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const layer = new Map<string, number>();
  const visiting = new Set<string>();
  const depth = (id: string): number => {
    // A stack of our own: a chain of a thousand nodes would be a thousand calls deep.
    const stack = [id];
    while (stack.length) {
      const top = stack[stack.length - 1]!;
      if (layer.has(top)) {
        stack.pop();
        continue;
      }
      visiting.add(top);
      const needs = known.get(top)!.needs.filter((need) => known.has(need));
      const open = needs.filter((need) => !layer.has(need) && !visiting.has(need));
      if (open.length) stack.push(...open);
      else {
        layer.set(top, needs.reduce((most, need) => Math.max(most, (layer.get(need) ?? -1) + 1), 0));
        visiting.delete(top);
        stack.pop();
      }
    }
    return layer.get(id)!;
  };
  const layers: string[][] = [];
  for (const node of nodes) (layers[depth(node.id)] ??= []).push(node.id);
  const users = new Map<string, string[]>();
  for (const node of nodes) for (const need of node.needs) if (known.has(need)) (users.get(need) ?? users.set(need, []).get(need)!).push(node.id);
  const order = new Map<string, number>();
  const number = (ids: string[]) => ids.forEach((id, at) => order.set(id, at - ids.length / 2));
  layers.forEach(number);
  const sort = (ids: string[], near: (id: string) => string[]) => {
    const weight = new Map(ids.map((id) => {
      const places = near(id).map((other) => order.get(other)!).filter((place) => place !== undefined);
      return [id, places.length ? places.reduce((sum, place) => sum + place, 0) / places.length : order.get(id)!];
    }));
    ids.sort((one, other) => weight.get(one)! - weight.get(other)! || order.get(one)! - order.get(other)!);
    number(ids);
  };
  for (let sweep = 0; sweep < 4; sweep++) {
    for (const ids of layers) sort(ids, (id) => known.get(id)!.needs.filter((need) => known.has(need)));
    for (const ids of [...layers].reverse()) sort(ids, (id) => users.get(id) ?? []);
  }
  const tallest = layers.reduce((most, ids) => Math.max(most, ids.length), 0);
  const height = tallest * (HEIGHT + BETWEEN) + BETWEEN;
  const places = new Map<string, Place>();
  layers.forEach((ids, column) => {
    const top = (height - ids.length * (HEIGHT + BETWEEN) + BETWEEN) / 2;
    ids.forEach((id, at) => places.set(id, { x: 12 + column * (WIDTH + APART), y: top + at * (HEIGHT + BETWEEN) }));
  });
  const edges = nodes.flatMap((node) => node.needs.filter((need) => places.has(need)).map((need) => {
    const from = places.get(need)!;
    const to = places.get(node.id)!;
    const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x - 5, to.y + HEIGHT / 2];
    const bend = Math.max(20, (x2 - x1) / 2);
    return { from: need, to: node.id, chosen: node.chosen_by?.includes(need) ?? false, path: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` };
  }));
  return { places, edges, width: 24 + layers.length * (WIDTH + APART) - APART, height: Math.max(height, HEIGHT + 2 * BETWEEN) };
}

// What each node is called: its title, or its id if other nodes have the same title.
function namesOf(nodes: PlanNode[]): Map<string, string> {
  const seen = new Map<string, number>();
  for (const node of nodes) seen.set(node.title, (seen.get(node.title) ?? 0) + 1);
  return new Map(nodes.map((node) => [node.id, node.title && seen.get(node.title) === 1 ? node.title : node.id]));
}

export function statusOf(node: PlanNode, view: View): string {
  return view.nodes?.[node.id]?.status ?? (node.call ? view.calls?.[node.call]?.status : undefined) ?? "pending";
}

export function Graph({ nodes, view }: { nodes: PlanNode[]; view: View }) {
  const made = useMemo(() => layout(nodes), [nodes]);
  const names = useMemo(() => namesOf(nodes), [nodes]);
  const [zoom, setZoom] = useState(0); // 0 fits the width
  const [chosen, setChosen] = useState<string | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const picture = useRef<SVGSVGElement>(null);
  useLayoutEffect(() => {
    const fitting = Math.min(1, Math.max(0.25, ((box.current?.clientWidth ?? 800) - 4) / made.width));
    const factor = zoom || fitting;
    picture.current?.setAttribute("width", String(made.width * factor));
    picture.current?.setAttribute("height", String(made.height * factor));
  });
  if (!nodes.length) return <Empty title="The plan has no nodes" />;
  const near = new Set(chosen ? made.edges.filter((edge) => edge.from === chosen || edge.to === chosen).map((edge) => edge.from + "\n" + edge.to) : []);
  const counts = new Map<string, number>();
  for (const node of nodes) {
    const status = statusOf(node, view);
    counts.set(status, (counts.get(status) ?? 0) + 1);
  }
  const picked = nodes.find((node) => node.id === chosen);
  const step = (event: KeyboardEvent) => {
    const along = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const across = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!along && !across) return;
    event.preventDefault();
    event.stopPropagation();
    const at = made.places.get(chosen ?? nodes[0]!.id)!;
    const candidates = nodes
      .map((node) => ({ id: node.id, place: made.places.get(node.id)! }))
      .filter(({ place }) => (along ? (place.x - at.x) * along > 0 : place.x === at.x && (place.y - at.y) * across > 0))
      .sort((one, other) => Math.abs(one.place.x - at.x) * 10 + Math.abs(one.place.y - at.y) - Math.abs(other.place.x - at.x) * 10 - Math.abs(other.place.y - at.y));
    if (!chosen) setChosen(nodes[0]!.id);
    else if (candidates[0]) setChosen(candidates[0].id);
  };
  return (
    <div class="graph">
      <div class="timeline-tools">
        <span class="legend">{[...counts].map(([status, number]) => <span key={status}>{number} <Status status={status} /></span>)}</span>
        <span class="tools">
          <Button onClick={() => setZoom(0)} pressed={zoom === 0}>Fit</Button>
          <Button onClick={() => setZoom(1)} pressed={zoom === 1}>1:1</Button>
        </span>
      </div>
      <div class="graph-scroll" ref={box} tabIndex={0} role="group" aria-label="Plan. Arrow keys move from node to node." onKeyDown={step}>
        <svg ref={picture} viewBox={`0 0 ${made.width} ${made.height}`} role="img" aria-label={`Plan with ${nodes.length} nodes`}>
          {made.edges.map((edge) => (
            <path key={edge.from + "\n" + edge.to} d={edge.path} class={`edge${edge.chosen ? " choice" : ""}${near.has(edge.from + "\n" + edge.to) ? " near" : ""}`} />
          ))}
          {nodes.map((node) => {
            const place = made.places.get(node.id)!;
            const status = statusOf(node, view);
            return (
              <g
                key={node.id} class={`node tone-${toneOf(status)}${node.id === chosen ? " chosen" : ""}`}
                transform={`translate(${place.x} ${place.y})`} onClick={() => setChosen(node.id)}
              >
                <rect width={WIDTH} height={HEIGHT} rx="6" />
                <g transform="translate(10 11)"><Shape status={status} /></g>
                <text x="28" y="21">{short(names.get(node.id)!, 20)}</text>
                <title>{`${names.get(node.id)}: ${words(status)}`}</title>
              </g>
            );
          })}
        </svg>
      </div>
      <p class="pad muted" aria-live="polite">
        {picked
          ? <><strong><T text={names.get(picked.id)} /></strong> · {picked.kind} · <Status status={statusOf(picked, view)} /> · needs {picked.needs.length ? <T text={short(picked.needs.join(", "), 200)} /> : "nothing"}</>
          : "Choose a node with a click or with the arrow keys."}
      </p>
    </div>
  );
}
