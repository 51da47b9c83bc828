import { bin, type Chapter } from "../chapter.js";
import { lengthOfMerged } from "../measure.js";

export const rda: Chapter = {
  id: "rda",
  title: "Radial-directional averaging",
  goal: "See that the mean of arrows in different directions is short, and what can be done about it.",
  minutes: 7,
  stage: { islands: 8, spread: 0.1, latencyMs: 60 },
  speed: 4,
  text: [
    "Think of what an island learnt as an arrow: a direction in which the parameters moved, and how far. Islands read different text, so their arrows point in different directions. RDA averages directions and lengths apart, and so does the merged step. Only the embedding is always merged by the plain mean.",
  ],
  question: "Eight islands merge by the plain mean of their arrows instead. How long is the merged step?",
  answers: ["Longer than before", "As long as before", "Clearly shorter"],
  usual: 2,
  break: { kind: "setting", label: "Merge by the plain mean", change: { merge: "mean" } },
  beforeMs: 12_000,
  afterMs: 12_000,
  find: ({ before, after }) => {
    const [radial, mean] = [lengthOfMerged(before), lengthOfMerged(after)];
    if (radial === null || mean === null || radial <= 0)
      return { answer: 1, text: "Nothing was merged of several islands in one of the two runs." };
    return {
      answer: 2 - bin(mean / radial, 0.9, 1.1),
      text: `The merged step was ${Math.round(100 * radial)} % as long as an island's with RDA, and is ${Math.round(100 * mean)} % with the mean. Eight arrows with nothing in common would leave 35 %, 1/√8.`,
      arrows: [
        { label: "an island's", length: 1 },
        { label: "RDA", length: radial },
        { label: "the mean", length: mean },
      ],
    };
  },
  moral:
    "What the islands disagree in cancels out, the more of them the more. With RDA the outer learning rate need not be tuned anew for each number of islands; in the paper that is worth 1.3 points of accuracy with 8 of them, and 1.8 with 16.",
};
