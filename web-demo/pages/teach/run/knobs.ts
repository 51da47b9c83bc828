/** Everything that can be set: names, ranges and words, for the sliders and for links alike. */

import { bytes, milliseconds, percent } from "../../shared/format.js";
import type { LessonSpec } from "../../shared/lesson.js";

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

const plain = String;
const ofFragments = (value: number) => (value === 1 ? "1, the whole model" : String(value));

export const GROUPS: readonly Group[] = [
  {
    title: "Rounds",
    knobs: [
      {
        kind: "slider",
        key: "islands",
        short: "m",
        label: "Islands, M",
        hint: "Each trains by itself.",
        min: 1,
        max: 8,
        step: 1,
        say: plain,
      },
      {
        kind: "slider",
        key: "quorum",
        short: "k",
        label: "Quorum, K",
        hint: "Answers that a round waits for.",
        min: 1,
        max: 8,
        step: 1,
        say: plain,
      },
      {
        kind: "slider",
        key: "grace",
        short: "g",
        label: "Grace, γ",
        hint: "Share of the slack that a round waits on, after its quorum.",
        min: 0,
        max: 1,
        step: 0.05,
        say: percent,
      },
      {
        kind: "slider",
        key: "syncEvery",
        short: "h",
        label: "Steps between merges of a fragment, H",
        hint: "More steps: fewer bytes, staler islands.",
        min: 4,
        max: 96,
        step: 4,
        say: plain,
      },
      {
        kind: "slider",
        key: "fragments",
        short: "p",
        label: "Fragments, P",
        hint: "Parts that the model is merged in.",
        min: 1,
        max: 12,
        step: 1,
        say: ofFragments,
      },
      {
        kind: "slider",
        key: "roundsInFlight",
        short: "f",
        label: "Rounds in flight, τ",
        hint: "On different fragments.",
        min: 1,
        max: 4,
        step: 1,
        say: plain,
      },
    ],
  },
  {
    title: "Updates",
    knobs: [
      {
        kind: "choice",
        key: "code",
        short: "c",
        label: "Bits of a parameter",
        hint: "Both ways.",
        options: [
          ["f32", "32, as it is"],
          ["int4", "4, uniform"],
          ["e3m0", "4, powers of two"],
          ["int2", "2"],
          ["int1", "1"],
        ],
      },
      {
        kind: "choice",
        key: "merge",
        short: "r",
        label: "Merge",
        hint: "Of the islands' updates.",
        options: [
          ["radial", "radial-directional (RDA)"],
          ["mean", "plain weighted mean"],
        ],
      },
      {
        kind: "choice",
        key: "bounds",
        short: "bo",
        label: "Influence of one island",
        hint: "How far one update can pull a merge.",
        options: [
          ["on", "bounded"],
          ["off", "without bound"],
        ],
      },
      {
        kind: "choice",
        key: "apply",
        short: "y",
        label: "Apply",
        hint: "What an island does with a merged fragment.",
        options: [
          ["keep", "keep own progress"],
          ["keepResidue", "and what rounding cut off"],
          ["overwrite", "overwrite"],
          ["blend", "half and half"],
        ],
      },
    ],
  },
  {
    title: "Islands",
    knobs: [
      {
        kind: "slider",
        key: "stepMs",
        short: "ms",
        label: "Step of the fastest",
        hint: "In virtual time.",
        min: 50,
        max: 1_000,
        step: 10,
        say: milliseconds,
      },
      {
        kind: "slider",
        key: "spread",
        short: "sp",
        label: "Spread",
        hint: "So much longer do steps of the slowest take.",
        min: 0,
        max: 1,
        step: 0.02,
        say: percent,
      },
      {
        kind: "slider",
        key: "jitter",
        short: "j",
        label: "Jitter",
        hint: "How much steps of one island differ.",
        min: 0,
        max: 1,
        step: 0.05,
        say: percent,
      },
      {
        kind: "slider",
        key: "late",
        short: "n",
        label: "Come later",
        hint: "So many islands are not there at first.",
        min: 0,
        max: 7,
        step: 1,
        say: plain,
      },
      {
        kind: "slider",
        key: "lateMs",
        short: "nt",
        label: "And come at",
        hint: "In virtual time.",
        min: 0,
        max: 60_000,
        step: 500,
        say: milliseconds,
      },
      {
        kind: "choice",
        key: "lockstep",
        short: "ls",
        label: "Lock-step, beside it",
        hint: "What it does when an island is gone.",
        options: [
          ["waits", "waits for it"],
          ["elastic", "goes on without it after 3 s"],
        ],
      },
    ],
  },
  {
    title: "Link of each island",
    knobs: [
      {
        kind: "slider",
        key: "latencyMs",
        short: "la",
        label: "Latency, one way",
        hint: "",
        min: 0,
        max: 1_000,
        step: 10,
        say: milliseconds,
      },
      {
        kind: "slider",
        key: "kilobytesPerS",
        short: "kb",
        label: "Bandwidth",
        hint: "Each way.",
        min: 0,
        max: 1_000,
        step: 5,
        say: (value) => (value === 0 ? "unlimited" : `${bytes(value * 1_000)}/s`),
      },
      {
        kind: "slider",
        key: "loss",
        short: "lo",
        label: "Messages sent again",
        hint: "A message that is lost costs the time to send it again.",
        min: 0,
        max: 0.5,
        step: 0.01,
        say: percent,
      },
      {
        kind: "slider",
        key: "seed",
        short: "s",
        label: "Seed",
        hint: "One seed, one history.",
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
