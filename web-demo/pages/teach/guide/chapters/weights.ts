import { percent } from "../../../shared/format.js";
import { bin, type Chapter } from "../chapter.js";

const SLOW = 4;

export const weights: Chapter = {
  id: "weights",
  title: "Weights",
  stage: { islands: 5, spread: 0, jitter: 0.05 },
  speed: 2,
  text: [
    "Islands differ. Each answer is weighted by w = tokens · tokens / steps: by how much was trained since the last merge of that fragment, times how many tokens each step had.",
  ],
  question: "Island 5 falls to a quarter of its speed. What share of the merges is its?",
  answers: ["A fifth, like everybody's", "Less, but some", "None: it is left out"],
  break: { kind: "deeds", label: "Slow island 5 to a quarter", deeds: [{ island: SLOW, deed: "slow", factor: 4 }] },
  beforeMs: 6_000,
  afterMs: 14_000,
  find: ({ before, after }) => {
    const share = (shares: readonly number[], merges: number) => (merges > 0 ? (shares[SLOW] ?? 0) / merges : 0);
    const [was, is] = [share(before.shares, before.merges), share(after.shares, after.merges)];
    const others = after.steps.filter((_, at) => at !== SLOW);
    const mean = others.reduce((sum, one) => sum + one, 0) / Math.max(1, others.length);
    return {
      answer: 2 - bin(is, 0.005, 0.15),
      text: `Its share of the merges was ${percent(was)} and is ${percent(is)}. It took ${after.steps[SLOW] ?? 0} steps where the others took ${mean.toFixed(0)} each.`,
    };
  },
  moral:
    "A slow island counts for what it trained, no less and no more. Nobody has to be sorted out, and nobody drags the others back.",
};
