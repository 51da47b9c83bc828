import { bytes } from "../../../shared/format.js";
import { bin, type Chapter } from "../chapter.js";
import { perSecond, SLOT_MS } from "../measure.js";

/** Slots of time that are drawn of each run: as many as let single peaks be seen. */
const SLOTS = 40;

export const fragments: Chapter = {
  id: "fragments",
  title: "Fragments",
  goal: "Tell what a link has to carry on average from what it has to carry at its peak.",
  minutes: 6,
  stage: { islands: 4, fragments: 8 },
  speed: 2,
  text: [
    "The model is cut into fragments of about the same size, here 8. Rounds take turns: each is about one fragment, and two are in flight at once. Over H steps every fragment is merged once.",
  ],
  question: "The whole model is merged at once instead, P = 1. What becomes of what is sent?",
  answers: ["As much in all, in pieces eight times as large", "Eight times as much in all", "An eighth in all"],
  usual: 0,
  break: { kind: "setting", label: "Merge the whole model at once", change: { fragments: 1 } },
  beforeMs: 8_000,
  afterMs: 16_000,
  find: ({ before, after }) => {
    const [was, is] = [perSecond(before, before.updateBytes), perSecond(after, after.updateBytes)];
    const peak = (bars: readonly number[]) => (Math.max(0, ...bars) * 1_000) / SLOT_MS;
    const strips = [
      { bars: before.sent.slice(-SLOTS), of: "8 fragments", mean: was },
      { bars: after.sent.slice(-SLOTS), of: "1 fragment", mean: is },
    ].map(({ bars, of, mean }) => ({
      bars,
      label: `${of}: peak ${bytes(peak(bars))}/s, mean ${bytes(mean)}/s`,
    }));
    return {
      strips,
      answer: [2, 0, 1][bin(is / Math.max(1e-9, was), 0.4, 2.5)] ?? 0,
      text: `Largest update: ${bytes(before.largestBytes)} with 8 fragments, ${bytes(after.largestBytes)} with 1. Sent up each second: ${bytes(was)} before, ${bytes(is)} since.`,
    };
  },
  moral:
    "Fragments spread the same bytes evenly over time. The link has to carry the average, not the peak, and a fragment's trip hides behind several steps of training.",
};
