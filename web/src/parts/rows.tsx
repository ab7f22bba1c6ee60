// A table of result rows.
import type { ResultColumn } from "../lib/api";
import { cell } from "../lib/format";
import type { Cell } from "../lib/json";

const numeric = /^(smallint|integer|bigint|int|real|double|numeric|decimal|float|uint)/i;

export function Rows({ columns, rows }: { columns: ResultColumn[]; rows: Record<string, Cell>[] }) {
  return (
    <div class="scroll result" tabIndex={0} role="region" aria-label="Result rows">
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
