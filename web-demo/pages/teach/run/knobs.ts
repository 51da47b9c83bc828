/** Everything that can be set: names, ranges and words, for the sliders and for links alike. */

import { bytes, milliseconds, percent } from "../../shared/format.js";
import { plain } from "../../shared/language.js";
import type { LessonSpec } from "../../shared/lesson.js";
import { type Key, phrase } from "../../words/phrase.js";

type Of<T> = { [K in keyof LessonSpec]: LessonSpec[K] extends T ? K : never }[keyof LessonSpec];
export type NumberKey = Exclude<Of<number>, undefined>;
export type ChoiceKey = "code" | "merge" | "bounds" | "apply" | "lockstep";

/** A number between two others. */
export interface Slider {
  readonly kind: "slider";
  readonly key: NumberKey;
  /** Its name in links; never reused for something else. */
  readonly short: string;
  readonly label: string;
  readonly hint: string;
  readonly min: number;
  readonly max: number;
  readonly step: number;
  readonly say: (value: number) => string;
}

/** One of a few. */
export interface Choice {
  readonly kind: "choice";
  readonly key: ChoiceKey;
  readonly short: string;
  readonly label: string;
  readonly hint: string;
  readonly options: readonly (readonly [string, string])[];
}

export type Knob = Slider | Choice;

/** Knobs that belong together. */
export interface Group {
  readonly title: string;
  readonly knobs: readonly Knob[];
}

const ofFragments = (value: number) => (value === 1 ? phrase("settings.wholeModel") : plain(value));

/** What a knob is called, and what is said of it. */
function called(key: NumberKey | ChoiceKey): Pick<Knob, "label" | "hint"> {
  return { label: phrase(`settings.knobs.${key}.label`), hint: phrase(`settings.knobs.${key}.hint`) };
}

/** Values of a choice, each with what it is called. */
function optionsOf<K extends ChoiceKey>(key: K, values: readonly LessonSpec[K][]): Choice["options"] {
  return values.map((value) => [value, phrase(`settings.options.${key}.${value}` as Key)] as const);
}

export const GROUPS: readonly Group[] = [
  {
    title: phrase("settings.groups.rounds"),
    knobs: [
      {
        kind: "slider",
        key: "islands",
        short: "m",
        ...called("islands"),
        min: 1,
        max: 8,
        step: 1,
        say: plain,
      },
      {
        kind: "slider",
        key: "quorum",
        short: "k",
        ...called("quorum"),
        min: 1,
        max: 8,
        step: 1,
        say: plain,
      },
      {
        kind: "slider",
        key: "grace",
        short: "g",
        ...called("grace"),
        min: 0,
        max: 1,
        step: 0.05,
        say: percent,
      },
      {
        kind: "slider",
        key: "syncEvery",
        short: "h",
        ...called("syncEvery"),
        min: 4,
        max: 96,
        step: 4,
        say: plain,
      },
      {
        kind: "slider",
        key: "fragments",
        short: "p",
        ...called("fragments"),
        min: 1,
        max: 12,
        step: 1,
        say: ofFragments,
      },
      {
        kind: "slider",
        key: "roundsInFlight",
        short: "f",
        ...called("roundsInFlight"),
        min: 1,
        max: 4,
        step: 1,
        say: plain,
      },
    ],
  },
  {
    title: phrase("settings.groups.updates"),
    knobs: [
      {
        kind: "choice",
        key: "code",
        short: "c",
        ...called("code"),
        options: optionsOf("code", ["f32", "int4", "e3m0", "int2", "int1"]),
      },
      {
        kind: "choice",
        key: "merge",
        short: "r",
        ...called("merge"),
        options: optionsOf("merge", ["radial", "mean"]),
      },
      {
        kind: "choice",
        key: "bounds",
        short: "bo",
        ...called("bounds"),
        options: optionsOf("bounds", ["on", "off"]),
      },
      {
        kind: "choice",
        key: "apply",
        short: "y",
        ...called("apply"),
        options: optionsOf("apply", ["keep", "keepResidue", "overwrite", "blend"]),
      },
    ],
  },
  {
    title: phrase("settings.groups.islands"),
    knobs: [
      {
        kind: "slider",
        key: "stepMs",
        short: "ms",
        ...called("stepMs"),
        min: 50,
        max: 1_000,
        step: 10,
        say: milliseconds,
      },
      {
        kind: "slider",
        key: "spread",
        short: "sp",
        ...called("spread"),
        min: 0,
        max: 1,
        step: 0.02,
        say: percent,
      },
      {
        kind: "slider",
        key: "jitter",
        short: "j",
        ...called("jitter"),
        min: 0,
        max: 1,
        step: 0.05,
        say: percent,
      },
      {
        kind: "slider",
        key: "late",
        short: "n",
        ...called("late"),
        min: 0,
        max: 7,
        step: 1,
        say: plain,
      },
      {
        kind: "slider",
        key: "lateMs",
        short: "nt",
        ...called("lateMs"),
        min: 0,
        max: 60_000,
        step: 500,
        say: milliseconds,
      },
      {
        kind: "choice",
        key: "lockstep",
        short: "ls",
        ...called("lockstep"),
        options: optionsOf("lockstep", ["waits", "elastic"]),
      },
    ],
  },
  {
    title: phrase("settings.groups.link"),
    knobs: [
      {
        kind: "slider",
        key: "latencyMs",
        short: "la",
        ...called("latencyMs"),
        min: 0,
        max: 1_000,
        step: 10,
        say: milliseconds,
      },
      {
        kind: "slider",
        key: "kilobytesPerS",
        short: "kb",
        ...called("kilobytesPerS"),
        min: 0,
        max: 1_000,
        step: 5,
        say: (value) =>
          value === 0 ? phrase("settings.unlimited") : phrase("settings.rate", { bytes: bytes(value * 1_000) }),
      },
      {
        kind: "slider",
        key: "loss",
        short: "lo",
        ...called("loss"),
        min: 0,
        max: 0.5,
        step: 0.01,
        say: percent,
      },
      {
        kind: "slider",
        key: "seed",
        short: "s",
        ...called("seed"),
        min: 1,
        max: 99,
        step: 1,
        say: plain,
      },
    ],
  },
];

export const KNOBS: readonly Knob[] = GROUPS.flatMap((group) => group.knobs);

/** `spec` without contradictions: a quorum of islands that there are. */
export function settled(spec: LessonSpec): LessonSpec {
  return { ...spec, quorum: Math.min(spec.quorum, spec.islands), late: Math.min(spec.late, spec.islands - 1) };
}

/** Whether `value` is one that `knob` can take. */
export function isAllowed(knob: Knob, value: unknown): boolean {
  if (knob.kind === "choice") return knob.options.some(([name]) => name === value);
  return (
    typeof value === "number" &&
    value >= knob.min &&
    value <= knob.max &&
    (knob.step % 1 !== 0 || Number.isInteger(value))
  );
}
