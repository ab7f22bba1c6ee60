// Every page of the dashboard against a running server, with real queries.
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const base = (process.argv[2] ?? "http://127.0.0.1:4578").replace(/\/$/, "");
const patience = 20_000;
const prefix = `browser_${process.pid}_`;
const stream = `${prefix}clicks`;
const view = `${prefix}per_page`;

/** Run SQL over REST; throws on an error. */
async function sql(text) {
  const response = await fetch(`${base}/v1/sql`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ sql: text }),
  }).catch((error) => {
    throw new Error(`no server answers at ${base}: start one with weir serve, or name its address`, { cause: error });
  });
  const answer = await response.json();
  assert.equal(response.status, 200, `${text}: ${JSON.stringify(answer)}`);
  return answer.results;
}

async function eventually(what, check) {
  const until = Date.now() + patience;
  for (;;) {
    const last = await check();
    if (last) return last;
    assert.ok(Date.now() < until, `not within ${patience} ms: ${what}`);
    await new Promise((wake) => setTimeout(wake, 100));
  }
}

const steps = [];
const step = (name, run) => steps.push({ name, run });
const open = (page, hash) => page.goto(`${base}/${hash}`);

step("the overview lists the query with its rows", async (page) => {
  await open(page, "#/");
  const row = page.locator("tbody", { has: page.getByRole("link", { name: view, exact: true }) });
  await row.getByText("running").waitFor();
  await eventually("3 rows in", async () => (await row.locator("[data-label='Rows in']").innerText()).includes("3"));
  assert.equal(await page.title(), "Queries · Weir");
});

step("a query's page shows its dataflow, its checkpoints and its SQL", async (page) => {
  await open(page, "#/");
  await page.getByRole("link", { name: view, exact: true }).click();
  await page.getByRole("heading", { name: view, level: 1 }).waitFor();
  const boxes = page.locator("svg .op");
  await boxes.first().waitFor();
  assert.ok((await boxes.count()) >= 2, "a source and a view at least");
  assert.ok((await page.locator("svg .edge").count()) >= 1, "an edge at least");
  await boxes.last().focus();
  await page.keyboard.press("Enter");
  await page.locator("svg .op:last-child[aria-pressed='true']").waitFor();
  await page.locator(".panel table tbody tr").first().waitFor();
  await page.getByText(`CREATE MATERIALIZED VIEW ${view}`).waitFor();
});

step("a checkpoint can be taken, and its manifest's URL is absolute", async (page) => {
  await page.getByRole("button", { name: "Checkpoint", exact: true }).click();
  const done = page.locator(".checkpoints tbody", { hasText: "completed" }).first();
  await done.waitFor({ timeout: patience });
  const url = await done.locator(".url .mono").innerText();
  assert.match(url, /^[a-z0-9]+:\/\/.*\/chk-\d+\/_metadata$/);
  // By its URL from here on: the next checkpoint takes the first place at any moment.
  const row = page.locator(".checkpoints tbody", { hasText: url });
  await row.getByRole("button", { name: /Copy the URL/ }).click();
  await row.getByText("copied").waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), url);
});

step("a query can be paused and resumed", async (page) => {
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await page.locator(".head .state-paused").waitFor({ timeout: patience });
  await page.getByRole("button", { name: "Resume", exact: true }).click();
  await page.locator(".head .state-running").waitFor({ timeout: patience });
});

step("a relation shows its columns and its first rows", async (page) => {
  await open(page, "#/relations");
  await page.getByRole("link", { name: stream, exact: true }).click();
  await page.getByRole("rowheader", { name: /^at\b/ }).waitFor();
  await page.getByText("event time").waitFor();
  await page.getByRole("cell", { name: "timestamp with time zone", exact: true }).waitFor();
  await page.getByRole("link", { name: view, exact: true }).click();
  await page.getByRole("heading", { name: view, level: 1 }).waitFor();
  await page.locator(".rows tbody tr", { hasText: "/docs" }).waitFor();
  assert.equal(await page.locator(".rows tbody tr").count(), 2);
});

step("the SQL page runs statements and shows their rows", async (page) => {
  await open(page, "#/sql");
  const editor = page.getByLabel("SQL statements");
  await editor.fill(`SELECT page, n FROM ${view} ORDER BY page; SHOW STREAMS`);
  await editor.press("Control+Enter");
  await page.getByText("done in").waitFor({ timeout: patience });
  const first = page.locator(".rows").first();
  assert.deepEqual(await first.locator("tbody tr").allInnerTexts(), ["/\t2", "/docs\t1"]);
  await page.locator(".rows").nth(1).getByText(stream).waitFor();
});

