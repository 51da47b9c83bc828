import { percent } from "../../../shared/format.js";
import { bin, type Chapter } from "../chapter.js";

const SLOW = 4;

export const weights: Chapter = {
  id: "weights",
  title: "Weights",
  goal: "Say why an answer counts for as much as was trained for it.",
  minutes: 6,
  stage: { islands: 5, spread: 0, jitter: 0.05 },
  speed: 2,
  text: [
    "If every island counted the same, one that hardly trains would pull the model to where it is as hard as one that trains all the time. So an answer counts for the tokens it was trained on, and those of large batches a little more: w = tokens · tokens / steps.",
  ],
  question: "Island 5 falls to a quarter of its speed. What share of the merges is its?",
  answers: ["A fifth, like everybody's", "Less, but some", "None: it is left out"],
  usual: 1,
  break: { kind: "deeds", label: "Slow island 5 to a quarter", deeds: [{ island: SLOW, deed: "slow", factor: 4 }] },
  beforeMs: 6_000,
  // An update tells of the time since the last one of its fragment, so all of them have to come from the slow time.
  skipMs: 4_000,
  afterMs: 14_000,
  find: ({ before, after }) => {
    const share = (shares: readonly number[], merges: number) => (merges > 0 ? (shares[SLOW] ?? 0) / merges : 0);
    const [was, is] = [share(before.shares, before.merges), share(after.shares, after.merges)];
    const steps = after.steps.reduce((sum, one) => sum + one, 0);
    return {
      answer: 2 - bin(is, 0.005, 0.15),
      text: `Its share of the merges was ${percent(was)} and is ${percent(is)}. Of all steps it took ${percent((after.steps[SLOW] ?? 0) / Math.max(1, steps))}.`,
    };
  },
  moral:
    "A slow island counts for what it trained, no less and no more. Nobody has to be sorted out, and nobody drags the others back.",
};
