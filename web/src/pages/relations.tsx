// Streams, tables, views and sinks: what they are, and the first rows of what can be read.
import { useEffect, useRef, useState } from "preact/hooks";
import { quoted, runSql, ServerError, type Problem, type Relation, type ResultColumn } from "../lib/api";
import type { Cell } from "../lib/json";
import { usePoll } from "../lib/poll";
import { Code, Fact, ProblemBox, Waiting } from "../parts/bits";
import { Rows } from "../parts/rows";

const kinds: [string, string][] = [
  ["view", "Materialized views"],
  ["table", "Tables"],
  ["stream", "Streams"],
  ["sink", "Sinks"],
];

const firstStream = `CREATE STREAM sensors (at TIMESTAMPTZ, sensor TEXT, celsius DOUBLE PRECISION,
  WATERMARK FOR at AS at - INTERVAL '5 seconds');`;

export function Relations({ selected }: { selected: string | null }) {
  const { data, error } = usePoll<{ relations: Relation[] }>("/v1/relations");
  if (error !== undefined) return <ProblemBox problem={error.problem} />;
  if (data === undefined) return <Waiting />;
  if (data.relations.length === 0) {
    return (
      <section class="empty">
        <h1>Nothing is defined yet</h1>
        <p>A stream is where rows come in: from files, from a generator, over HTTP or by INSERT. This makes one:</p>
        <Code sql={firstStream} label="Copy this statement" />
        <p>
          <a class="button primary" href={`#/sql?q=${encodeURIComponent(firstStream)}`}>
            Open it in the SQL page
          </a>
        </p>
      </section>
    );
  }
  const relation = data.relations.find((one) => one.name === selected);
  return (
    <section class={`split ${selected === null ? "at-list" : "at-one"}`}>
      <nav class="side" aria-label="Relations">
        {kinds.map(([kind, title]) => {
          const members = data.relations.filter((one) => one.kind === kind);
          return members.length === 0 ? null : (
            <div key={kind}>
              <h2>{title}</h2>
              <ul>
                {members.map((one) => (
                  <li key={one.name}>
                    <a
                      href={`#/relations/${encodeURIComponent(one.name)}`}
                      aria-current={one.name === selected ? "page" : undefined}
                    >
                      {one.name}
                    </a>
                  </li>
                ))}
              </ul>
            </div>
          );
        })}
      </nav>
      <div class="detail">
        {relation !== undefined ? (
          <Detail key={relation.name} relation={relation} />
        ) : selected === null ? (
          <p class="muted pick">Choose a relation to see its columns and its first rows.</p>
        ) : (
          <>
            <p class="crumb"><a href="#/relations">← Relations</a></p>
            <h1>{selected}</h1>
            <p>There is no relation of this name. It may have been dropped.</p>
          </>
        )}
      </div>
    </section>
  );
}

function Detail({ relation }: { relation: Relation }) {
  const name = quoted(relation.name);
  const readable = relation.kind === "view" || relation.kind === "table";
  const live = readable ? `SUBSCRIBE TO ${name}` : `SELECT * FROM ${name} EMIT CHANGES`;
  return (
    <>
      <p class="crumb narrow-only"><a href="#/relations">← Relations</a></p>
      <div class="head">
        <h1>{relation.name}</h1>
        <span class="kind">{relation.kind}</span>
        <span class="actions">
          {relation.kind !== "sink" && (
            <a class="button" href={`#/sql?q=${encodeURIComponent(live)}`}>Follow live</a>
          )}
          {relation.kind !== "stream" || /\bAS\s+SELECT\b/i.test(relation.sql) ? (
            <a class="button" href={`#/queries/${encodeURIComponent(relation.name)}`}>Its query</a>
          ) : null}
        </span>
      </div>
      <dl class="facts">
        <Fact name="Key">{relation.primary_key.length === 0 ? "none" : relation.primary_key.join(", ")}</Fact>
        <Fact name="Watermark">
          {relation.watermark === null ? "none" : `${relation.watermark.column} AS ${relation.watermark.expression}`}
        </Fact>
        <Fact name="Connector">{relation.connector ?? "Weir’s own log"}</Fact>
        <Fact name="Changes">{relation.append_only ? "only added to" : "rows change"}</Fact>
      </dl>
      <div class="scroll">
        <table class="figures">
          <thead>
            <tr>
              <th scope="col">Column</th>
              <th scope="col">Type</th>
              <th scope="col">Null</th>
              <th scope="col">Generated as</th>
            </tr>
          </thead>
          <tbody>
            {relation.columns.map((column) => (
              <tr key={column.name}>
                <th scope="row" class="mono">
                  {column.name}
                  {relation.primary_key.includes(column.name) && <span class="tag">key</span>}
                  {relation.watermark?.column === column.name && <span class="tag">event time</span>}
                </th>
                <td class="mono">{column.type}</td>
                <td>{column.nullable ? "yes" : "no"}</td>
                <td class="mono">{column.generated ?? ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {Object.keys(relation.options).length > 0 && (
        <>
          <h2>Options</h2>
          <dl class="options mono">
            {Object.entries(relation.options).map(([key, value]) => (
              <div key={key}>
                <dt>{key}</dt>
                <dd>{value}</dd>
              </div>
            ))}
          </dl>
        </>
      )}
      {readable && <Preview sql={`SELECT * FROM ${name} LIMIT 100`} />}
      <h2>SQL</h2>
      <Code sql={relation.sql} label="Copy the statement" />
    </>
  );
}

interface Fetched {
  columns: ResultColumn[];
  rows: Record<string, Cell>[];
}

function Preview({ sql }: { sql: string }) {
  const [fetched, setFetched] = useState<Fetched | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [asked, setAsked] = useState(0);
  const running = useRef<AbortController | null>(null);
  useEffect(() => {
    const abort = new AbortController();
    running.current = abort;
    const next: Fetched = { columns: [], rows: [] };
    let failed: Problem | null = null;
    runSql(sql, abort.signal, (line) => {
      if ("columns" in line) next.columns = line.columns;
      else if ("row" in line) next.rows.push(line.row);
      else if ("error" in line) failed = line.error;
    })
      .catch((error: unknown) => {
        if (error instanceof ServerError) failed = error.problem;
      })
      .finally(() => {
        if (abort.signal.aborted) return;
        setProblem(failed);
        if (failed === null) setFetched(next);
      });
    return () => abort.abort();
  }, [sql, asked]);
  return (
    <>
      <div class="head">
        <h2>First 100 rows</h2>
        <span class="actions">
          <button type="button" onClick={() => setAsked(asked + 1)}>Refresh</button>
        </span>
      </div>
      {problem !== null && <ProblemBox problem={problem} />}
      {fetched === null ? (
        problem === null && <Waiting />
      ) : fetched.rows.length === 0 ? (
        <p class="muted">No row yet.</p>
      ) : (
        <Rows columns={fetched.columns} rows={fetched.rows} />
      )}
    </>
  );
}
