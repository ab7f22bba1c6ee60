// One query: its dataflow right now, its checkpoints, its SQL.
import { useState } from "preact/hooks";
import { act, queryPath, ServerError, Unreachable } from "../lib/api";
import type { Checkpoint, Operator, Problem, QueryInfo } from "../lib/api";
import { bytes, clock, count, duration, percent, perSecond, watermark } from "../lib/format";
import { usePoll } from "../lib/poll";
import { rate } from "../lib/rates";
import { Code, Copy, Fact, ProblemBox, ShareBar, State, Waiting } from "../parts/bits";
import { Graph, recordOperators, sharesOf, subtaskSeries } from "../parts/graph";
import { recordQuery, seriesOf } from "./overview";

export function QueryPage({ name }: { name: string }) {
  const query = usePoll<QueryInfo>(queryPath(name), recordQuery);
  const operators = usePoll<{ operators: Operator[] }>(queryPath(name, "/operators"), (answer, at) =>
    recordOperators(name, answer.operators, at),
  );
  const checkpoints = usePoll<{ checkpoints: Checkpoint[] }>(queryPath(name, "/checkpoints"));
  const refresh = () => (query.refresh(), checkpoints.refresh());

  if (query.error !== undefined) {
    return (
      <section>
        <p class="crumb">
          <a href="#/">← Queries</a>
        </p>
        <h1>{name}</h1>
        <ProblemBox problem={query.error.problem} />
      </section>
    );
  }
  if (query.data === undefined) return <Waiting />;
  return (
    <section>
      <p class="crumb">
        <a href="#/">← Queries</a>
      </p>
      <Head query={query.data} onDone={refresh} />
      {query.data.reason !== null && (
        <p class="reason-box" role="status">
          <b>{query.data.state === "FAILED" ? "Failed" : "Why"}</b> {query.data.reason}
        </p>
      )}
      <Facts query={query.data} />
      <h2>Dataflow</h2>
      {operators.data === undefined ? (
        operators.error === undefined ? <Waiting /> : <ProblemBox problem={operators.error.problem} />
      ) : (
        <Dataflow name={name} operators={operators.data.operators} />
      )}
      <h2>Checkpoints</h2>
      {checkpoints.data === undefined ? (
        checkpoints.error === undefined ? <Waiting /> : <ProblemBox problem={checkpoints.error.problem} />
      ) : (
        <Checkpoints rows={checkpoints.data.checkpoints} />
      )}
      <h2>SQL</h2>
      <Code sql={query.data.sql} label="Copy the statement" />
      <p class="muted mono">{query.data.id}</p>
    </section>
  );
}

function Head({ query, onDone }: { query: QueryInfo; onDone: () => void }) {
  const [busy, setBusy] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const run = async (what: string) => {
    setBusy(what);
    setProblem(null);
    try {
      await act(queryPath(query.name, `/${what}`));
    } catch (error) {
      setProblem(
        error instanceof ServerError
          ? error.problem
          : { code: "", sqlstate: "", message: wordsOf(error), hint: null, detail: null, position: null },
      );
    }
    setBusy(null);
    onDone();
  };
  const over = ["FINISHED", "FAILED", "STOPPED"].includes(query.state);
  const paused = query.state === "PAUSED";
  return (
    <>
      <div class="head">
        <h1>{query.name}</h1>
        <span class="kind">{query.kind}</span>
        <State state={query.state} />
        <span class="actions">
          <button
            type="button"
            disabled={over || busy !== null}
            onClick={() => void run(paused ? "resume" : "pause")}
          >
            {paused ? "Resume" : "Pause"}
          </button>
          <button type="button" disabled={over || busy !== null} onClick={() => void run("checkpoint")}>
            {busy === "checkpoint" ? "Checkpointing…" : "Checkpoint"}
          </button>
          {query.kind === "view" || query.kind === "table" ? (
            <a class="button" href={`#/relations/${encodeURIComponent(query.name)}`}>
              Rows
            </a>
          ) : null}
        </span>
      </div>
      {problem !== null && <ProblemBox problem={problem} />}
    </>
  );
}

function wordsOf(error: unknown): string {
  return error instanceof Unreachable || error instanceof Error ? error.message : String(error);
}

function Facts({ query }: { query: QueryInfo }) {
  const series = seriesOf(query);
  return (
    <dl class="facts">
      <Fact name="Rows in">
        {count(query.rows_in)} <small>{perSecond(rate(series, 0))}</small>
      </Fact>
      <Fact name="Rows out">
        {count(query.rows_out)} <small>{perSecond(rate(series, 1))}</small>
      </Fact>
      <Fact name="Event-time lag" title="How far event time is behind the wall clock">
        {duration(query.event_time_lag_ms)}
      </Fact>
      <Fact name="Back-pressure">
        <ShareBar share={query.back_pressure} label="Back-pressure" />
      </Fact>
      <Fact name="Late rows" title="They are in weir.late_rows">
        {count(query.late_rows)}
      </Fact>
      <Fact name="Bad rows" title="They are in weir.bad_rows">
        {count(query.bad_rows)}
      </Fact>
      <Fact name="Created">{clock(query.created_at_ms)}</Fact>
    </dl>
  );
}

