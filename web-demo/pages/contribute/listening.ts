/** When the page looks at the run, and when it calls the syncer silent, so that what it says is true within 5 s. */

/** Time between two looks at the clock, in milliseconds. */
export const TICK_MS = 500;
/** Time between two looks at the run, in milliseconds; none while the page is hidden. */
export const STATUS_MS = 2_500;
/** And while this machine trains, so that it is soon known that nobody hears it. */
export const TRAINING_MS = 1_500;
/** A syncer that does not answer within this, in milliseconds, does not answer. */
export const ANSWER_MS = 2_000;
/** Without a word for so long, in milliseconds, the syncer is silent. */
const SILENT_MS = 4_000;

/**
 * For how long the syncer has been silent, in milliseconds, or 0 if it is not. It was heard last at `newsMs`, `null` if
 * never, and what came before `listeningMs`, when nobody listened, is no silence.
 */
export function silenceMs(nowMs: number, newsMs: number | null, listeningMs: number): number {
  const forMs = nowMs - Math.max(newsMs ?? 0, listeningMs);
  return forMs < SILENT_MS ? 0 : forMs;
}
