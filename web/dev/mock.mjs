// A stand-in for the server while the dashboard is worked on: `npm run mock`, then http://127.0.0.1:4599/.
// It serves dist/ and answers under /v1 in the server's shapes, with counters that move. MOCK=empty npm run mock is a
// fresh server.
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";

const port = Number(process.env.PORT ?? 4599);
const empty = process.env.MOCK === "empty";
const started = Date.now();
const seconds = () => (Date.now() - started) / 1000;
const rows = (perSecond) => Math.floor(1_000_000 + seconds() * perSecond * (1 + 0.1 * Math.sin(seconds() / 3)));
const paused = new Set();

const flights = `CREATE STREAM flights (
  carrier TEXT, flight INT, dep_delay DOUBLE PRECISION, origin TEXT, time_hour TIMESTAMPTZ,
  WATERMARK FOR time_hour AS time_hour - INTERVAL '1 day'
) WITH (connector = 'file', path = '/data/flights.csv', format = 'csv', header = 'true', null = 'NA')`;
const departures = `CREATE MATERIALIZED VIEW departures AS
  SELECT origin, window_start, count(*) AS scheduled, avg(dep_delay) AS mean_delay
  FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day')
  GROUP BY origin, window_start, window_end EMIT ON WINDOW CLOSE`;

const query = (name, kind, state, more = {}) => ({
  name, id: `${name}-0197a3c2b4d57e8f9a`, kind, state: paused.has(name) ? "PAUSED" : state, reason: null,
  sql: name === "departures" ? departures : `CREATE ${kind === "sink" ? "SINK" : "MATERIALIZED VIEW"} ${name} AS SELECT …`,
  rows_in: rows(180_000), rows_out: rows(1200), late_rows: 0, bad_rows: 0, event_time_lag_ms: 4200,
  back_pressure: 0.08, last_checkpoint: 12 + Math.floor(seconds()), created_at_ms: started - 600_000, ...more,
});
const queries = () => empty ? [] : [
  query("by_carrier", "view", "FINISHED", { rows_in: 27_004, rows_out: 312, event_time_lag_ms: null, back_pressure: 0 }),
  query("departures", "view", "RUNNING", { late_rows: 17, back_pressure: 0.62 + 0.3 * Math.sin(seconds() / 5) }),
  query("late_departures_to_files", "sink", "RESTARTING", {
    reason: "the sink file:///data/late cannot be written: No space left on device (os error 28); next attempt in 8 s",
    rows_out: 8123, bad_rows: 3, last_checkpoint: null }),
  query("busiest", "view", "FAILED", { reason: "column \"dep_dealy\" of weather.csv is missing; did you mean \"dep_delay\"?",
    rows_in: 0, rows_out: 0, event_time_lag_ms: null, back_pressure: 0, last_checkpoint: null }),
];

const operator = (uid, name, kind, inputs, perSecond, more = {}) => ({
  uid, name, kind, parallelism: 2, changelog: false, state_bound: "none", inputs,
  columns: ["origin text", "window_start timestamptz", "scheduled bigint"],
  subtasks: [0, 1].map((subtask) => ({
    uid, name, subtask, rows_in: inputs.length ? rows(perSecond / 2) : 0, rows_out: rows(perSecond / 2),
    late_rows: kind === "aggregate" ? 8 + subtask : 0, bad_rows: 0,
    busy_ns: Math.floor(seconds() * 1e9 * (more.busy ?? 0.3)), idle_ns: 0,
    blocked_ns: Math.floor(seconds() * 1e9 * (more.blocked ?? 0)),
    watermark_us: (Date.UTC(2013, 0, 1) + seconds() * 3_600_000) * 1000,
  })),
  ...more,
});
const from = (index, exchange = "forward") => ({ from: index, exchange });
const operators = () => [
  operator("source-flights", "Read flights (file, csv)", "source", [], 180_000, { busy: 0.4, blocked: 0.55 }),
  operator("source-weather", "Read weather (file, csv)", "source", [], 900, { busy: 0.02 }),
  operator("filter-1", "Filter dep_delay IS NOT NULL", "filter", [from(0)], 171_000, { busy: 0.2 }),
  operator("join-1", "Left join on (origin, time_hour)", "join", [from(2, "hash[3, 4]"), from(1, "hash[0, 1]")], 171_000,
    { busy: 0.93, changelog: true, state_bound: "unbounded: both sides are kept" }),
  operator("aggregate-1", "Tumble 1 day by origin", "aggregate", [from(3, "hash[0]"), from(0, "hash[3]")], 1200,
    { busy: 0.15, state_bound: "watermark of time_hour + 1 day" }),
  operator("view-departures", "View departures", "materialize", [from(4)], 1200, { busy: 0.05, state_bound: "rows of the view" }),
];

