// Rates from counters: the server counts, the browser subtracts.

/** Seconds over which a rate is averaged: long enough to be read, short enough to be now. */
const WINDOW_MS = 5000;
/** Seconds that a sparkline shows. */
const KEPT_MS = 60_000;

interface Sample {
  at: number;
  values: readonly number[];
}

const series = new Map<string, Sample[]>();

/** Remember the counters of `key` as of `at` (milliseconds). A counter that fell belongs to a new run. */
export function record(key: string, values: readonly number[], at: number): void {
  const samples = series.get(key) ?? [];
  const last = samples.at(-1);
  if (last !== undefined && (last.at >= at || last.values.some((value, i) => (values[i] ?? 0) < value))) {
    if (last.at >= at) return;
    samples.length = 0;
  }
  samples.push({ at, values });
  while (samples.length > 2 && (samples[0]?.at ?? at) < at - KEPT_MS) samples.shift();
  series.set(key, samples);
}

/** How much the counter `index` of `key` grew in the last seconds, and over how many milliseconds. */
export function growth(key: string, index: number): { by: number; ms: number } | null {
  const samples = series.get(key);
  const last = samples?.at(-1);
  if (samples === undefined || last === undefined) return null;
  const first = samples.find((sample) => sample.at >= last.at - WINDOW_MS);
  if (first === undefined || first === last) return null;
  return { by: (last.values[index] ?? 0) - (first.values[index] ?? 0), ms: last.at - first.at };
}

/** The counter's rate per second, or null before two samples are there. */
export function rate(key: string, index: number): number | null {
  const grown = growth(key, index);
  return grown === null ? null : (grown.by * 1000) / grown.ms;
}

/** Rates between neighbouring samples of the last minute, oldest first, with the age of each in milliseconds. */
export function history(key: string, index: number): { age: number; rate: number }[] {
  const samples = series.get(key) ?? [];
  const now = samples.at(-1)?.at ?? 0;
  return samples.slice(1).map((sample, i) => {
    const before = samples[i] as Sample;
    const by = (sample.values[index] ?? 0) - (before.values[index] ?? 0);
    return { age: now - sample.at, rate: (by * 1000) / (sample.at - before.at) };
  });
}

/** Forget everything (for tests). */
export function forget(): void {
  series.clear();
}

export const keptMs = KEPT_MS;
