// Layered layout of a dataflow: every operator right of (or below) its inputs, edges that pass a layer kept clear of
// its boxes by a place of their own in it.

export interface LayoutNode {
  inputs: { from: number }[];
}

export interface Size {
  width: number;
  height: number;
}

export interface Placed {
  x: number;
  y: number;
}

export interface Edge {
  from: number;
  to: number;
  /** Index among the inputs of `to`. */
  input: number;
  /** From box to box through the layers between. */
  points: Placed[];
}

export interface Layout {
  boxes: Placed[];
  edges: Edge[];
  width: number;
  height: number;
}

/** A place in a layer: a box, or a bend of an edge that passes through. */
interface Slot {
  node: number | null;
  neighbours: Slot[];
  order: number;
  layer: number;
}

/** Lay out `nodes` in layers from left to right, or from top to bottom when `down`. */
export function layout(nodes: LayoutNode[], box: Size, gap: { layer: number; slot: number }, down: boolean): Layout {
  const layerOf = longestPaths(nodes);
  const layers: Slot[][] = Array.from({ length: Math.max(0, ...layerOf) + 1 }, () => []);
  const add = (layer: number, node: number | null): Slot => {
    const row = layers[layer] as Slot[];
    const slot: Slot = { node, neighbours: [], order: row.length, layer };
    row.push(slot);
    return slot;
  };
  const slots = nodes.map((_, i) => add(layerOf[i] ?? 0, i));

  const paths: { from: number; to: number; input: number; slots: Slot[] }[] = [];
  nodes.forEach((node, to) => {
    node.inputs.forEach(({ from }, input) => {
      const start = slots[from];
      const end = slots[to];
      if (start === undefined || end === undefined) return;
      const path = [start];
      for (let layer = start.layer + 1; layer < end.layer; layer += 1) path.push(add(layer, null));
      path.push(end);
      path.slice(1).forEach((slot, i) => {
        const before = path[i] as Slot;
        slot.neighbours.push(before);
        before.neighbours.push(slot);
      });
      paths.push({ from, to, input, slots: path });
    });
  });
  untangle(layers);

  const across = down ? box.width : box.height;
  const along = down ? box.height : box.width;
  const bend = across / 3;
  const extent = layers.map((row) =>
    row.reduce((sum, slot) => sum + (slot.node === null ? bend : across) + gap.slot, -gap.slot),
  );
  const widest = Math.max(0, ...extent);
  const places = new Map<Slot, Placed>();
  layers.forEach((row, l) => {
    let cursor = (widest - (extent[l] ?? 0)) / 2;
    for (const slot of row) {
      const start = l * (along + gap.layer);
      places.set(slot, down ? { x: cursor, y: start } : { x: start, y: cursor });
      cursor += (slot.node === null ? bend : across) + gap.slot;
    }
  });

  const place = (slot: Slot): Placed => places.get(slot) ?? { x: 0, y: 0 };
  const out = (slot: Slot): Placed => {
    const at = place(slot);
    return down ? { x: at.x + box.width / 2, y: at.y + box.height } : { x: at.x + box.width, y: at.y + box.height / 2 };
  };
  const into = (slot: Slot): Placed => {
    const at = place(slot);
    return down ? { x: at.x + box.width / 2, y: at.y } : { x: at.x, y: at.y + box.height / 2 };
  };
  const through = (slot: Slot): Placed[] => {
    const at = place(slot);
    return down
      ? [{ x: at.x + bend / 2, y: at.y }, { x: at.x + bend / 2, y: at.y + along }]
      : [{ x: at.x, y: at.y + bend / 2 }, { x: at.x + along, y: at.y + bend / 2 }];
  };
  const length = layers.length * (along + gap.layer) - gap.layer;
  return {
    boxes: slots.map(place),
    edges: paths.map(({ from, to, input, slots: path }) => ({
      from,
      to,
      input,
      points: [out(path[0] as Slot), ...path.slice(1, -1).flatMap(through), into(path.at(-1) as Slot)],
    })),
    width: down ? widest : length,
    height: down ? length : widest,
  };
}

function longestPaths(nodes: LayoutNode[]): number[] {
  const layer: number[] = nodes.map(() => 0);
  // A dataflow has no cycles; the bound only keeps a broken answer from hanging the page.
  for (let round = 0; round < nodes.length; round += 1) {
    let moved = false;
    nodes.forEach((node, i) => {
      for (const { from } of node.inputs) {
        const least = (layer[from] ?? 0) + 1;
        if (least > (layer[i] ?? 0) && least < nodes.length) {
          layer[i] = least;
          moved = true;
        }
      }
    });
    if (!moved) break;
  }
  return layer;
}

/** Order each layer by the mean place of its neighbours, a few sweeps there and back: few crossings, stable. */
function untangle(layers: Slot[][]): void {
  const renumber = (row: Slot[]) => row.forEach((slot, i) => (slot.order = i));
  const sort = (row: Slot[], beside: number) => {
    const mean = new Map<Slot, number>();
    for (const slot of row) {
      const near = slot.neighbours.filter((other) => other.layer === slot.layer + beside);
      mean.set(slot, near.length === 0 ? slot.order : near.reduce((sum, n) => sum + n.order, 0) / near.length);
    }
    row.sort((a, b) => (mean.get(a) ?? 0) - (mean.get(b) ?? 0) || a.order - b.order);
    renumber(row);
  };
  for (let sweep = 0; sweep < 4; sweep += 1) {
    for (let l = 1; l < layers.length; l += 1) sort(layers[l] as Slot[], -1);
    for (let l = layers.length - 2; l >= 0; l -= 1) sort(layers[l] as Slot[], 1);
  }
}
