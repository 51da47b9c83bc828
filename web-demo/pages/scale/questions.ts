/** Questions to compute for the current settings. */

import type { LinkNeed } from "../shared/lesson.js";
import { phrase } from "../words/phrase.js";
import type { Question } from "./messages.js";
import { ROWS } from "./paper.js";
import type { Settings } from "./settings.js";

const SEED = 1;

/** Numbers of chips at which goodput is computed. */
const CHIPS = [10, 20, 40, 80, 150, 220, 300, 420, 600, 850, 1_200, 1_700, 2_400, 3_500, 5_000].map(
  (one) => one * 1_000,
);
export const UTILISATIONS = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99] as const;

/** One way to train over a link. */
export interface Method {
  readonly label: string;
  readonly method: LinkNeed["method"];
  /** Bits, if different from the setting. */
  readonly bits?: number;
}

export const METHODS: readonly Method[] = [
  { label: phrase("scale.links.parallel"), method: "dataParallel" },
  { label: phrase("scale.links.diloco"), method: "diloco" },
  { label: phrase("scale.links.streaming"), method: "streaming" },
  { label: phrase("scale.links.decoupled"), method: "decoupled" },
  { label: phrase("scale.links.decoupled4"), method: "decoupled", bits: 4 },
];

/** Bits per value that a method sends with these settings. */
export function bitsOf(method: Method, settings: Settings): number {
  return method.bits ?? settings.bits;
}

/** Index of the current setting's own line, after the other goodput lines. */
export const SET_LINE = ROWS.length;

/** Returns all questions, most visible first. */
export function questionsOf(settings: Settings): Question[] {
  const goodput = (line: number, learners: number, elastic: boolean, chips: number): Question => ({
    of: "goodput",
    line,
    x: chips,
    spec: { chips, mtbiYears: settings.mtbiYears, learners, elastic, seed: SEED },
  });
  const link = (line: number, utilisation: number): Question => {
    const { paramsBillion, stepS, dataCentres, syncEvery, fragments, roundsInFlight } = settings;
    const { method } = METHODS[line]!;
    return {
      of: "link",
      line,
      x: utilisation,
      spec: {
        paramsBillion,
        stepS,
        dataCentres,
        syncEvery,
        fragments,
        roundsInFlight,
        method,
        bits: bitsOf(METHODS[line]!, settings),
        utilisation,
      },
    };
  };
  const here = [
    goodput(SET_LINE, settings.learners, true, settings.chips),
    goodput(SET_LINE + 1, 1, true, settings.chips),
  ];
  const lines = ROWS.flatMap(({ learners, elastic }, line) =>
    CHIPS.map((chips) => goodput(line, learners, elastic, chips)),
  );
  const linesOfLinks = METHODS.flatMap((_, line) =>
    UTILISATIONS.filter((one) => one !== settings.utilisation).map((one) => link(line, one)),
  );
  return [...here, ...METHODS.map((_, line) => link(line, settings.utilisation)), ...lines, ...linesOfLinks];
}
