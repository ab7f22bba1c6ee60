// Numbers, durations and times as people read them.
import { ExactNumber, type Cell } from "./json";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** 1,234,567 */
export function count(value: number): string {
  return whole.format(value);
}

/** 12.3K/s; `–` until two samples are there. */
export function perSecond(value: number | null): string {
  if (value === null) return "– /s";
  if (value > 0 && value < 1) return "<1/s";
  return `${compact.format(value)}/s`;
}

/** 3.4 MB (powers of ten, as the object stores count). */
export function bytes(value: number | null): string {
  if (value === null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

/** A duration in milliseconds: 340 ms, 2.1 s, 4 min, 3 h, 12 d, 13 y. */
export function duration(ms: number | null): string {
  if (ms === null) return "–";
  const size = Math.abs(ms);
  const sign = ms < 0 ? "−" : "";
  if (size < 1000) return `${sign}${Math.round(size)} ms`;
  const steps: [number, string][] = [
    [365.25 * 86_400_000, "y"],
    [86_400_000, "d"],
    [3_600_000, "h"],
    [60_000, "min"],
    [1000, "s"],
  ];
  for (const [length, unit] of steps) {
    if (size >= length) {
      const amount = size / length;
      return `${sign}${amount < 10 ? amount.toFixed(1) : Math.round(amount)} ${unit}`;
    }
  }
  return `${sign}${Math.round(size)} ms`;
}

/** 37 % */
export function percent(share: number): string {
  return `${Math.round(Math.min(1, Math.max(0, share)) * 100)} %`;
}

/** A wall-clock time in the reader's zone: today's without the date. */
export function clock(ms: number): string {
  const at = new Date(ms);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${isoDay(at)} ${time}`;
}

function isoDay(at: Date): string {
  const two = (part: number) => String(part).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** An event time in UTC, or what stands for one: no watermark yet, or the end of all input. */
export function watermark(us: number | null): string {
  if (us === null) return "none yet";
  // Beyond year 9999 is the server's "end of time": every input has ended.
  if (us >= 253_402_300_800_000_000) return "end of input";
  const at = new Date(us / 1000);
  return Number.isNaN(at.getTime()) ? "none yet" : at.toISOString().slice(0, 19).replace("T", " ");
}

/** A cell of a result. NULL is told apart by its style, not here. */
export function cell(value: Cell): string {
  if (value === null) return "NULL";
  if (typeof value === "string") return value;
  if (value instanceof ExactNumber || typeof value !== "object") return String(value);
  return JSON.stringify(value, (_key, part: unknown) => (part instanceof ExactNumber ? part.text : part));
}

/** `name` cut to `length` characters, the rest told by an ellipsis. */
export function cut(text: string, length: number): string {
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}
