// All queries at a glance.
import type { QueryInfo, ServerInfo } from "../lib/api";
import { count, duration, perSecond } from "../lib/format";
import { usePoll } from "../lib/poll";
import { rate, record } from "../lib/rates";
import { Code, ProblemBox, ShareBar, Sparkline, State, Waiting } from "../parts/bits";

/** Name of a query's series of rates. */
export function seriesOf(query: { id: string }): string {
  return `query ${query.id}`;
}

/** Remember a query's counters. */
export function recordQuery(query: QueryInfo, at: number): void {
  record(seriesOf(query), [query.rows_in, query.rows_out], at);
}

export function Overview({ server }: { server: ServerInfo | undefined }) {
  const { data, error } = usePoll<{ queries: QueryInfo[] }>("/v1/queries", (answer, at) =>
    answer.queries.forEach((query) => recordQuery(query, at)),
  );
  if (error !== undefined) return <ProblemBox problem={error.problem} />;
  if (data === undefined) return <Waiting />;
  if (data.queries.length === 0) return <Newcomer server={server} />;

  const states = new Map<string, number>();
  for (const { state } of data.queries) states.set(state, (states.get(state) ?? 0) + 1);
  return (
    <section>
      <div class="head">
        <h1>Queries</h1>
        <p class="muted">
          {[...states].map(([state, n]) => `${n} ${state.toLowerCase()}`).join(" · ")}
        </p>
      </div>
      <table class="queries cards">
        <colgroup>
          <col />
          <col class="c-state" />
          <col class="c-in" />
          <col class="c-out" />
          <col class="c-lag" />
          <col class="c-held" />
          <col class="c-checkpoint" />
          <col class="c-count" />
          <col class="c-count" />
        </colgroup>
        <thead>
          <tr>
            <th scope="col">Query</th>
            <th scope="col">State</th>
            <th scope="col" class="r">Rows in</th>
            <th scope="col" class="r">Rows out</th>
            <th scope="col" class="r" title="How far event time is behind the wall clock">Lag</th>
            <th scope="col" title="Share of the last second that the most held-back task waited for room downstream">
              Back-pressure
            </th>
            <th scope="col" class="r">Checkpoint</th>
            <th scope="col" class="r" title="Rows that came after their window had closed: weir.late_rows">Late</th>
            <th scope="col" class="r" title="Rows that could not be read: weir.bad_rows">Bad</th>
          </tr>
        </thead>
        {data.queries.map((query) => (
          <QueryRow key={query.id} query={query} />
        ))}
      </table>
    </section>
  );
}

function QueryRow({ query }: { query: QueryInfo }) {
  const series = seriesOf(query);
  return (
    <tbody>
      <tr>
        <th scope="row">
          <a class="name" href={`#/queries/${encodeURIComponent(query.name)}`}>
            {query.name}
          </a>
          <span class="kind">{query.kind}</span>
        </th>
        <td data-label="State">
          <State state={query.state} />
        </td>
        <td class="r two" data-label="Rows in">
          <span class="num">{count(query.rows_in)}</span>
          <span class="rate">
            <Sparkline series={series} index={0} />
            <span class="num">{perSecond(rate(series, 0))}</span>
          </span>
        </td>
        <td class="r two" data-label="Rows out">
          <span class="num">{count(query.rows_out)}</span>
          <span class="rate num">{perSecond(rate(series, 1))}</span>
        </td>
        <td class="r num" data-label="Lag">{duration(query.event_time_lag_ms)}</td>
        <td data-label="Back-pressure">
          <ShareBar share={query.back_pressure} label="Back-pressure" />
        </td>
        <td class="r num" data-label="Checkpoint">
          {query.last_checkpoint === null ? "none yet" : `#${query.last_checkpoint}`}
        </td>
        <td class={`r num ${query.late_rows > 0 ? "warn" : ""}`} data-label="Late">{count(query.late_rows)}</td>
        <td class={`r num ${query.bad_rows > 0 ? "bad" : ""}`} data-label="Bad">{count(query.bad_rows)}</td>
      </tr>
      {query.reason !== null && (
        <tr class="reason">
          <td colSpan={9}>{query.reason}</td>
        </tr>
      )}
    </tbody>
  );
}

const firstSql = `CREATE STREAM clicks (at TIMESTAMPTZ, page TEXT,
  WATERMARK FOR at AS at - INTERVAL '5 seconds');

CREATE MATERIALIZED VIEW per_page AS
  SELECT page, count(*) AS n FROM clicks GROUP BY page;

INSERT INTO clicks VALUES (now(), '/'), (now(), '/docs'), (now(), '/');`;

function Newcomer({ server }: { server: ServerInfo | undefined }) {
  const [host, port] = splitAddress(server?.listen_sql ?? "127.0.0.1:4577");
  return (
    <section class="empty">
      <h1>No query runs yet</h1>
      <p>
        A query is what keeps a materialized view, a derived stream or a sink up to date. Create a stream and a view over
        it, and put in the first rows:
      </p>
      <Code sql={firstSql} label="Copy these statements" />
      <p>
        <a class="button primary" href={`#/sql?q=${encodeURIComponent(firstSql)}`}>
          Open them in the SQL page
        </a>
      </p>
      <p>Or from a terminal:</p>
      <Code sql={`psql -h ${host} -p ${port} weir`} label="Copy the psql command" />
    </section>
  );
}

function splitAddress(address: string): [string, string] {
  const colon = address.lastIndexOf(":");
  return [address.slice(0, colon).replace(/^\[|\]$/g, ""), address.slice(colon + 1)];
}
