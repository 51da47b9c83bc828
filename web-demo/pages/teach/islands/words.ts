/** Descriptions of an island. */

import { count, UNKNOWN } from "../../shared/format.js";
import { fixed } from "../../shared/language.js";
import type { Island } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";

/** Extra delay per unit of a far island's factor above 1, in milliseconds. */
const FAR_MS = 10;

/** A word for each state, and its tone. */
const STATES: Readonly<Record<Island["state"], readonly [string, string]>> = {
  expected: [phrase("islands.states.expected"), "waiting"],
  training: [phrase("islands.states.training"), "going"],
  joining: [phrase("islands.states.joining"), "waiting"],
  offline: [phrase("islands.states.offline"), "held"],
  dead: [phrase("islands.states.dead"), "trouble"],
};

/** Describes an island's activity in a word or two, with a tone. */
export function badgeOf(island: Island): readonly [string, string] {
  if (island.state === "dead" || island.state === "expected") return STATES[island.state];
  if (island.stopped !== null) return [phrase("islands.states.sentAway"), "trouble"];
  if (island.poisoned) return [phrase("islands.states.poisoned"), "trouble"];
  if (island.lies) return [phrase("islands.states.lies"), "trouble"];
  if (island.partitioned) return [phrase("islands.states.cutOff"), "trouble"];
  return STATES[island.state];
}

/** Describes its training; the speed only while it trains. */
export function figuresOf(island: Island): string {
  if (island.stopped !== null) return phrase("islands.sentAwayFor", { why: island.stopped });
  const isTraining = island.state === "training" && island.steps > 0 && island.stepMs > 0;
  const speed =
    isTraining &&
    phrase("islands.speed", {
      tokens: count(((island.tokens / island.steps) * 1_000) / (island.stepMs * island.slow)),
    });
  const merged =
    island.tokens > 0 && phrase("islands.merged", { share: Math.round((100 * island.merged) / island.tokens) });
  const loss = phrase("islands.lossNow", { loss: island.loss === null ? UNKNOWN : fixed(island.loss, 2) });
  return [loss, speed, merged].filter(Boolean).join(" · ");
}

/** Whether the island has joined and its process has ended. */
export function isAway(island: Island): boolean {
  return island.state === "dead";
}

/** Returns the factor for an extra delay of `extraMs`, one way. */
export function farFactor(extraMs: number): number {
  return 1 + Math.round(extraMs / FAR_MS);
}

/** Returns the extra delay of an island over `usualMs`, one way, in milliseconds. */
export function extraOf({ latencyMs }: Island, usualMs: number): number {
  return Math.max(0, latencyMs - usualMs);
}
