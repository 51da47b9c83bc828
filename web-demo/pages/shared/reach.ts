/** The sentence about a run that the page cannot reach: this machine is offline, or the server is silent. */
import type { Sentence } from "./sentence.js";

/** Returns true if the browser knows that it has no network. A network alone does not mean that the server is reachable. */
export function isOffline(): boolean {
  return navigator.onLine === false;
}

/**
 * Returns "You are offline. …" or "The run's server hasn't answered for 24 s. …", each followed by its text in `then`.
 * Returns `null` while the syncer answers. `silentMs` is the length of its silence in milliseconds, or 0.
 */
export function unreachable(
  silentMs: number,
  then: { readonly offline: string; readonly silent: string },
): Sentence | null {
  if (isOffline()) return { tone: "trouble", text: `You are offline. ${then.offline}` };
  if (silentMs <= 0) return null;
  const untold = ` for ${Math.floor(silentMs / 1_000)} s. ${then.silent}`;
  return { tone: "trouble", text: "The run's server hasn't answered", untold };
}
