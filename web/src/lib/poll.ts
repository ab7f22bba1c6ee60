// One poll a second for what a page shows, and one shared knowledge of whether the server answers.
import { useEffect, useState } from "preact/hooks";
import { get, ServerError, Unreachable } from "./api";

/** When the server stopped answering (milliseconds), or null while it answers. */
let goneSince: number | null = null;
const listeners = new Set<() => void>();

function tell(gone: boolean): void {
  if (gone === (goneSince !== null)) return;
  goneSince = gone ? Date.now() : null;
  for (const listener of listeners) listener();
}

/** Since when the server has not answered, or null. */
export function useGoneSince(): number | null {
  const [since, set] = useState(goneSince);
  useEffect(() => {
    const listener = () => set(goneSince);
    listeners.add(listener);
    listener();
    return () => void listeners.delete(listener);
  }, []);
  return since;
}

export interface Polled<T> {
  /** The last answer, kept while the server is gone; undefined before the first. */
  data: T | undefined;
  /** The server's refusal, if the last answer was one. */
  error: ServerError | undefined;
  /** Ask again now. */
  refresh: () => void;
}

/** Poll `path` each `everyMs` while the page is visible. `onData` runs once an answer, before it is shown. */
export function usePoll<T>(path: string, onData?: (data: T, at: number) => void, everyMs = 1000): Polled<T> {
  const [state, set] = useState<{ path: string; data?: T; error?: ServerError }>({ path });
  const [asked, askAgain] = useState(0);

  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const again = () => {
      clearTimeout(timer);
      timer = setTimeout(once, everyMs);
    };
    const once = async () => {
      if (document.hidden) return again();
      try {
        const data = await get<T>(path, abort.signal);
        if (abort.signal.aborted) return;
        tell(false);
        onData?.(data, performance.now());
        set({ path, data });
      } catch (error) {
        if (abort.signal.aborted) return;
        tell(error instanceof Unreachable);
        if (error instanceof ServerError) set({ path, error });
      }
      again();
    };
    void once();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, asked, everyMs]);

  const current = state.path === path;
  return {
    data: current ? state.data : undefined,
    error: current ? state.error : undefined,
    refresh: () => askAgain((n) => n + 1),
  };
}
