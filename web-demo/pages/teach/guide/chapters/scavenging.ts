import { fixed } from "../../../shared/language.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import { bin, type Chapter } from "../chapter.js";
import { perSecond } from "../measure.js";

const FIRST = [0, 1, 2, 3];

export const scavenging: Chapter = {
  id: "scavenging",
  ...chapterWords("scavenging"),
  minutes: 6,
  stage: { islands: 8, late: 4, lateMs: 3_000, spread: 0.1 },
  speed: 2,
  usual: 2,
  break: {
    kind: "deeds",
    label: phrase("chapters.scavenging.break"),
    deeds: [4, 5, 6, 7].map((island) => ({ island, deed: "kill" as const })),
  },
  beforeMs: 9_000,
  afterMs: 8_000,
  find: ({ before, after }) => {
    const first = (steps: readonly number[]) => FIRST.reduce((sum, at) => sum + (steps[at] ?? 0), 0);
    const all = (steps: readonly number[]) => steps.reduce((sum, one) => sum + one, 0);
    const [was, is] = [perSecond(before, first(before.steps)), perSecond(after, first(after.steps))];
    const risen = (after.lossUntil ?? 0) > 1.02 * (after.lossFrom ?? Infinity);
    const guests = all(before.steps) - first(before.steps);
    return {
      answer: risen ? 1 : bin(is, 0.85 * was) === 0 ? 0 : 2,
      text: phrase("chapters.scavenging.finding", {
        was: fixed(was, 1),
        is: fixed(is, 1),
        guests,
        share: Math.round((100 * guests) / Math.max(1, all(before.steps))),
      }),
    };
  },
};
