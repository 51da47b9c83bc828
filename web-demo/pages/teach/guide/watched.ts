/** What the pictures mark of a chapter's question: where its run was broken, and which stretches of it are measured. */

import { fixed, plain } from "../../shared/language.js";
import { phrase } from "../../words/phrase.js";

/** Somebody broke the run at a moment: an island of it, or, where it is `null`, all of it with another setting. */
export interface Breach {
  readonly atMs: number;
  readonly island: number | null;
}

/** A stretch that is measured. */
export interface Stretch {
  readonly of: "before" | "after";
  readonly fromMs: number;
  /** When it ended; `null` while it goes on. */
  readonly untilMs: number | null;
  /** How long it has to be, in milliseconds. Before the break it may become longer: that is up to whoever breaks. */
  readonly dueMs: number;
}

export interface Watched {
  readonly breaches: readonly Breach[];
  readonly stretches: readonly Stretch[];
}

/** Of a run that no chapter asks about. */
export const NOTHING: Watched = { breaches: [], stretches: [] };

/** How much of what is to be measured is, at a moment, from 0 to 1. */
export function shareOf({ fromMs, untilMs, dueMs }: Stretch, nowMs: number): number {
  if (untilMs !== null) return 1;
  return dueMs > 0 ? Math.min(1, Math.max(0, (nowMs - fromMs) / dueMs)) : 1;
}

/** The stretch that is measured at a moment, or the last one that was. */
export function lastOf({ stretches }: Watched, nowMs: number): Stretch | null {
  return stretches.findLast(({ fromMs }) => fromMs <= nowMs) ?? null;
}

/** "measured before the break: 3 of 6 s"; short where there is little room. */
export function stretchInWords(stretch: Stretch, { breaches }: Watched, nowMs: number, isShort: boolean): string {
  const isSetting = breaches.some(({ island }) => island === null);
  const after = isSetting ? "watched.changed" : "watched.since";
  const said = phrase(stretch.of === "before" ? "watched.before" : after);
  const due = Math.round(stretch.dueMs / 1_000);
  const passed = Math.floor((shareOf(stretch, nowMs) * stretch.dueMs) / 1_000 + 1e-9);
  const time = passed >= due ? `${plain(due)} s` : phrase("watched.passed", { passed, due });
  return phrase(isShort ? "watched.short" : "watched.long", { stretch: said, time });
}

/** "broken at 6.2 s". */
export function breachInWords({ atMs, island }: Breach): string {
  return island === null
    ? phrase("watched.setting")
    : phrase("watched.broken", { time: `${fixed(atMs / 1_000, 1)} s` });
}
