import { chapterWords, phrase } from "../../../words/phrase.js";
import { bin, type Chapter } from "../chapter.js";
import { lengthOfMerged } from "../measure.js";

export const rda: Chapter = {
  id: "rda",
  ...chapterWords("rda"),
  minutes: 7,
  stage: { islands: 8, spread: 0.1, latencyMs: 60 },
  speed: 4,
  usual: 2,
  break: { kind: "setting", label: phrase("chapters.rda.break"), change: { merge: "mean" } },
  beforeMs: 12_000,
  afterMs: 12_000,
  find: ({ before, after }) => {
    const [radial, mean] = [lengthOfMerged(before), lengthOfMerged(after)];
    if (radial === null || mean === null || radial <= 0) return { answer: 1, text: phrase("chapters.rda.findingNone") };
    return {
      answer: 2 - bin(mean / radial, 0.9, 1.1),
      text: phrase("chapters.rda.finding", { radial: Math.round(100 * radial), mean: Math.round(100 * mean) }),
      arrows: [
        { label: phrase("chapters.rda.arrowIsland"), length: 1 },
        { label: phrase("chapters.rda.arrowRadial"), length: radial },
        { label: phrase("chapters.rda.arrowMean"), length: mean },
      ],
    };
  },
};
