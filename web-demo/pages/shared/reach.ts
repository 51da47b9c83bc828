/** What is said of a run that the page cannot reach: that this machine is offline, or since when nobody answers. */
import type { Sentence } from "./sentence.js";

/** Whether the browser knows that it has no network. One that has some may still reach nobody. */
export function isOffline(): boolean {
  return navigator.onLine === false;
}

/**
 * "You are offline. …", or "The run's server hasn't answered for 24 s. …", each with what `then` says of it; `null` while
 * the syncer is heard. It has been silent for `silentMs` milliseconds, or 0.
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
