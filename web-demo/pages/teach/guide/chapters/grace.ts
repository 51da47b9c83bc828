import { bin, type Chapter } from "../chapter.js";
import { answersPerMerge } from "../measure.js";

export const grace: Chapter = {
  id: "grace",
  title: "Grace",
  goal: "Weigh waiting a little for late answers against going on without them.",
  minutes: 5,
  stage: { islands: 5, quorum: 1, grace: 0.8, spread: 0.3 },
  speed: 2,
  text: [
    "With a quorum of 1 a round could be merged at the first answer. Instead it waits a little longer: a grace window γ · slack, where slack is the time until the result is needed anyway. It is the ring about the lighthouse that opens, and in the lanes the shaded part of the syncer's.",
  ],
  question: "The window is taken away, γ = 0. How many islands are in a merge, on average?",
  answers: ["All five, or nearly", "Two to four", "One or two"],
  usual: 1,
  break: { kind: "setting", label: "Take the grace away", change: { grace: 0 } },
  beforeMs: 6_000,
  afterMs: 8_000,
  find: ({ before, after }) => {
    const [was, is] = [answersPerMerge(before), answersPerMerge(after)];
    return {
      answer: 2 - bin(is, 2, 4.25),
      text: `${was.toFixed(1)} answers in a merge with grace, ${is.toFixed(1)} without; ${after.early} answers came after their round. They are not lost: each counts in the next round on its fragment.`,
    };
  },
  moral:
    "In the paper (Table 5, unequal speeds) the model scored 51.4 on average in tests with text under K = 1 without grace, and 55.3 with it. Waiting for everybody came to 54.4, and cost a sixth of the goodput.",
};
