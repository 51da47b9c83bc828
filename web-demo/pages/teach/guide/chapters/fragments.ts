import { bytes } from "../../../shared/format.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import { bin, type Chapter } from "../chapter.js";
import { perSecond, SLOT_MS } from "../measure.js";

/** Number of drawn slots of each run: few enough to show single peaks. */
const SLOTS = 40;

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
    const peak = (bars: readonly number[]) => (Math.max(0, ...bars) * 1_000) / SLOT_MS;
    const [parts, whole] = [before.sent.slice(-SLOTS), after.sent.slice(-SLOTS)];
    return {
      strips: [
        { bars: parts, label: phrase("chapters.fragments.strip", { peak: bytes(peak(parts)), mean: bytes(was) }) },
        { bars: whole, label: phrase("chapters.fragments.stripWhole", { peak: bytes(peak(whole)), mean: bytes(is) }) },
      ],
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
