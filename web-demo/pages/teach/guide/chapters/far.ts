import { milliseconds } from "../../../shared/format.js";
import type { Chapter } from "../chapter.js";
import { perSecond } from "../measure.js";

const FAR = 4;
/** One way takes 490 ms longer. */
const FACTOR = 50;

export const far: Chapter = {
  id: "far",
  title: "Far away",
  goal: "Say why an answer that comes late is not lost, and what distance costs in lock-step.",
  minutes: 6,
  stage: { islands: 5 },
  speed: 1,
  text: [
    "All five islands lie close to the syncer. An answer that comes after its round has been merged waits there: it is the first answer to the next round on the same fragment.",
  ],
  question: "Island 5 moves so far away that a message takes half a second. What becomes of what it learns?",
  answers: [
    "Most of it comes too late and is lost",
    "It is merged nearly as before, a little later",
    "It is merged, but the others merge far less often",
  ],
  usual: 1,
  break: { kind: "deeds", label: "Send island 5 far away", deeds: [{ island: FAR, deed: "far", factor: FACTOR }] },
  beforeMs: 6_000,
  afterMs: 12_000,
  // What was under way when it left is still told of, and the first answers from far away need their time.
  skipMs: 4_000,
  find: ({ before, after }) => {
    const shareOf = ({ shares, merges }: typeof after) => (merges > 0 ? (shares[FAR] ?? 0) / merges : 0);
    const [was, is] = [shareOf(before), shareOf(after)];
    const [often, since] = [perSecond(before, before.merges), perSecond(after, after.merges)];
    const twin = perSecond(after, after.twinSteps) / Math.max(1e-9, perSecond(before, before.twinSteps));
    return {
      answer: since < 0.6 * often ? 2 : is < 0.6 * was ? 0 : 1,
      text: `Of what is merged, ${(100 * was).toFixed(0)} % was island 5's before and ${(100 * is).toFixed(0)} % is since; ${often.toFixed(1)} merges a second became ${since.toFixed(1)}. The lock-step run, which waits ${milliseconds(2 * 10 * (FACTOR - 1))} longer for it at each step, takes ${Math.round(100 * twin)} % of the steps that it took.`,
    };
  },
  moral:
    "Late is not lost: whoever is far away is merged with what it learnt one round ago, and nobody waits for it. Only those who add up every step pay the way there and back at every step.",
};
