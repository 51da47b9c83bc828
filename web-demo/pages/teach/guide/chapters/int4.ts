import { bytes } from "../../../shared/format.js";
import { bin, type Chapter } from "../chapter.js";
import { bytesPerUpdate } from "../measure.js";

export const int4: Chapter = {
  id: "int4",
  title: "Four bits",
  stage: { islands: 4, latencyMs: 200 },
  speed: 0.5,
  follow: 0,
  text: [
    "What travels is not parameters but how they changed, and each change as one of fifteen codes, −7 to 7, times a scale that a block shares. The coloured cells are the first codes of a real update. What rounding cuts off is kept, and goes out later.",
  ],
  question: "Updates are sent as they are, with 32 bits. How much larger are they?",
  answers: ["About twice", "About four times", "About eight times"],
  break: { kind: "setting", label: "Send 32 bits", change: { code: "f32" } },
  beforeMs: 2_500,
  afterMs: 4_000,
  find: ({ before, after }) => {
    const [was, is] = [bytesPerUpdate(before), bytesPerUpdate(after)];
    const ratio = is / Math.max(1e-9, was);
    return {
      answer: bin(ratio, 2.8, 5.6),
      text: `An update took ${bytes(was)} with 4 bits and takes ${bytes(is)} with 32: ${ratio.toFixed(1)} times as much.`,
    };
  },
  moral:
    "In the paper four bits cost 0.1 points of accuracy, two bits 13, one bit 18. Choose 1 bit below: this tiny model loses little, for what rounding takes away goes out later.",
};