function Dataflow({ name, operators }: { name: string; operators: Operator[] }) {
  const [selected, select] = useState(0);
  const operator = operators[selected] ?? operators[0];
  if (operator === undefined) return <p class="muted">The query has no operators while it does not run.</p>;
  return (
    <>
      <Graph query={name} operators={operators} selected={selected} onSelect={select} />
      <div class="panel">
        <h3>
          {operator.name} <span class="muted mono">{operator.uid}</span>
        </h3>
        <p class="muted">
          State: {operator.state_bound}. Emits <span class="mono">{operator.columns.join(", ")}</span>
          {operator.changelog ? " and may take rows back." : "."}
        </p>
        <div class="scroll">
          <table class="figures">
            <thead>
              <tr>
                {["Subtask", "Rows in", "In/s", "Rows out", "Out/s", "Busy", "Idle", "Blocked", "Late", "Bad"].map((title) => (
                  <th key={title} scope="col" class="r">{title}</th>
                ))}
                <th scope="col">Watermark</th>
              </tr>
            </thead>
            <tbody>
              {operator.subtasks.map((subtask) => {
                const series = subtaskSeries(name, subtask);
                const shares = sharesOf(series, 1);
                return (
                  <tr key={subtask.subtask}>
                    <th scope="row" class="r num">{subtask.subtask}</th>
                    <td class="r num">{count(subtask.rows_in)}</td>
                    <td class="r num">{perSecond(rate(series, 0))}</td>
                    <td class="r num">{count(subtask.rows_out)}</td>
                    <td class="r num">{perSecond(rate(series, 1))}</td>
                    <td class="r num">{percent(shares.busy)}</td>
                    <td class="r num">{percent(shares.idle)}</td>
                    <td class="r num">{percent(shares.blocked)}</td>
                    <td class="r num">{count(subtask.late_rows)}</td>
                    <td class="r num">{count(subtask.bad_rows)}</td>
                    <td class="num">{watermark(subtask.watermark_us)}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      </div>
    </>
  );
}

const shownCheckpoints = 10;

function Checkpoints({ rows }: { rows: Checkpoint[] }) {
  const [all, setAll] = useState(false);
  if (rows.length === 0) {
    return <p class="muted">No checkpoint yet. One is taken each execution.checkpointing.interval, or with the button above.</p>;
  }
  return (
    <>
      <div class="scroll">
        <table class="figures checkpoints">
          <thead>
            <tr>
              <th scope="col" class="r">#</th>
              <th scope="col">State</th>
              <th scope="col">Triggered</th>
              {["Total", "Align", "Snapshot", "Upload", "Commit", "Size", "New", "Shared", "Inline", "Objects"].map((title) => (
                <th key={title} scope="col" class="r">{title}</th>
              ))}
            </tr>
          </thead>
          {(all ? rows : rows.slice(0, shownCheckpoints)).map((row) => (
            <CheckpointRows key={row.id} row={row} />
          ))}
        </table>
      </div>
      {rows.length > shownCheckpoints && (
        <p>
          <button type="button" onClick={() => setAll(!all)}>
            {all ? `Only the latest ${shownCheckpoints}` : `All ${rows.length}`}
          </button>
        </p>
      )}
    </>
  );
}

function CheckpointRows({ row }: { row: Checkpoint }) {
  return (
    <tbody>
      <tr>
        <th scope="row" class="r num">{row.id}</th>
        <td><State state={row.state} /></td>
        <td class="num">{clock(row.triggered_at_ms)}</td>
        <td class="r num">{row.completed_at_ms === null ? "–" : duration(row.completed_at_ms - row.triggered_at_ms)}</td>
        {[row.alignment_ms, row.snapshot_ms, row.upload_ms, row.commit_ms].map((ms, i) => (
          <td key={i} class="r num">{duration(ms)}</td>
        ))}
        {[row.total_bytes, row.new_bytes, row.shared_bytes, row.inline_bytes].map((size, i) => (
          <td key={i} class="r num">{bytes(size)}</td>
        ))}
        <td class="r num">{row.objects === null ? "–" : count(row.objects)}</td>
      </tr>
      {(row.url !== null || row.note !== null) && (
        <tr class="more">
          <td />
          <td colSpan={12}>
            {row.note !== null && <span class={row.state === "FAILED" ? "bad" : "note"}>{row.note}</span>}
            {row.url !== null && (
              <span class="url">
                <span class="mono">{row.url}</span>
                <Copy text={row.url} label={`Copy the URL of checkpoint ${row.id}`} />
              </span>
            )}
          </td>
        </tr>
      )}
    </tbody>
  );
}
