/**
 * A leaderboard without a server: links carry the best runs, each with a name and all settings and actions, so
 * that their readers can check the claims.
 */

import { legible } from "../../shared/format.js";
import type { Action, LessonSpec } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import { readActions, writeAction } from "../run/address.js";
import { isAllowed, KNOBS, settled } from "../run/knobs.js";
import { CHALLENGE, counts, DEEDS_MAX, deedsOf, FREE, type Result } from "./challenge.js";

/** A run with a visitor's name. */
export interface Entry {
  readonly name: string;
  readonly result: Result;
  readonly spec: LessonSpec;
  /** The visitor's actions, without the challenge's own. */
  readonly deeds: readonly Action[];
}

/** Limit of runs in a link; some programs cut longer links. */
export const ENTRIES_MAX = 8;
/** Limit of characters in a name. */
export const NAME_MAX = 20;
/** Field of links. Another challenge gets another field: runs of two challenges cannot be compared. */
const FIELD = "b";
/** Range of possible losses here, in nats per token. */
const LOSS_MAX = 10;

const KNOBS_FREE = KNOBS.filter(({ key }) => (FREE as readonly string[]).includes(key));

/** Cleans a name for display: one line, short, and without characters that reverse the text. */
export function tidy(name: string): string {
  const plain = legible(name).replace(/\s+/g, " ").trim();
  return [...plain].slice(0, NAME_MAX).join("").trim() || phrase("challenge.somebody");
}

/** Whether two entries are the same run under the same name. */
export function isSame(one: Entry, other: Entry): boolean {
  return one.name === other.name && isSameRun(one, other);
}

/** Whether two entries are the same run under any names. */
export function isSameRun(one: Pick<Entry, "spec" | "deeds">, other: Pick<Entry, "spec" | "deeds">): boolean {
  return wayOf(one) === wayOf(other);
}

/** Returns the best entries, lowest loss first. */
export function best<T extends Entry>(entries: readonly T[]): T[] {
  return entries.toSorted((a, b) => a.result.loss - b.result.loss).slice(0, ENTRIES_MAX);
}

/** Returns the plan of an entry's run, in the form of links. */
function wayOf({ spec, deeds }: Pick<Entry, "spec" | "deeds">): string {
  const set = KNOBS_FREE.map(({ key, short }) => `${short}:${spec[key]}`).join(",");
  return `${set}!${deeds.map(writeAction).join("~")}`;
}

/** Returns the addition to a page's fragment for these entries. */
export function writeBoard(entries: readonly Entry[]): string {
  return entries
    .map((entry) => {
      const { loss, goodput } = entry.result;
      // The name comes last, since it may contain the separators.
      return `&${FIELD}=${loss}!${goodput}!${wayOf(entry)}!${encodeURIComponent(entry.name)}`;
    })
    .join("");
}

/** Reads the entries of a fragment; `stage` is the challenge's own. `notices` describe its faults. */
export function readBoard(
  hash: string,
  stage: LessonSpec,
): { readonly entries: readonly Entry[]; readonly notices: readonly string[] } {
  const texts = new URLSearchParams(hash.replace(/^#/, "")).getAll(FIELD);
  const read = texts.slice(0, ENTRIES_MAX).map((text) => readEntry(text, stage));
  const entries: Entry[] = [];
  for (const entry of read) if (entry !== null && !entries.some((other) => isSame(other, entry))) entries.push(entry);
  const broken = read.filter((entry) => entry === null).length;
  const notices = [
    broken > 0 && phrase("address.scores", { count: broken }),
    texts.length > ENTRIES_MAX && phrase("address.scoresMax", { max: ENTRIES_MAX }),
  ].filter((notice) => notice !== false);
  return { entries: best(entries), notices };
}

function readEntry(text: string, stage: LessonSpec): Entry | null {
  const [loss, goodput, set, did, ...name] = text.split("!");
  const result = { loss: decimal(loss), goodput: decimal(goodput) };
  const spec = readSettings(set ?? "", stage);
  const wrong: string[] = [];
  const deeds = readActions(did ?? "", stage.islands, wrong);
  const isPossible = result.loss <= LOSS_MAX && result.goodput <= 1 && counts(result);
  if (!isPossible || !spec || name.length === 0 || wrong.length > 0 || deeds.length > DEEDS_MAX) return null;
  return { name: tidy(name.join("!")), result, spec, deeds };
}

function readSettings(text: string, stage: LessonSpec): LessonSpec | null {
  const changed: Record<string, unknown> = {};
  for (const part of text.split(",").filter(Boolean)) {
    const [short, value = ""] = part.split(":");
    const knob = KNOBS_FREE.find((one) => one.short === short);
    const meant = knob?.kind === "slider" ? decimal(value) : value;
    if (!knob || !isAllowed(knob, meant)) return null;
    changed[knob.key] = meant;
  }
  return settled({ ...stage, ...changed });
}

/** Parses a plain number with at most four digits after its point; NaN for anything else. */
function decimal(text: string | undefined): number {
  return /^\d{1,4}(\.\d{1,4})?$/.test(text ?? "") ? Number(text) : NaN;
}

/** Returns all actions of an entry's run, by time. */
export function actionsOf({ deeds }: Pick<Entry, "deeds">): Action[] {
  return [...CHALLENGE.actions, ...deeds].sort((a, b) => a.atMs - b.atMs);
}

/** Describes settings and actions in a few words: "K 1, γ 80 %, 4 bits; 2 deeds by hand". */
export function wayInWords({ spec, deeds }: Pick<Entry, "spec" | "deeds">): string {
  // The value of this setting takes too much room.
  const said = KNOBS_FREE.filter(({ key }) => key !== "apply").map((knob) => {
    const value = spec[knob.key];
    // Of "Quorum, K" the letter is enough.
    const name = knob.label.split(", ").at(-1)!;
    if (knob.kind === "slider") return `${name} ${knob.say(Number(value))}`;
    if (knob.key === "code") return phrase(`bits.${spec.code}`);
    return knob.options.find(([one]) => one === value)?.[1] ?? "";
  });
  const { length } = deeds;
  const did = length === 0 ? phrase("challenge.wayNoDeeds") : phrase("challenge.wayDeeds", { count: length });
  return phrase("challenge.way", { settings: said.join(", "), deeds: did });
}

/** Returns a run as an entry. */
export function entryOf(name: string, result: Result, spec: LessonSpec, actions: readonly Action[]): Entry {
  return { name: tidy(name), result, spec, deeds: (deedsOf(actions) ?? []).toSorted((a, b) => a.atMs - b.atMs) };
}
