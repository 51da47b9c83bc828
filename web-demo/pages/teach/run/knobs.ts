/** All settings: names, ranges and words, for sliders and links. */

import { bytes, milliseconds, percent } from "../../shared/format.js";
import { plain } from "../../shared/language.js";
import type { LessonSpec } from "../../shared/lesson.js";
import { type Key, phrase } from "../../words/phrase.js";

type Of<T> = { [K in keyof LessonSpec]: LessonSpec[K] extends T ? K : never }[keyof LessonSpec];
export type NumberKey = Exclude<Of<number>, undefined>;
export type ChoiceKey = "code" | "merge" | "bounds" | "apply" | "lockstep";

/** A number within a range. */
export interface Slider {
  readonly kind: "slider";
  readonly key: NumberKey;
  /** Name in links; never reused for another setting. */
  readonly short: string;
  readonly label: string;
  readonly hint: string;
  readonly min: number;
  readonly max: number;
  readonly step: number;
  readonly say: (value: number) => string;
}

/** A choice of one value. */
export interface Choice {
  readonly kind: "choice";
  readonly key: ChoiceKey;
  readonly short: string;
  readonly label: string;
  readonly hint: string;
  readonly options: readonly (readonly [string, string])[];
}

export type Knob = Slider | Choice;

/** A group of knobs. */
export interface Group {
  readonly title: string;
  readonly knobs: readonly Knob[];
}

const ofFragments = (value: number) => (value === 1 ? phrase("settings.wholeModel") : plain(value));

/** Label and explanation of a knob. */
function called(key: NumberKey | ChoiceKey): Pick<Knob, "label" | "hint"> {
  return { label: phrase(`settings.knobs.${key}.label`), hint: phrase(`settings.knobs.${key}.hint`) };
}

/** Values of a choice, each with its label. */
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

/** Returns `spec` without contradictions: the quorum is at most the number of islands. */
export function settled(spec: LessonSpec): LessonSpec {
  return { ...spec, quorum: Math.min(spec.quorum, spec.islands), late: Math.min(spec.late, spec.islands - 1) };
}

/** Whether `knob` can have `value`. */
export function isAllowed(knob: Knob, value: unknown): boolean {
  if (knob.kind === "choice") return knob.options.some(([name]) => name === value);
  return (
    typeof value === "number" &&
    value >= knob.min &&
    value <= knob.max &&
    (knob.step % 1 !== 0 || Number.isInteger(value))
  );
}
