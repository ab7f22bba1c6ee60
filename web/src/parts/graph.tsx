// The dataflow of a query as SVG: one box an operator, with what it does right now.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Operator } from "../lib/api";
import { cut, percent, perSecond, watermark } from "../lib/format";
import { layout, type Edge, type Placed } from "../lib/layout";
import { growth, rate, record } from "../lib/rates";

const box = { width: 222, height: 128 };
const pad = 14;

/** Name of an operator's series of rates. */
function seriesOf(query: string, operator: Operator): string {
  return `operator ${query} ${operator.uid}`;
}

/** Remember the counters of all operators and their subtasks. */
export function recordOperators(query: string, operators: Operator[], at: number): void {
  for (const operator of operators) {
    const sum = (pick: (subtask: Operator["subtasks"][number]) => number) =>
      operator.subtasks.reduce((total, subtask) => total + pick(subtask), 0);
    record(
      seriesOf(query, operator),
      [sum((s) => s.rows_in), sum((s) => s.rows_out), sum((s) => s.busy_ns), sum((s) => s.blocked_ns)],
      at,
    );
    for (const s of operator.subtasks) {
      record(subtaskSeries(query, s), [s.rows_in, s.rows_out, s.busy_ns, s.blocked_ns], at);
    }
  }
}

/** Name of a subtask's series of rates. */
export function subtaskSeries(query: string, subtask: { uid: string; subtask: number }): string {
  return `subtask ${query} ${subtask.uid} ${subtask.subtask}`;
}

export interface Shares {
  busy: number;
  idle: number;
  blocked: number;
}

/** How a series of `subtasks` subtasks spent its time: whatever is neither busy nor blocked waits for input. */
export function sharesOf(series: string, subtasks: number): Shares {
  const of = (index: number): number => {
    const grown = growth(series, index);
    return grown === null ? 0 : Math.min(1, grown.by / 1e6 / (grown.ms * Math.max(1, subtasks)));
  };
  const busy = of(2);
  const blocked = Math.min(1 - busy, of(3));
  return { busy, blocked, idle: 1 - busy - blocked };
}

/** The least watermark of the subtasks: the one that holds. */
export function lowWatermark(operator: Operator): number | null {
  let least: number | null = null;
  for (const { watermark_us: at } of operator.subtasks) {
    if (at === null) return null;
    least = least === null ? at : Math.min(least, at);
  }
  return least;
}

interface GraphProps {
  query: string;
  operators: Operator[];
  selected: number;
  onSelect: (index: number) => void;
}

export function Graph({ query, operators, selected, onSelect }: GraphProps) {
  const frame = useRef<HTMLDivElement>(null);
  const [narrow, setNarrow] = useState(false);
  useEffect(() => {
    if (frame.current === null) return;
    const observer = new ResizeObserver(([entry]) => setNarrow((entry?.contentRect.width ?? 1000) < 640));
    observer.observe(frame.current);
    return () => observer.disconnect();
  }, []);

  const placed = layout(operators, box, narrow ? { layer: 44, slot: 18 } : { layer: 72, slot: 24 }, narrow);
  const width = placed.width + 2 * pad;
  const height = placed.height + 2 * pad;
  return (
    <div class="graph" ref={frame}>
      <svg
        width={width}
        height={height}
        viewBox={`${-pad} ${-pad} ${width} ${height}`}
        role="group"
        aria-label="Dataflow graph"
      >
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path d="M0 .5 8 4 0 7.5z" class="arrow" />
          </marker>
        </defs>
        {placed.edges.map((edge) => (
          <EdgeLine
            key={`${edge.from}-${edge.to}-${edge.input}`}
            edge={edge}
            exchange={operators[edge.to]?.inputs[edge.input]?.exchange ?? ""}
            down={narrow}
          />
        ))}
        {operators.map((operator, i) => (
          <OperatorBox
            key={operator.uid}
            query={query}
            operator={operator}
            at={placed.boxes[i] ?? { x: 0, y: 0 }}
            selected={i === selected}
            onSelect={() => onSelect(i)}
          />
        ))}
      </svg>
    </div>
  );
}

