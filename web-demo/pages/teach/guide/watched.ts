/** Marks of a chapter in the pictures: the break, and the measured stretches. */

import { fixed, plain } from "../../shared/language.js";
import { phrase } from "../../words/phrase.js";

/** A break: of one island, or of a setting for the whole run if `island` is `null`. */
export interface Breach {
  readonly atMs: number;
  readonly island: number | null;
}

/** A measured stretch. */
export interface Stretch {
  readonly of: "before" | "after";
  readonly fromMs: number;
  /** Its end; `null` while it goes on. */
  readonly untilMs: number | null;
  /** Required length, in milliseconds. Before the break it may become longer, until the visitor acts. */
  readonly dueMs: number;
}

export interface Watched {
  readonly breaches: readonly Breach[];
  readonly stretches: readonly Stretch[];
}

/** Marks of a run without a chapter's question. */
export const NOTHING: Watched = { breaches: [], stretches: [] };

/** Progress of a measurement at a moment, from 0 to 1. */
export function shareOf({ fromMs, untilMs, dueMs }: Stretch, nowMs: number): number {
  if (untilMs !== null) return 1;
  return dueMs > 0 ? Math.min(1, Math.max(0, (nowMs - fromMs) / dueMs)) : 1;
}

/** Returns the stretch being measured at a moment, or the last one. */
export function lastOf({ stretches }: Watched, nowMs: number): Stretch | null {
  return stretches.findLast(({ fromMs }) => fromMs <= nowMs) ?? null;
}

/** Returns "measured before the break: 3 of 6 s", or a short form for small pictures. */
export function stretchInWords(stretch: Stretch, { breaches }: Watched, nowMs: number, isShort: boolean): string {
  const isSetting = breaches.some(({ island }) => island === null);
  const after = isSetting ? "watched.changed" : "watched.since";
  const said = phrase(stretch.of === "before" ? "watched.before" : after);
  const due = Math.round(stretch.dueMs / 1_000);
  const passed = Math.floor((shareOf(stretch, nowMs) * stretch.dueMs) / 1_000 + 1e-9);
  const time = passed >= due ? `${plain(due)} s` : phrase("watched.passed", { passed, due });
  return phrase(isShort ? "watched.short" : "watched.long", { stretch: said, time });
}

/** Returns "broken at 6.2 s". */
export function breachInWords({ atMs, island }: Breach): string {
  return island === null
    ? phrase("watched.setting")
    : phrase("watched.broken", { time: `${fixed(atMs / 1_000, 1)} s` });
}
