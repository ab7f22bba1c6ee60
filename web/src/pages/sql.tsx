// SQL in, rows out, as they come.
import { useEffect, useRef, useState } from "preact/hooks";
import { runSql, ServerError, Unreachable, type Problem, type ResultColumn, type ResultLine } from "../lib/api";
import { count, cut } from "../lib/format";
import type { Cell } from "../lib/json";
import { Code, ProblemBox } from "../parts/bits";
import { Rows } from "../parts/rows";

/** Rows kept of one result: what a person can read. All of them come over psql or REST. */
const keptRows = 1000;
const storageKey = "weir.sql";
const historyKey = "weir.sql.history";
const keptHistory = 30;

interface Result {
  columns: ResultColumn[] | null;
  rows: Record<string, Cell>[];
  total: number;
  command: string | null;
  notices: string[];
  error: Problem | null;
}

type Phase = { at: "idle" } | { at: "running" } | { at: "done"; ms: number } | { at: "stopped" } | { at: "broken"; why: string };

const examples = [
  "SHOW QUERIES",
  "SHOW STREAMS",
  "SHOW CHECKPOINTS",
  "CREATE STREAM clicks (at TIMESTAMPTZ, page TEXT, WATERMARK FOR at AS at - INTERVAL '5 seconds')",
];

function stored<T>(key: string, otherwise: T): T {
  try {
    const text = localStorage.getItem(key);
    return text === null ? otherwise : (JSON.parse(text) as T);
  } catch {
    return otherwise;
  }
}

function store(key: string, value: unknown): void {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // A browser that keeps nothing: the page works without.
  }
}

export function SqlPage({ initial }: { initial: string | null }) {
  const [text, setText] = useState(() => initial ?? stored(storageKey, ""));
  const [results, setResults] = useState<Result[]>([]);
  const [ran, setRan] = useState("");
  const [phase, setPhase] = useState<Phase>({ at: "idle" });
  const [past, setPast] = useState<string[]>(() => stored<string[]>(historyKey, []));
  const area = useRef<HTMLTextAreaElement>(null);
  const running = useRef<AbortController | null>(null);

  useEffect(() => {
    if (initial !== null) setText(initial);
  }, [initial]);
  useEffect(() => store(storageKey, text), [text]);
  useEffect(() => () => running.current?.abort(), []);

  const run = async () => {
    const { selectionStart = 0, selectionEnd = 0 } = area.current ?? {};
    const marked = text.slice(selectionStart, selectionEnd).trim();
    const sql = marked === "" ? text : marked;
    if (sql.trim() === "") return area.current?.focus();
    running.current?.abort();
    const abort = new AbortController();
    running.current = abort;
    setRan(sql);
    setPhase({ at: "running" });
    const history = [sql, ...past.filter((one) => one !== sql)].slice(0, keptHistory);
    setPast(history);
    store(historyKey, history);

    const started = performance.now();
    const collector = collect((next) => {
      if (running.current === abort) setResults(next);
    });
    try {
      await runSql(sql, abort.signal, collector.add);
      collector.flush();
      setPhase(abort.signal.aborted ? { at: "stopped" } : { at: "done", ms: performance.now() - started });
    } catch (error) {
      if (running.current !== abort) return;
      if (abort.signal.aborted) return setPhase({ at: "stopped" });
      if (error instanceof ServerError) collector.add({ error: error.problem });
      collector.flush();
      const why = error instanceof Unreachable ? error.message : error instanceof ServerError ? null : String(error);
      setPhase(why === null ? { at: "done", ms: performance.now() - started } : { at: "broken", why });
    }
  };
  const stop = () => {
    running.current?.abort();
    setPhase({ at: "stopped" });
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void run();
    }
  };

  const live = phase.at === "running";
  return (
    <section>
      <h1 class="unseen">SQL</h1>
      <div class="editor">
        <textarea
          ref={area}
          aria-label="SQL statements"
          spellcheck={false}
          autocapitalize="off"
          autocomplete="off"
          rows={Math.min(18, Math.max(6, text.split("\n").length + 1))}
          placeholder="SHOW QUERIES;"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={onKeyDown}
        />
        <div class="editor-bar">
          <button type="button" class="primary" onClick={() => void run()} disabled={live}>
            Run
          </button>
          <button type="button" onClick={stop} disabled={!live}>
            Stop
          </button>
          <span class="muted hint">Ctrl Enter runs all, or what is selected</span>
          <span class="phase" role="status">{wordsOf(phase)}</span>
        </div>
      </div>
      {phase.at === "broken" && (
        <div class="problem" role="alert">
          <p class="problem-message">{phase.why}</p>
          <p class="problem-hint">
            <b>Hint</b> Is <code>weir serve</code> still running? Statements that answered before this are done.
          </p>
        </div>
      )}
      {results.map((result, i) => (
        <ResultView key={i} result={result} sql={ran} live={live && i === results.length - 1} />
      ))}
      {results.length === 0 && phase.at === "idle" && <Start past={past} onPick={setText} />}
      {results.length > 0 && past.length > 0 && (
        <details class="past">
          <summary>Run before</summary>
          <Picks list={past} onPick={setText} />
        </details>
      )}
    </section>
  );
}

