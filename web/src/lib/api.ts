// What the server answers under /v1, and how to ask for it. The shapes are those of /openapi.json.
import { parseExact, type Cell } from "./json";

export interface QueryInfo {
  name: string;
  id: string;
  kind: string;
  state: string;
  reason: string | null;
  sql: string;
  rows_in: number;
  rows_out: number;
  late_rows: number;
  bad_rows: number;
  event_time_lag_ms: number | null;
  back_pressure: number;
  last_checkpoint: number | null;
  created_at_ms: number;
}

export interface Subtask {
  uid: string;
  name: string;
  subtask: number;
  rows_in: number;
  rows_out: number;
  late_rows: number;
  bad_rows: number;
  busy_ns: number;
  idle_ns: number;
  blocked_ns: number;
  watermark_us: number | null;
}

export interface Operator {
  uid: string;
  name: string;
  kind: string;
  parallelism: number;
  changelog: boolean;
  state_bound: string;
  inputs: { from: number; exchange: string }[];
  columns: string[];
  subtasks: Subtask[];
}

export interface Checkpoint {
  query: string;
  id: number;
  state: string;
  url: string | null;
  triggered_at_ms: number;
  completed_at_ms: number | null;
  alignment_ms: number | null;
  snapshot_ms: number | null;
  upload_ms: number | null;
  commit_ms: number | null;
  inline_bytes: number | null;
  new_bytes: number | null;
  shared_bytes: number | null;
  total_bytes: number | null;
  objects: number | null;
  note: string | null;
}

export interface RelationColumn {
  name: string;
  type: string;
  nullable: boolean;
  generated: string | null;
}

export interface Relation {
  name: string;
  kind: string;
  columns: RelationColumn[];
  primary_key: string[];
  watermark: { column: string; expression: string } | null;
  connector: string | null;
  options: Record<string, string>;
  append_only: boolean;
  sql: string;
}

export interface ServerInfo {
  version: string;
  store: string;
  listen_sql: string | null;
  listen_http: string | null;
}

export interface Problem {
  code: string;
  sqlstate: string;
  message: string;
  hint: string | null;
  detail: string | null;
  position: number | null;
}

export interface ResultColumn {
  name: string;
  type: string;
}

/** One line of `POST /v1/sql` answered as application/x-ndjson. */
export type ResultLine =
  | { columns: ResultColumn[] }
  | { row: Record<string, Cell> }
  | { command: string; notices: string[] }
  | { error: Problem };

/** The server answered with an error. */
export class ServerError extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.message);
  }
}

/** No answer at all: the server is gone or unreachable. */
export class Unreachable extends Error {}

async function ask(path: string, init?: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === "AbortError") throw cause;
    throw new Unreachable("The server does not answer.", { cause });
  }
  if (response.ok) return response;
  throw new ServerError(response.status, await problemOf(response));
}

async function problemOf(response: Response): Promise<Problem> {
  const text = await response.text().catch(() => "");
  try {
    const body = JSON.parse(text) as { error?: Problem };
    if (body.error !== undefined) return body.error;
  } catch {
    // Not from Weir: a proxy in between, perhaps. Its own words follow.
  }
  const message = `HTTP ${response.status} ${response.statusText}`;
  return { code: "", sqlstate: "", message, hint: null, detail: text.slice(0, 300) || null, position: null };
}

/** GET a JSON document. */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await ask(path, signal === undefined ? {} : { signal });
  return (await response.json()) as T;
}

/** POST without a body: pause, resume, checkpoint. */
export async function act<T>(path: string): Promise<T> {
  const response = await ask(path, { method: "POST" });
  return (await response.json()) as T;
}

/** Run SQL and hand on each line of the answer as it comes; returns when the answer ends or `signal` aborts. */
export async function runSql(sql: string, signal: AbortSignal, onLine: (line: ResultLine) => void): Promise<void> {
  const response = await ask("/v1/sql", {
    method: "POST",
    headers: { "content-type": "application/json", accept: "application/x-ndjson" },
    body: JSON.stringify({ sql }),
    signal,
  });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (reader === undefined) return;
  let rest = "";
  for (;;) {
    let part: ReadableStreamReadResult<string>;
    try {
      part = await reader.read();
    } catch (cause) {
      if (signal.aborted) return;
      throw new Unreachable("The connection broke before the answer was complete.", { cause });
    }
    if (part.done) break;
    const lines = (rest + part.value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line !== "") onLine(parseExact(line) as ResultLine);
    }
  }
}

/** An SQL identifier, quoted. */
export function quoted(name: string): string {
  return /^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

/** Path of a query under /v1. */
export function queryPath(name: string, rest = ""): string {
  return `/v1/queries/${encodeURIComponent(name)}${rest}`;
}
