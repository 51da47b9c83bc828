import { duration, nats } from "../../../shared/format.js";
import { bin, type Chapter, lossAt } from "../chapter.js";

/** Both runs are compared at this moment, however late somebody breaks or looks. */
const COMPARED_MS = 40_000;

export const rda: Chapter = {
  id: "rda",
  title: "Radial-directional averaging",
  stage: { islands: 8, spread: 0.1, latencyMs: 60 },
  speed: 8,
  text: [
    "Updates of different islands point in nearly unrelated directions. The plain mean of M such arrows is only 1/√M as long as each of them. RDA averages lengths and directions apart, so the merged step keeps its length.",
  ],
  question: "Eight islands merge by the plain mean instead. Where is the held-out loss after the same time?",
  answers: ["Lower: the mean is better", "The same, within 1 %", "Higher: the mean is worse"],
  break: { kind: "setting", label: "Merge by the plain mean", change: { merge: "mean" } },
  beforeMs: COMPARED_MS,
  afterMs: COMPARED_MS,
  find: ({ live, heldOutBefore }) => {
    const [radial, mean] = [lossAt(heldOutBefore, COMPARED_MS), lossAt(live.heldOut, COMPARED_MS)];
    if (radial === null || mean === null)
      return { answer: 1, text: "Nothing was measured of both at the same moment." };
    return {
      answer: bin(mean / radial, 0.99, 1.01),
      text: `After ${duration(COMPARED_MS / 1_000)}: ${nats(radial)} nats with RDA, ${nats(mean)} with the mean. One seed says little: a difference of 1 % is noise.`,
    };
  },
  moral:
    "With RDA the outer learning rate need not be tuned anew for each number of islands. In the paper it is worth 1.3 points at M = 8 and 1.8 at M = 16. The embedding is merged by the plain mean all the same.",
};
