import { bytes } from "../../../shared/format.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import { bin, type Chapter } from "../chapter.js";
import { perSecond } from "../measure.js";

export const fragments: Chapter = {
  id: "fragments",
  ...chapterWords("fragments"),
  minutes: 6,
  stage: { islands: 4, fragments: 8 },
  speed: 2,
  usual: 0,
  break: { kind: "setting", label: phrase("chapters.fragments.break"), change: { fragments: 1 } },
  beforeMs: 8_000,
  afterMs: 16_000,
  find: ({ before, after }) => {
    const [was, is] = [perSecond(before, before.updateBytes), perSecond(after, after.updateBytes)];
    return {
      answer: [2, 0, 1][bin(is / Math.max(1e-9, was), 0.4, 2.5)] ?? 0,
      text: phrase("chapters.fragments.finding", {
        largestWas: bytes(before.largestBytes),
        largestIs: bytes(after.largestBytes),
        was: bytes(was),
        is: bytes(is),
      }),
    };
  },
};
