import assert from "node:assert/strict";
import { test } from "node:test";
import { layout } from "./layout";

const box = { width: 100, height: 50 };
const gap = { layer: 40, slot: 10 };

test("an operator stands right of all its inputs", () => {
  // source 0, source 1 -> aggregate 2; join 3 of 0 and 2; sink 4
  const nodes = [[], [], [1], [0, 2], [3]].map((inputs) => ({ inputs: inputs.map((from) => ({ from })) }));
  const { boxes, edges, width } = layout(nodes, box, gap, false);
  nodes.forEach((node, i) => {
    for (const { from } of node.inputs) assert.ok((boxes[from]?.x ?? 0) + box.width < (boxes[i]?.x ?? 0));
  });
  assert.equal(edges.length, 4);
  assert.equal(width, 4 * 100 + 3 * 40);
});

test("boxes of one layer do not overlap, in either direction", () => {
  const nodes = [...Array.from({ length: 5 }, () => ({ inputs: [] })), { inputs: [0, 1, 2, 3, 4].map((from) => ({ from })) }];
  for (const down of [false, true]) {
    const { boxes } = layout(nodes, box, gap, down);
    for (let a = 0; a < 5; a += 1) {
      for (let b = 0; b < a; b += 1) {
        const [p, q] = [boxes[a] ?? { x: 0, y: 0 }, boxes[b] ?? { x: 0, y: 0 }];
        assert.ok(Math.abs(p.x - q.x) >= box.width || Math.abs(p.y - q.y) >= box.height);
      }
    }
  }
});

test("an answer with a cycle does not hang the page", () => {
  layout([{ inputs: [{ from: 1 }] }, { inputs: [{ from: 0 }] }], box, gap, false);
});