const checkpoints = () => Array.from({ length: 24 }, (_, i) => {
  const id = 12 + Math.floor(seconds()) - i;
  const at = Date.now() - i * 1000 - 400;
  const base = { query: "departures", id, triggered_at_ms: at, url: null, completed_at_ms: null, alignment_ms: null, snapshot_ms: null,
    upload_ms: null, commit_ms: null, inline_bytes: null, new_bytes: null, shared_bytes: null, total_bytes: null, objects: null, note: null };
  if (i === 0) return { ...base, state: "IN_PROGRESS" };
  if (i === 3) return { ...base, state: "FAILED", note: "subtask 1 of Tumble 1 day by origin did not answer within 10 min; it was blocked by its output" };
  const small = i % 2 === 0;
  return { ...base, state: "COMPLETED", url: `file:///var/lib/weir/jobs/departures-0197a3c2b4d57e8f9a/chk-${id}/_metadata`,
    completed_at_ms: at + 87, alignment_ms: 12, snapshot_ms: 4, upload_ms: 61, commit_ms: 10, inline_bytes: 412,
    new_bytes: small ? 0 : 1_480_233, shared_bytes: small ? 0 : 88_120_004, total_bytes: small ? 412 : 89_600_649, objects: small ? 0 : 7,
    note: small ? "412 B of state inside the manifest; no data file was needed" : null };
});

const column = (name, type, nullable = true) => ({ name, type, nullable, generated: null });
const relations = () => empty ? [] : [
  { name: "departures", kind: "view", columns: [column("origin", "text"), column("window_start", "timestamp with time zone", false), column("scheduled", "bigint", false),
    column("mean_delay", "double precision")], primary_key: ["origin", "window_start"], watermark: null, connector: null, options: {}, append_only: true, sql: departures },
  { name: "flights", kind: "stream", columns: [column("carrier", "text"), column("flight", "integer"), column("dep_delay", "double precision"), column("origin", "text"),
    column("time_hour", "timestamp with time zone")], primary_key: [], watermark: { column: "time_hour", expression: "time_hour - INTERVAL '1 day'" }, connector: "file",
    options: { connector: "file", path: "/data/flights.csv", format: "csv", header: "true", null: "NA" }, append_only: true, sql: flights },
  { name: "airports", kind: "table", columns: [column("faa", "text", false), column("name", "text")], primary_key: ["faa"], watermark: null, connector: null, options: {},
    append_only: false, sql: "CREATE TABLE airports (faa TEXT PRIMARY KEY, name TEXT)" },
];

const missing = (what) => ({ error: { code: "WEIR-1101", sqlstate: "42P01", message: `relation "${what}" does not exist`, hint: 'did you mean "departures"?', detail: null, position: 15 } });

async function sql(request, response) {
  let body = "";
  for await (const part of request) body += part;
  const text = JSON.parse(body).sql;
  if (/departure\b/.test(text)) return json(response, missing("departure"), 404);
  response.writeHead(200, { "content-type": "application/x-ndjson" });
  const line = (value) => response.write(`${JSON.stringify(value)}\n`);
  if (!/select|show|subscribe/i.test(text)) return response.end(`${JSON.stringify({ command: "CREATE STREAM", notices: [] })}\n`);
  line({ columns: [{ name: "origin", type: "text" }, { name: "window_start", type: "timestamp with time zone" }, { name: "scheduled", type: "bigint" }, { name: "mean_delay", type: "double precision" }] });
  const row = (i) => line({ row: { origin: ["EWR", "JFK", "LGA"][i % 3], window_start: `2013-01-${String(1 + (i % 28)).padStart(2, "0")}T00:00:00Z`, scheduled: 305 + i, mean_delay: i % 7 ? 12.25 + i : null } });
  if (!/subscribe|emit changes/i.test(text)) {
    for (let i = 0; i < 60; i += 1) row(i);
    return response.end();
  }
  let i = 0;
  const timer = setInterval(() => row((i += 1)), 200);
  response.on("close", () => clearInterval(timer));
}

function json(response, value, status = 200) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
}

const policy = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
const types = { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };

createServer(async (request, response) => {
  const { pathname } = new URL(request.url, "http://mock");
  const [, version, kind, name, part] = pathname.split("/").map(decodeURIComponent);
  if (version !== "v1") {
    const file = pathname === "/" ? "index.html" : pathname.replace("/assets/", "");
    const body = await readFile(new URL(`../dist/${file}`, import.meta.url)).catch(() => null);
    const head = { "content-type": types[file.split(".").pop()] ?? "text/plain", "content-security-policy": policy };
    return response.writeHead(body ? 200 : 404, head).end(body ?? "");
  }
  if (kind === "server") return json(response, { version: "0.1.0", store: "file:///var/lib/weir", listen_sql: "127.0.0.1:4577", listen_http: `127.0.0.1:${port}` });
  if (kind === "sql") return sql(request, response);
  if (kind === "relations") return json(response, { relations: relations() });
  if (name === undefined) return json(response, { queries: queries() });
  const one = queries().find((each) => each.name === name);
  if (one === undefined) return json(response, missing(name), 404);
  if (part === "operators") return json(response, { operators: one.state === "FAILED" ? [] : operators() });
  if (part === "checkpoints") return json(response, { checkpoints: one.last_checkpoint === null ? [] : checkpoints() });
  if (part === "pause") paused.add(name);
  if (part === "resume") paused.delete(name);
  return json(response, queries().find((each) => each.name === name));
}).listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${port}/`));
