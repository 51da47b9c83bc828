/**
 * The whole state of the page as a link's fragment: `#v=1&m=5&a=k2@3400~r2@9100&w=k:3@5000&t=12000&x=1&chapter=quorum`.
 *
 * Only differences from the chapter's stage are written. Invalid parts are left out, with a notice. A run with a moment
 * stands still at it; a run without one begins at its seed and plays, with all its actions.
 */

import { type Action, type Change, type Deed, LESSON_MS_MAX, type LessonSpec } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import { isLive, partsOf, settingOf } from "./changes.js";
import { isAllowed, KNOBS, type Knob, settled } from "./knobs.js";

/** The pictures: the sea, and a lane for each island. */
export type View = "map" | "lanes";

/** Full content of a link. */
export interface Place {
  readonly spec: LessonSpec;
  readonly actions: readonly Action[];
  /** Changes of settings during the run, by time. */
  readonly changes: readonly Change[];
  /** The moment to stand still at; 0 for a run that plays. */
  readonly atMs: number;
  readonly speed: number;
  readonly chapter: string | null;
  /** The followed fragment, from 0; `null` for all. */
  readonly followed: number | null;
  /** The displayed kind of picture. */
  readonly view: View;
  /** Whether it is in projector mode. */
  readonly presenter: boolean;
}

/** Returns the stage of a chapter, or of no chapter; `undefined` for an unknown chapter. */
export type StageOf = (chapter: string | null) => Pick<Place, "spec" | "speed" | "actions" | "followed"> | undefined;

const VERSION = 1;
/** From a quarter of real time to sixteen times. */
export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16] as const;
/** Limit of actions, and of changes, in a link: more than a visitor makes by hand. */
const ACTIONS_MAX = 200;
/** Value for all fragments. */
const ALL = "all";
const HOURS_MAX = LESSON_MS_MAX / 3_600_000;

const LETTERS: Readonly<Record<Deed, string>> = {
  kill: "k",
  restart: "r",
  slow: "s",
  partition: "p",
  heal: "h",
  poison: "v",
  lie: "l",
  cure: "c",
  far: "d",
};
const DEEDS = new Map(Object.entries(LETTERS).map(([deed, letter]) => [letter, deed as Deed]));

/** Returns the fragment for a place, with its `#`, without the parts that [`leftOut`] names. */
export function write(place: Place, stageOf: StageOf): string {
  const base = (stageOf(place.chapter) ?? stageOf(null))!;
  const parts = [`v=${VERSION}`];
  for (const { key, short } of KNOBS) if (place.spec[key] !== base.spec[key]) parts.push(`${short}=${place.spec[key]}`);
  const actions = place.actions.filter(isLinkable).slice(0, ACTIONS_MAX);
  if (actions.length > 0) parts.push(`a=${actions.map(writeAction).join("~")}`);
  const changes = place.changes.filter(isLinkable).slice(0, ACTIONS_MAX);
  if (changes.length > 0) parts.push(`w=${changes.map(writeChange).join("~")}`);
  const atMs = Math.min(Math.round(place.atMs), LESSON_MS_MAX);
  if (atMs > 0) parts.push(`t=${atMs}`);
  if (place.speed !== base.speed) parts.push(`x=${place.speed}`);
  if (place.chapter !== null) parts.push(`chapter=${place.chapter}`);
  if (place.followed !== base.followed) parts.push(`follow=${place.followed === null ? ALL : place.followed + 1}`);
  if (place.view !== "map") parts.push(`view=${place.view}`);
  if (place.presenter) parts.push("presenter=1");
  return `#${parts.join("&")}`;
}

/** Returns the fragment that opens a chapter at its question, or the challenge. */
export function linkOf(chapter: string): string {
  return `#v=${VERSION}&chapter=${chapter}`;
}

/** Names the parts of a place that do not fit into its link; `null` if all fit. */
export function leftOut(place: Place): string | null {
  const isLong = [place.actions, place.changes].some((all) => all.length > ACTIONS_MAX || !all.every(isLinkable));
  const deeds = isLong ? phrase("share.deedsLeftOut", { deeds: ACTIONS_MAX, hours: HOURS_MAX }) : null;
  const moment = place.atMs > LESSON_MS_MAX ? phrase("share.momentLeftOut", { hours: HOURS_MAX }) : null;
  return deeds !== null && moment !== null ? phrase("share.bothLeftOut", { deeds, moment }) : (deeds ?? moment);
}

function isLinkable({ atMs }: Action | Change): boolean {
  return atMs <= LESSON_MS_MAX;
}

function hasFactor(deed: Deed): boolean {
  return deed === "slow" || deed === "far";
}

/** Writes an action for links: `k2@3400`. */
export function writeAction({ atMs, island, deed, factor }: Action): string {
  return `${LETTERS[deed]}${island + 1}${hasFactor(deed) ? `x${Number(factor.toFixed(3))}` : ""}@${Math.round(atMs)}`;
}

/** Writes a change for links: `k:4@3400`. */
function writeChange({ atMs, to }: Change): string {
  const [key, value] = partsOf(to);
  return `${KNOBS.find((knob) => knob.key === key)!.short}:${value}@${Math.round(atMs)}`;
}

