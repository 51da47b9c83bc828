import { bytes, duration, nats } from "../../../shared/format.js";
import { bin, type Chapter, measuredBy } from "../chapter.js";
import { bytesPerUpdate } from "../measure.js";

/** Both runs are compared at this moment, or at the last before it that is still remembered. */
const COMPARED_MS = 20_000;

export const int4: Chapter = {
  id: "int4",
  title: "Four bits",
  goal: "Say what is lost when changes are rounded to a few bits, and what is only delayed.",
  minutes: 7,
  stage: { islands: 4, latencyMs: 200 },
  speed: 4,
  follow: 0,
  text: [
    "What travels is not parameters but how they changed, and each change as one of fifteen codes, −7 to 7, times a scale that a block shares. The coloured cells are the first codes of a real update. What rounding cuts off is kept, and goes out later.",
  ],
  question: "Each change is sent as one bit, its sign. What becomes of the held-out loss after the same time?",
  answers: [
    "It is clearly worse, by more than 15 %",
    "It is a little worse, by 15 % at most",
    "The model learns nothing any more",
  ],
  usual: 1,
  break: { kind: "setting", label: "Send one bit", change: { code: "int1" } },
  beforeMs: COMPARED_MS,
  afterMs: COMPARED_MS,
  find: ({ before, after, live, heldOutBefore }) => {
    const four = measuredBy(heldOutBefore, COMPARED_MS);
    const one = four && measuredBy(live.heldOut, four.atMs);
    if (!four || !one) return { answer: 1, text: "Nothing was measured of both at the same moment." };
    const first = live.heldOut[0]?.loss ?? one.loss;
    const isLost = one.loss > 0.95 * first;
    return {
      answer: isLost ? 2 : bin(one.loss / four.loss, 1.15) === 0 ? 1 : 0,
      text: `After ${duration(four.atMs / 1_000)}: ${nats(four.loss)} nats with four bits, ${nats(one.loss)} with one. An update took ${bytes(bytesPerUpdate(before))} and takes ${bytes(bytesPerUpdate(after))}; with 32 bits it would take eight times what it does with four.`,
    };
  },
  moral:
    "Rounding does not lose anything for good, it only delays: what it cuts off of one update rides in the next. In the paper, with models a thousand times as large and more, four bits cost 0.1 points of accuracy, two bits 13 and one bit 18. So four it is.",
};
