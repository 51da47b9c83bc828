import { bin, type Chapter } from "../chapter.js";
import { perSecond } from "../measure.js";

const FIRST = [0, 1, 2, 3];

export const scavenging: Chapter = {
  id: "scavenging",
  title: "Scavenging",
  goal: "Judge what machines are worth that may leave at any time.",
  minutes: 6,
  stage: { islands: 8, late: 4, lateMs: 3_000, spread: 0.1 },
  speed: 2,
  text: [
    "Islands 1 to 4 are here for good. Four more are machines that are free for a while: they come after three seconds.",
  ],
  question: "The four guests are taken away without a word. What do islands 1 to 4 lose?",
  answers: [
    "They stop for a moment, to agree on who is left",
    "They fall back to where they were before the guests came",
    "Nothing",
  ],
  usual: 2,
  break: {
    kind: "deeds",
    label: "Take islands 5 to 8 away",
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
      text: `Islands 1 to 4 took ${was.toFixed(1)} steps a second with the guests and ${is.toFixed(1)} without. The guests gave ${guests} steps, a share of ${Math.round((100 * guests) / Math.max(1, all(before.steps)))} % of all; what of it was merged stays in the model.`,
    };
  },
  moral:
    "Compute that comes and goes is worth having: in the paper twice the islands for half of the tokens took a quarter off the time. Lock-step had to load and regroup, and gained nothing.",
};