/** Reads a fragment; `notices` describe its faults. */
export function read(hash: string, stageOf: StageOf): { readonly place: Place; readonly notices: readonly string[] } {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  const notices: string[] = [];
  const version = fields.get("v");
  if (version !== null && version !== String(VERSION))
    notices.push(phrase("address.version", { version: clip(version) }));
  let chapter = fields.get("chapter");
  if (chapter !== null && stageOf(chapter) === undefined) {
    notices.push(phrase("address.chapter", { chapter: clip(chapter) }));
    chapter = null;
  }
  const base = stageOf(chapter)!;
  const changed: Record<string, unknown> = {};
  for (const knob of KNOBS) {
    const text = fields.get(knob.short);
    if (text === null) continue;
    const value = readValue(knob, text);
    if (isAllowed(knob, value)) changed[knob.key] = value;
    else {
      const usual = String(base.spec[knob.key]);
      notices.push(phrase("address.setting", { value: clip(text), setting: knob.label, usual }));
    }
  }
  const spec = settled({ ...base.spec, ...changed });
  const actions = readActions(fields.get("a") ?? "", spec.islands, notices);
  const changes = readChanges(fields.get("w") ?? "", spec, notices);
  const atMs = number(fields.get("t") ?? "0");
  if (!(atMs >= 0 && atMs <= LESSON_MS_MAX)) notices.push(phrase("address.moment"));
  const speed = SPEEDS.find((one) => one === number(fields.get("x") ?? String(base.speed)));
  if (speed === undefined)
    notices.push(phrase("address.speed", { speed: clip(fields.get("x") ?? ""), usual: base.speed }));
  const view = fields.get("view") ?? "map";
  if (view !== "map" && view !== "lanes") notices.push(phrase("address.view", { view: clip(view) }));
  const presenter = fields.get("presenter") ?? "0";
  if (!["0", "1"].includes(presenter)) notices.push(phrase("address.presenter", { value: clip(presenter) }));
  return {
    place: {
      spec,
      actions,
      changes,
      chapter,
      followed: readFollowed(fields.get("follow"), base.followed, spec.fragments, notices),
      view: view === "lanes" ? "lanes" : "map",
      presenter: presenter === "1",
      atMs: atMs >= 0 && atMs <= LESSON_MS_MAX ? Math.round(atMs) : 0,
      speed: speed ?? base.speed,
    },
    notices,
  };
}

function readFollowed(text: string | null, usual: number | null, fragments: number, notices: string[]): number | null {
  if (text === ALL) return null;
  const at = number(text ?? "") - 1;
  if (Number.isInteger(at) && at >= 0 && at < fragments) return at;
  if (text !== null) notices.push(phrase("address.fragment", { fragment: clip(text) }));
  return usual !== null && usual < fragments ? usual : null;
}

/** Reads a link's actions, by time; `notices` gets those that do not fit this many islands. */
export function readActions(text: string, islands: number, notices: string[]): Action[] {
  const actions: Action[] = [];
  const parts = text.split("~").filter(Boolean);
  if (parts.length > ACTIONS_MAX) notices.push(phrase("address.deedsMax", { max: ACTIONS_MAX }));
  for (const part of parts.slice(0, ACTIONS_MAX)) {
    const match = /^([a-z])(\d)(?:x(\d{1,2}(?:\.\d{1,3})?|100))?@(\d{1,8})$/.exec(part);
    const deed = DEEDS.get(match?.[1] ?? "");
    const island = Number(match?.[2]) - 1;
    const atMs = Number(match?.[4]);
    const factor = match?.[3] === undefined ? 1 : Number(match[3]);
    if (deed === undefined || island < 0 || island >= islands || !(atMs <= LESSON_MS_MAX) || factor < 1) {
      notices.push(phrase("address.deed", { deed: clip(part) }));
      continue;
    }
    actions.push({ atMs, island, deed, factor });
  }
  return actions.sort((a, b) => a.atMs - b.atMs);
}

/** Reads a link's changes, by time; `notices` gets those that a run with the initial `spec` cannot take. */
function readChanges(text: string, spec: LessonSpec, notices: string[]): Change[] {
  const changes: Change[] = [];
  const parts = text.split("~").filter(Boolean);
  if (parts.length > ACTIONS_MAX) notices.push(phrase("address.changesMax", { max: ACTIONS_MAX }));
  for (const part of parts.slice(0, ACTIONS_MAX)) {
    const [, short, said = "", at] = /^([a-z]+):([\w.]+)@(\d{1,8})$/.exec(part) ?? [];
    const knob = KNOBS.find((one) => one.short === short);
    const [value, atMs] = [knob && readValue(knob, said), Number(at)];
    if (!knob || !isLive(knob.key) || !isAllowed(knob, value) || !(atMs <= LESSON_MS_MAX)) {
      notices.push(phrase("address.change", { change: clip(part) }));
      continue;
    }
    changes.push({ atMs, to: settingOf(settled({ ...spec, [knob.key]: value }), knob.key) });
  }
  return changes.sort((a, b) => a.atMs - b.atMs);
}

function readValue(knob: Knob, text: string): string | number {
  return knob.kind === "choice" ? text : number(text);
}

/** Parses a plain number, or returns NaN: `Number` alone accepts "" as 0. */
function number(text: string): number {
  return /^\d+(\.\d+)?$/.test(text) ? Number(text) : NaN;
}

function clip(text: string): string {
  return text.length > 24 ? `${text.slice(0, 24)}…` : text;
}
