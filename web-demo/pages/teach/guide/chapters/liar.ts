import { nats } from "../../../shared/format.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import { type Chapter, measuredBy } from "../chapter.js";

const LIAR = 4;
/** Start of island 5's lies; the losses of this moment are the base of comparison. */
const LIES_MS = 8_000;
/** Time of the comparison of both runs. */
const COMPARED_MS = 24_000;

export const liar: Chapter = {
  id: "liar",
  ...chapterWords("liar"),
  minutes: 7,
  stage: { islands: 5, merge: "mean" },
  actions: [{ atMs: LIES_MS, island: LIAR, deed: "lie", factor: 1 }],
  speed: 4,
  usual: 2,
  break: { kind: "setting", label: phrase("chapters.liar.break"), change: { bounds: "off" } },
  beforeMs: COMPARED_MS,
  afterMs: COMPARED_MS,
  find: ({ heldOutBefore, live }) => {
    const bounded = measuredBy(heldOutBefore, COMPARED_MS);
    const free = bounded && measuredBy(live.heldOut, bounded.atMs);
    const lied = free && measuredBy(live.heldOut, LIES_MS);
    if (!bounded || !free || !lied) return { answer: 1, text: phrase("chapters.liar.findingNone") };
    const seconds = ({ atMs }: { readonly atMs: number }) => `${Math.round(atMs / 1_000)} s`;
    return {
      answer: free.loss >= lied.loss ? 2 : free.loss > 1.02 * bounded.loss ? 1 : 0,
      text: phrase("chapters.liar.finding", {
        lied: seconds(lied),
        was: nats(lied.loss),
        time: seconds(bounded),
        bounded: nats(bounded.loss),
        free: nats(free.loss),
      }),
    };
  },
};
