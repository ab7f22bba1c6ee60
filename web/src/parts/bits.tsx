// Small parts that several pages show.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Problem } from "../lib/api";
import { percent } from "../lib/format";
import { history, keptMs } from "../lib/rates";

/** A query's state: a dot whose shape and colour say it, and the word. */
export function State({ state }: { state: string }) {
  return (
    <span class={`state state-${state.toLowerCase()}`}>
      <i aria-hidden="true" />
      {state.toLowerCase().replace("_", " ")}
    </span>
  );
}

/** A share as a bar with its number; amber from half, red from nine tenths. */
export function ShareBar({ share, label }: { share: number; label: string }) {
  const level = share >= 0.9 ? "high" : share >= 0.5 ? "some" : "low";
  return (
    <span class="sharebar">
      <meter class="unseen" min={0} max={1} value={share} aria-label={label} />
      <span class="track" aria-hidden="true">
        <span class={`fill ${level}`} style={{ width: percent(share).replace(" ", "") }} />
      </span>
      <span class="num">{percent(share)}</span>
    </span>
  );
}

/** The rate of a counter over the last minute. */
export function Sparkline({ series, index }: { series: string; index: number }) {
  const [width, height] = [84, 18];
  const points = history(series, index);
  const top = Math.max(1, ...points.map((point) => point.rate));
  const line = points.map(({ age, rate }) => {
    const x = width - (age / keptMs) * width;
    return `${x.toFixed(1)},${(height - 1.5 - (rate / top) * (height - 3)).toFixed(1)}`;
  });
  return (
    <svg class="spark" viewBox={`0 0 ${width} ${height}`} width={width} height={height} aria-hidden="true">
      <line x1="0" x2={width} y1={height - 1} y2={height - 1} />
      {line.length > 1 && <polyline points={line.join(" ")} />}
    </svg>
  );
}

/** An error with all that helps to mend it. */
export function ProblemBox({ problem, sql }: { problem: Problem; sql?: string | undefined }) {
  const at = sql === undefined || problem.position === null ? null : excerpt(sql, problem.position);
  return (
    <div class="problem" role="alert">
      <p class="problem-message">{problem.message}</p>
      {at !== null && <pre class="problem-at">{at}</pre>}
      {problem.detail && <p>{problem.detail}</p>}
      {problem.hint && (
        <p class="problem-hint">
          <b>Hint</b> {problem.hint}
        </p>
      )}
      <p class="problem-code">
        {[problem.code, problem.sqlstate && `SQLSTATE ${problem.sqlstate}`].filter(Boolean).join(" · ")}
      </p>
    </div>
  );
}

/** The line of `sql` that holds `position` (characters, from 1), with a mark below. */
function excerpt(sql: string, position: number): string | null {
  const before = [...sql].slice(0, Math.max(0, position - 1)).join("");
  const start = before.lastIndexOf("\n") + 1;
  const line = sql.slice(start).split("\n", 1)[0];
  return line === undefined ? null : `${line}\n${" ".repeat(before.length - start)}^`;
}

/** Copies `text`; says so for a moment. */
export function Copy({ text, label }: { text: string; label: string }) {
  const [done, set] = useState<"" | "copied" | "failed">("");
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    const next = (await toClipboard(text)) ? "copied" : "failed";
    set(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => set(""), 1500);
  };
  return (
    <button type="button" class="copy" onClick={() => void copy()} aria-label={label} title={label}>
      <span aria-live="polite">{done || "copy"}</span>
    </button>
  );
}

async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Not allowed outside https and localhost: the old way still is.
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/** SQL as it was written, copyable. */
export function Code({ sql, label }: { sql: string; label: string }) {
  return (
    <div class="code">
      <pre tabIndex={0}>{sql}</pre>
      <Copy text={sql} label={label} />
    </div>
  );
}

/** A named figure. */
export function Fact({ name, children, title }: { name: string; children: ComponentChildren; title?: string }) {
  return (
    <div class="fact" title={title}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** Where content will be, before the first answer. */
export function Waiting() {
  return (
    <p class="waiting" aria-live="polite">
      Waiting for the server…
    </p>
  );
}