function wordsOf(phase: Phase): string {
  switch (phase.at) {
    case "idle":
      return "";
    case "running":
      return "running…";
    case "done":
      return `done in ${Math.max(1, Math.round(phase.ms))} ms`;
    case "stopped":
      return "stopped";
    case "broken":
      return "broken off";
  }
}

/** Gathers lines into results and shows them at most once a frame. */
function collect(show: (results: Result[]) => void) {
  const results: Result[] = [];
  let waiting = false;
  const flush = () => {
    waiting = false;
    show(results.map((result) => ({ ...result, rows: [...result.rows] })));
  };
  const empty = (): Result => ({ columns: null, rows: [], total: 0, command: null, notices: [], error: null });
  const add = (line: ResultLine) => {
    if ("columns" in line) results.push({ ...empty(), columns: line.columns });
    else if ("command" in line) results.push({ ...empty(), command: line.command, notices: line.notices });
    else if ("error" in line) results.push({ ...empty(), error: line.error });
    else {
      const last = results.at(-1);
      if (last === undefined) return;
      last.total += 1;
      last.rows.push(line.row);
      if (last.rows.length > keptRows) last.rows.shift();
    }
    if (!waiting) {
      waiting = true;
      requestAnimationFrame(flush);
    }
  };
  return { add, flush };
}

function ResultView({ result, sql, live }: { result: Result; sql: string; live: boolean }) {
  if (result.error !== null) return <ProblemBox problem={result.error} sql={sql} />;
  if (result.columns === null) {
    return (
      <div class="command">
        <span class="mono">{result.command}</span>
        {result.notices.map((notice, i) => (
          <p key={i}>{notice}</p>
        ))}
      </div>
    );
  }
  const { total, rows } = result;
  const kept = total > rows.length ? `, the last ${count(rows.length)} shown` : "";
  return (
    <div class="answer">
      <Rows columns={result.columns} rows={rows} follow={live} />
      <p class="muted num">
        {live && <i class="pulse" aria-hidden="true" />}
        {`${count(total)} ${total === 1 ? "row" : "rows"}${kept}${live ? ", more to come" : ""}`}
      </p>
    </div>
  );
}

function Start({ past, onPick }: { past: string[]; onPick: (sql: string) => void }) {
  return (
    <div class="start">
      <p class="muted">
        Everything in Weir is done with SQL: the same statements run here, in <code>psql</code> and over{" "}
        <code>POST /v1/sql</code>. To begin:
      </p>
      <Picks list={examples} onPick={onPick} />
      {past.length > 0 && (
        <>
          <h2>Run before</h2>
          <Picks list={past} onPick={onPick} />
        </>
      )}
      <h2>From a terminal</h2>
      <Code
        sql={`curl -s ${location.origin}/v1/sql -H 'content-type: application/json' -d '{"sql": "SHOW QUERIES"}'`}
        label="Copy the curl command"
      />
    </div>
  );
}

function Picks({ list, onPick }: { list: string[]; onPick: (sql: string) => void }) {
  return (
    <ul class="picks">
      {list.map((sql) => (
        <li key={sql}>
          <button type="button" class="pick" title={sql} onClick={() => onPick(sql)}>
            {cut(sql.replace(/\s+/g, " "), 110)}
          </button>
        </li>
      ))}
    </ul>
  );
}
