import { duration, milliseconds } from "../../../shared/format.js";
import { bin, type Chapter } from "../chapter.js";
import { perSecond, seconds } from "../measure.js";

export const quorum: Chapter = {
  id: "quorum",
  title: "Quorum",
  goal: "Say what a quorum is, and what one slow island costs if the quorum is everybody.",
  minutes: 6,
  stage: { islands: 5, quorum: 5, grace: 0, spread: 0.1 },
  speed: 2,
  text: [
    "The syncer asks all islands for one fragment's progress. A round is merged once K of them have answered, its quorum. Here K is 5 of 5: everybody is waited for.",
    "Nobody's training waits for a round, only the merge does.",
  ],
  question: "Island 5 becomes twenty times slower. What becomes of the merges?",
  answers: ["They come as often as before", "They come less often", "There are none any more"],
  usual: 1,
  break: { kind: "deeds", label: "Slow island 5 to a twentieth", deeds: [{ island: 4, deed: "slow", factor: 20 }] },
  beforeMs: 5_000,
  afterMs: 16_000,
  find: ({ before, after }) => {
    const [was, is] = [perSecond(before, before.merges), perSecond(after, after.merges)];
    const took =
      after.merges > 0 ? `; each took ${milliseconds(after.collectMs / after.merges)} from launch to merge` : "";
    return {
      answer: is >= 0.8 * was ? 0 : bin(after.merges, 1) === 0 ? 2 : 1,
      text: `${was.toFixed(2)} merges a second before, ${is.toFixed(2)} in the ${duration(seconds(after))} since${took}. Training went on meanwhile: ${after.steps.slice(0, 4).join(", ")} steps on islands 1 to 4.`,
    };
  },
  moral:
    "A quorum of all puts the slowest in charge of the merges. The paper uses K = 1: whoever answers first is enough to go on. Set K to 1 below and slow it again.",
};
