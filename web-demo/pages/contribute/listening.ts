/** Timing of the page's requests, and of the report that the syncer is silent, so that the page is right within 5 s. */

/** Time between two checks of the clock, in milliseconds. */
export const TICK_MS = 500;
/** Time between two status requests, in milliseconds; a hidden page sends none. */
export const STATUS_MS = 2_500;
/** The same while this machine trains, so that a lost syncer shows soon. */
export const TRAINING_MS = 1_500;
/** Timeout of a status request, in milliseconds. */
export const ANSWER_MS = 2_000;
/** Time without news after which the syncer counts as silent, in milliseconds. */
const SILENT_MS = 4_000;

/**
 * Returns how long the syncer has been silent, in milliseconds, or 0 if it is not. `newsMs` is the time of the last
 * news, or `null`. Time before `listeningMs` does not count, since the page was not listening.
 */
export function silenceMs(nowMs: number, newsMs: number | null, listeningMs: number): number {
  const forMs = nowMs - Math.max(newsMs ?? 0, listeningMs);
  return forMs < SILENT_MS ? 0 : forMs;
}
