import { bytes, duration, nats } from "../../../shared/format.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import { bin, type Chapter, measuredBy } from "../chapter.js";
import { bytesPerUpdate } from "../measure.js";

/** Time of the comparison; the last stored measurement before it counts. */
const COMPARED_MS = 20_000;

export const int4: Chapter = {
  id: "int4",
  ...chapterWords("int4"),
  minutes: 7,
  stage: { islands: 4, latencyMs: 200 },
  speed: 4,
  follow: 0,
  usual: 1,
  break: { kind: "setting", label: phrase("chapters.int4.break"), change: { code: "int1" } },
  beforeMs: COMPARED_MS,
  afterMs: COMPARED_MS,
  find: ({ before, after, live, heldOutBefore }) => {
    const four = measuredBy(heldOutBefore, COMPARED_MS);
    const one = four && measuredBy(live.heldOut, four.atMs);
    if (!four || !one) return { answer: 1, text: phrase("chapters.int4.findingNone") };
    const first = live.heldOut[0]?.loss ?? one.loss;
    const isLost = one.loss > 0.95 * first;
    return {
      answer: isLost ? 2 : bin(one.loss / four.loss, 1.15) === 0 ? 1 : 0,
      text: phrase("chapters.int4.finding", {
        time: duration(four.atMs / 1_000),
        four: nats(four.loss),
        one: nats(one.loss),
        was: bytes(bytesPerUpdate(before)),
        is: bytes(bytesPerUpdate(after)),
      }),
    };
  },
};
