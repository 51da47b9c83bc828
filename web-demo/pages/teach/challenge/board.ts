/**
 * A leaderboard without a server: links carry the best runs, each with a name, and with everything that decides it, so
 * that whoever opens the link can check what it claims.
 */

import { legible } from "../../shared/format.js";
import type { Action, LessonSpec } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import { readActions, writeAction } from "../run/address.js";
import { isAllowed, KNOBS, settled } from "../run/knobs.js";
import { CHALLENGE, counts, DEEDS_MAX, deedsOf, FREE, type Result } from "./challenge.js";

/** A run with somebody's name. */
export interface Entry {
  readonly name: string;
  readonly result: Result;
  readonly spec: LessonSpec;
  /** What was done, apart from what breaks by itself. */
  readonly deeds: readonly Action[];
}

/** Runs in a link; a longer list would make links that some programs cut. */
export const ENTRIES_MAX = 8;
/** Characters of a name. */
export const NAME_MAX = 20;
/** The field of links. Another challenge would get another one: runs of two cannot be compared. */
const FIELD = "b";
/** Losses that any model here can have, in nats per token. */
const LOSS_MAX = 10;

const KNOBS_FREE = KNOBS.filter(({ key }) => (FREE as readonly string[]).includes(key));

/** A name as it is shown: one line, short, and without what would turn the text about. */
export function tidy(name: string): string {
  const plain = legible(name).replace(/\s+/g, " ").trim();
  return [...plain].slice(0, NAME_MAX).join("").trim() || phrase("challenge.somebody");
}

/** Whether two are the same run by the same name. */
export function isSame(one: Entry, other: Entry): boolean {
  return one.name === other.name && isSameRun(one, other);
}

/** Whether two are the same run, whoever's they are. */
export function isSameRun(one: Pick<Entry, "spec" | "deeds">, other: Pick<Entry, "spec" | "deeds">): boolean {
  return wayOf(one) === wayOf(other);
}

/** The best of them, lowest loss first. */
export function best<T extends Entry>(entries: readonly T[]): T[] {
  return entries.toSorted((a, b) => a.result.loss - b.result.loss).slice(0, ENTRIES_MAX);
}

/** Everything that decides an entry's run, as links write it. */
function wayOf({ spec, deeds }: Pick<Entry, "spec" | "deeds">): string {
  const set = KNOBS_FREE.map(({ key, short }) => `${short}:${spec[key]}`).join(",");
  return `${set}!${deeds.map(writeAction).join("~")}`;
}

/** What is added to a page's fragment for these entries. */
export function writeBoard(entries: readonly Entry[]): string {
  return entries
    .map((entry) => {
      const { loss, goodput } = entry.result;
      // The name comes last: there it may contain whatever separates the rest.
      return `&${FIELD}=${loss}!${goodput}!${wayOf(entry)}!${encodeURIComponent(entry.name)}`;
    })
    .join("");
}

/** The entries of a fragment; `stage` is the challenge's own. `notices` are what was wrong with it, in words. */
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

/** What a plain number with at most four digits after its point says, or NaN. */
function decimal(text: string | undefined): number {
  return /^\d{1,4}(\.\d{1,4})?$/.test(text ?? "") ? Number(text) : NaN;
}

/** Everything done to an entry's run, by time. */
export function actionsOf({ deeds }: Pick<Entry, "deeds">): Action[] {
  return [...CHALLENGE.actions, ...deeds].sort((a, b) => a.atMs - b.atMs);
}

/** What somebody set and did, in a few words: "K 1, γ 80 %, 4 bits; 2 deeds by hand". */
export function wayInWords({ spec, deeds }: Pick<Entry, "spec" | "deeds">): string {
  // How a fragment is applied takes more words than there is room for.
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

/** A run as an entry. */
export function entryOf(name: string, result: Result, spec: LessonSpec, actions: readonly Action[]): Entry {
  return { name: tidy(name), result, spec, deeds: (deedsOf(actions) ?? []).toSorted((a, b) => a.atMs - b.atMs) };
}
