/** A number as the server wrote it, where JavaScript's doubles would change its digits. */
export class ExactNumber {
  constructor(readonly text: string) {}
  toString(): string {
    return this.text;
  }
}

export type Cell = null | boolean | number | string | ExactNumber | Cell[] | { [name: string]: Cell };

interface ReviverContext {
  readonly source?: string;
}

type Parse = (text: string, reviver: (key: string, value: unknown, context?: ReviverContext) => unknown) => unknown;

/**
 * Parse JSON and keep every digit: BIGINT beyond 2^53 and DECIMAL are shown as they are. Browsers whose `JSON.parse`
 * does not hand out the source text show the nearest double instead.
 */
export function parseExact(text: string): unknown {
  const parse = JSON.parse as Parse;
  return parse(text, (_key, value, context) =>
    typeof value === "number" && context?.source !== undefined && String(value) !== context.source
      ? new ExactNumber(context.source)
      : value,
  );
}
