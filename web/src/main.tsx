// The dashboard: one page at a time, chosen by the part of the address after `#`.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ServerInfo } from "./lib/api";
import { clock } from "./lib/format";
import { useGoneSince, usePoll } from "./lib/poll";
import { Overview } from "./pages/overview";
import { QueryPage } from "./pages/query";
import { Relations } from "./pages/relations";
import { SqlPage } from "./pages/sql";

interface Route {
  page: string;
  name: string | null;
  parameters: URLSearchParams;
}

function routeOf(hash: string): Route {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", name] = path.split("/", 2);
  return { page, name: name ? decode(name) : null, parameters: new URLSearchParams(search) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function useRoute(): Route {
  const [hash, set] = useState(location.hash);
  useEffect(() => {
    const listener = () => set(location.hash);
    addEventListener("hashchange", listener);
    return () => removeEventListener("hashchange", listener);
  }, []);
  return routeOf(hash);
}

const tabs = [
  { page: "", href: "#/", label: "Queries", also: "queries" },
  { page: "relations", href: "#/relations", label: "Relations", also: "relations" },
  { page: "sql", href: "#/sql", label: "SQL", also: "sql" },
];

function App() {
  const route = useRoute();
  const goneSince = useGoneSince();
  const server = usePoll<ServerInfo>("/v1/server", undefined, 5000).data;
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);

  useEffect(() => {
    const title = route.name ?? tabs.find((tab) => tab.page === route.page)?.label;
    document.title = title === undefined ? "Weir" : `${title} · Weir`;
    // A new page starts at its top, with the keyboard in it; the first one is left to the browser.
    if (!first.current) {
      scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    }
    first.current = false;
  }, [route.page, route.name]);

  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the page
      </a>
      <header class="top">
        <div class="top-in">
          <a class="brand" href="#/" aria-label="Weir, overview">
            <img src="/assets/icon.svg" alt="" width="26" height="26" />
            <span>Weir</span>
          </a>
          <nav aria-label="Pages">
            {tabs.map((tab) => (
              <a
                key={tab.page}
                href={tab.href}
                aria-current={tab.page === route.page || tab.also === route.page ? "page" : undefined}
              >
                {tab.label}
              </a>
            ))}
          </nav>
          <span class={`link ${goneSince === null ? "" : "gone"}`} title={server?.store}>
            <i aria-hidden="true" />
            <span>{goneSince !== null ? "no answer" : server === undefined ? "connecting" : `v${server.version}`}</span>
          </span>
        </div>
      </header>
      {goneSince !== null && (
        <div class="banner" role="alert">
          <b>The server does not answer</b> since {clock(goneSince)}. What you see is from before; it goes on by itself when
          the server is back. Is <code>weir serve</code> running?
        </div>
      )}
      <main id="main" ref={main} tabIndex={-1} class={goneSince === null ? "" : "stale"}>
        <Page route={route} server={server} />
      </main>
      <footer>
        <span class="mono" title="Everything durable is here">
          {server?.store ?? " "}
        </span>
        <span>
          <a href="/openapi.json">OpenAPI</a> <a href="/metrics">Metrics</a> <a href="/healthz">Health</a>
        </span>
      </footer>
    </>
  );
}

function Page({ route, server }: { route: Route; server: ServerInfo | undefined }) {
  switch (route.page) {
    case "":
      return <Overview server={server} />;
    case "queries":
      return route.name === null ? <Overview server={server} /> : <QueryPage key={route.name} name={route.name} />;
    case "relations":
      return <Relations selected={route.name} />;
    case "sql":
      return <SqlPage initial={route.parameters.get("q")} />;
    default:
      return (
        <section class="empty">
          <h1>There is no page “{route.page}”</h1>
          <p>
            Go to the <a href="#/">queries</a>, the <a href="#/relations">relations</a> or the <a href="#/sql">SQL page</a>.
          </p>
        </section>
      );
  }
}

const root = document.getElementById("app");
if (root !== null) render(<App />, root);
