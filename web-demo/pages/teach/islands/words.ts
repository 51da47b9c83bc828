/** What an island does, in words. */
import { count, UNKNOWN } from "../../shared/format.js";
import type { Island } from "../../shared/lesson.js";

/** A way takes so much longer for each unit of a far island's factor above 1, in milliseconds. */
const FAR_MS = 10;

/** A word for each state, and its tone. */
const STATES: Readonly<Record<Island["state"], readonly [string, string]>> = {
  expected: ["comes later", "waiting"],
  training: ["training", "going"],
  joining: ["joining", "waiting"],
  offline: ["out of reach", "held"],
  dead: ["dead", "trouble"],
};

/** What an island does, in a word or two, and its tone. */
export function badgeOf(island: Island): readonly [string, string] {
  if (island.state === "dead" || island.state === "expected") return STATES[island.state];
  if (island.stopped !== null) return ["sent away", "trouble"];
  if (island.poisoned) return ["poisoned", "trouble"];
  if (island.lies) return ["lies", "trouble"];
  if (island.partitioned) return ["cut off", "trouble"];
  return STATES[island.state];
}

/** How its training goes; its speed only while it trains. */
export function figuresOf(island: Island): string {
  if (island.stopped !== null) return `sent away: ${island.stopped}`;
  const isTraining = island.state === "training" && island.steps > 0 && island.stepMs > 0;
  const speed =
    isTraining && `${count(((island.tokens / island.steps) * 1_000) / (island.stepMs * island.slow))} tok/s`;
  const merged = island.tokens > 0 && `${Math.round((100 * island.merged) / island.tokens)} % merged`;
  return [`loss ${island.loss === null ? UNKNOWN : island.loss.toFixed(2)}`, speed, merged].filter(Boolean).join(" · ");
}

/** Whether it came, and no process runs there any more. */
export function isAway(island: Island): boolean {
  return island.state === "dead";
}

/** The factor that makes the way of an island longer by `extraMs`, one way. */
export function farFactor(extraMs: number): number {
  return 1 + Math.round(extraMs / FAR_MS);
}

/** How much longer the way of an island is than `usualMs`, one way, in milliseconds. */
export function extraOf({ latencyMs }: Island, usualMs: number): number {
  return Math.max(0, latencyMs - usualMs);
}