function EdgeLine({ edge, exchange, down }: { edge: Edge; exchange: string; down: boolean }) {
  const { points } = edge;
  let path = "";
  points.forEach((point, i) => {
    const before = points[i - 1];
    if (before === undefined) path += `M${point.x} ${point.y}`;
    else if (down) {
      const middle = (before.y + point.y) / 2;
      path += `C${before.x} ${middle} ${point.x} ${middle} ${point.x} ${point.y}`;
    } else {
      const middle = (before.x + point.x) / 2;
      path += `C${middle} ${before.y} ${middle} ${point.y} ${point.x} ${point.y}`;
    }
  });
  const [a, b] = [points.at(-2), points.at(-1)] as [Placed, Placed];
  const label = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
  return (
    <g class={`edge ${exchange.startsWith("forward") ? "" : "shuffles"}`}>
      <path d={path} marker-end="url(#arrow)" />
      {!exchange.startsWith("forward") && (
        <text x={label.x} y={label.y - (down ? -4 : 7)} text-anchor="middle">
          {cut(exchange, 13)}
          <title>{exchange}</title>
        </text>
      )}
    </g>
  );
}

interface BoxProps {
  query: string;
  operator: Operator;
  at: Placed;
  selected: boolean;
  onSelect: () => void;
}

function OperatorBox({ query, operator, at, selected, onSelect }: BoxProps) {
  const series = seriesOf(query, operator);
  const shares = sharesOf(series, operator.subtasks.length);
  const inner = box.width - 24;
  const rejected = operator.subtasks.reduce((sum, s) => sum + s.late_rows + s.bad_rows, 0);
  const source = operator.inputs.length === 0;
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onSelect();
  };
  return (
    <g
      class={`op ${selected ? "selected" : ""}`}
      transform={`translate(${at.x} ${at.y})`}
      role="button"
      tabindex={0}
      aria-pressed={selected}
      aria-label={`${operator.name}, busy ${percent(shares.busy)}, blocked ${percent(shares.blocked)}`}
      onClick={onSelect}
      onKeyDown={onKeyDown}
    >
      <title>{operator.name}</title>
      <rect class="op-box" width={box.width} height={box.height} rx="8" />
      <text class="op-name" x="12" y="21">
        {cut(operator.name, 25)}
      </text>
      <text class="op-kind" x="12" y="37">
        {cut(operator.kind + (operator.changelog ? " · changelog" : ""), 30)}
      </text>
      <text class="op-kind" x={box.width - 12} y="37" text-anchor="end">
        ×{operator.parallelism}
      </text>
      <text class="op-num" x="12" y="58">
        <tspan class="op-label">in </tspan>
        {source ? "–" : perSecond(rate(series, 0))}
      </text>
      <text class="op-num" x={box.width / 2} y="58">
        <tspan class="op-label">out </tspan>
        {perSecond(rate(series, 1))}
      </text>
      <rect class="op-track" x="12" y="67" width={inner} height="6" rx="3" />
      <rect class="op-busy" x="12" y="67" width={inner * shares.busy} height="6" rx="3" />
      <rect class="op-blocked" x={12 + inner * shares.busy} y="67" width={inner * shares.blocked} height="6" rx="3" />
      <text class="op-small" x="12" y="88">
        {`busy ${percent(shares.busy)} · idle ${percent(shares.idle)} · blocked ${percent(shares.blocked)}`}
      </text>
      <text class="op-small" x="12" y="104">
        <tspan class="op-label">watermark </tspan>
        {watermark(lowWatermark(operator))}
      </text>
      <text class={`op-small ${operator.state_bound.startsWith("unbounded") ? "op-warn" : ""}`} x="12" y="119">
        <tspan class="op-label">state </tspan>
        {cut(operator.state_bound, 26)}
        <title>{operator.state_bound}</title>
      </text>
      {rejected > 0 && <circle class="op-flag" cx={box.width - 14} cy="16" r="4" />}
    </g>
  );
}
