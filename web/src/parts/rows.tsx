// A table of result rows.
import { useLayoutEffect, useRef } from "preact/hooks";
import type { ResultColumn } from "../lib/api";
import { cell } from "../lib/format";
import type { Cell } from "../lib/json";

const numeric = /^(smallint|integer|bigint|int|real|double|numeric|decimal|float|uint)/i;

interface RowsProps {
  columns: ResultColumn[];
  rows: Record<string, Cell>[];
  /** Keep the newest row in sight, unless the reader has scrolled back. */
  follow?: boolean;
}

export function Rows({ columns, rows, follow = false }: RowsProps) {
  const frame = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (follow && atEnd.current && frame.current !== null) frame.current.scrollTop = frame.current.scrollHeight;
  }, [follow, rows]);
  const onScroll = () => {
    const box = frame.current;
    if (box !== null) atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  };
  return (
    <div class="scroll result" ref={frame} onScroll={onScroll} tabIndex={0} role="region" aria-label="Result rows">
      <table class="figures rows">
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} scope="col" class={numeric.test(column.type) ? "r" : ""}>
                {column.name}
                <small>{column.type}</small>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {columns.map((column) => (
                <CellView key={column.name} value={row[column.name] ?? null} numeric={numeric.test(column.type)} />
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function CellView({ value, numeric }: { value: Cell; numeric: boolean }) {
  if (value === null) return <td class={`null ${numeric ? "r" : ""}`}>NULL</td>;
  return <td class={numeric ? "r num" : "mono"}>{cell(value)}</td>;
}