step("an error shows its hint and its code", async (page) => {
  await page.getByLabel("SQL statements").fill(`SELECT * FROM ${view}x`);
  await page.getByRole("button", { name: "Run", exact: true }).click();
  const problem = page.locator(".problem");
  await problem.getByText("does not exist").waitFor();
  await problem.getByText(/did you mean/).waitFor();
  await problem.getByText(/WEIR-1101 · SQLSTATE 42P01/).waitFor();
});

step("a subscription shows changes as they come, until it is stopped", async (page) => {
  await page.getByLabel("SQL statements").fill(`SUBSCRIBE TO ${view}`);
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByText("more to come").waitFor({ timeout: patience });
  await sql(`INSERT INTO ${stream} VALUES (TIMESTAMPTZ '2024-01-01 00:01:00Z', '/new')`);
  await page.locator(".rows tbody tr", { hasText: "/new" }).waitFor({ timeout: patience });
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await page.getByText("stopped").waitFor();
});

step("an address without a page says so", async (page) => {
  await open(page, "#/nowhere");
  await page.getByText("There is no page “nowhere”").waitFor();
  await open(page, `#/queries/${prefix}nothing`);
  await page.getByText(`query "${prefix}nothing" does not exist`).waitFor();
});

step("no page is wider than a phone or a small laptop", async (page) => {
  for (const width of [390, 1024]) {
    await page.setViewportSize({ width, height: 800 });
    for (const hash of ["#/", `#/queries/${view}`, "#/relations", `#/relations/${view}`, "#/sql"]) {
      await open(page, hash);
      await page.locator("main section").waitFor();
      const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(wider <= 0, `${hash} at ${width} px is ${wider} px too wide`);
    }
  }
  await page.setViewportSize({ width: 1280, height: 900 });
});

step("a server that is gone is told, and the page goes on when it is back", async (page) => {
  await open(page, "#/");
  await page.getByRole("link", { name: view, exact: true }).waitFor();
  await page.context().setOffline(true);
  await page.getByRole("alert").getByText("The server does not answer").waitFor({ timeout: patience });
  assert.ok(await page.getByRole("link", { name: view, exact: true }).isVisible(), "the last answer stays");
  await page.context().setOffline(false);
  await page.getByRole("alert").waitFor({ state: "detached", timeout: patience });
});

const profile = await mkdtemp(join(tmpdir(), "weir-browser-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: "/usr/bin/chromium",
  viewport: { width: 1280, height: 900 },
  permissions: ["clipboard-read", "clipboard-write"],
  args: [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
  ],
});
let failed = false;
let created = false;
try {
  context.setDefaultTimeout(patience);
  await sql(
    `CREATE STREAM ${stream} (at TIMESTAMPTZ, page TEXT, WATERMARK FOR at AS at - INTERVAL '5 seconds');
     CREATE MATERIALIZED VIEW ${view} AS SELECT page, count(*) AS n FROM ${stream} GROUP BY page;
     INSERT INTO ${stream} VALUES (TIMESTAMPTZ '2024-01-01 00:00:00Z', '/'), (TIMESTAMPTZ '2024-01-01 00:00:01Z', '/docs'),
       (TIMESTAMPTZ '2024-01-01 00:00:02Z', '/')`,
  );
  created = true;
  await eventually("the view holds the rows", async () => {
    const [answer] = await sql(`SELECT * FROM ${view}`);
    return answer.rows.length === 2;
  });
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("console", (message) => {
    if (/Content Security Policy/.test(message.text())) faults.push(message.text());
  });
  for (const { name, run } of steps) {
    const started = performance.now();
    try {
      await run(page);
      assert.deepEqual(faults, [], "errors in the page's scripts");
      console.log(`ok   ${name} (${Math.round(performance.now() - started)} ms)`);
    } catch (error) {
      failed = true;
      const picture = new URL("failure.png", import.meta.url).pathname;
      await page.screenshot({ path: picture, fullPage: true }).catch(() => {});
      console.error(`FAIL ${name}\n${error.stack}\n     ${picture}`);
      break;
    }
  }
} catch (error) {
  failed = true;
  console.error(`FAIL before the first page\n${error.stack}`);
} finally {
  await context.close();
  await rm(profile, { recursive: true, force: true });
  const drop = `DROP MATERIALIZED VIEW IF EXISTS ${view}; DROP STREAM IF EXISTS ${stream}`;
  if (created) {
    await sql(drop).catch((error) => {
      failed = true;
      console.error(`FAIL cleaning up\n${error.stack}`);
    });
  }
}
process.exit(failed ? 1 : 0);
