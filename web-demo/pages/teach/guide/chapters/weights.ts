import { percent } from "../../../shared/format.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import { bin, type Chapter } from "../chapter.js";

const SLOW = 4;

export const weights: Chapter = {
  id: "weights",
  ...chapterWords("weights"),
  minutes: 6,
  stage: { islands: 5, spread: 0, jitter: 0.05 },
  speed: 2,
  usual: 1,
  break: { kind: "deeds", label: phrase("chapters.weights.break"), deeds: [{ island: SLOW, deed: "slow", factor: 4 }] },
  beforeMs: 6_000,
  // An update covers the time since the last one of its fragment, so all updates must fall wholly into the slow time.
  skipMs: 4_000,
  afterMs: 14_000,
  find: ({ before, after }) => {
    const share = (shares: readonly number[], merges: number) => (merges > 0 ? (shares[SLOW] ?? 0) / merges : 0);
    const [was, is] = [share(before.shares, before.merges), share(after.shares, after.merges)];
    const steps = after.steps.reduce((sum, one) => sum + one, 0);
    return {
      answer: 2 - bin(is, 0.005, 0.15),
      text: phrase("chapters.weights.finding", {
        was: percent(was),
        is: percent(is),
        steps: percent((after.steps[SLOW] ?? 0) / Math.max(1, steps)),
      }),
    };
  },
};
