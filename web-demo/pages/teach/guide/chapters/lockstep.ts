import { count, duration, plural } from "../../../shared/format.js";
import { bin, type Chapter } from "../chapter.js";
import { perSecond, seconds } from "../measure.js";

export const lockstep: Chapter = {
  id: "lockstep",
  title: "Why lock-step fails",
  goal: "Say why a barrier at every step makes each machine a condition for all others.",
  minutes: 6,
  stage: {},
  speed: 1,
  text: [
    "Five islands train one model, twice. Decoupled, each takes its own steps and sends what it learnt now and then. In lock-step, as the convoy at the lower edge does, all five add up their gradients at every single step.",
  ],
  question: "Island 3 dies. What does the lock-step run do?",
  answers: ["It goes on at four fifths of its pace", "It goes on, somewhat slower than that", "It stands still"],
  usual: 2,
  break: { kind: "deeds", label: "Kill island 3", deeds: [{ island: 2, deed: "kill" }] },
  beforeMs: 3_000,
  afterMs: 8_000,
  find: ({ before, after }) => {
    const ours = perSecond(after, after.tokens) / Math.max(1e-9, perSecond(before, before.tokens));
    const twin = perSecond(after, after.twinSteps) / Math.max(1e-9, perSecond(before, before.twinSteps));
    return {
      answer: 2 - bin(twin, 0.2, 0.7),
      text: `In the ${duration(seconds(after))} since, the four others trained ${count(after.tokens)} tokens, ${Math.round(ours * 100)} % of the pace before. The lock-step run took ${plural(after.twinSteps, "step")}, ${Math.round(twin * 100)} % of its pace.`,
    };
  },
  moral:
    "A barrier at each step makes every island a condition for all others, and with a million chips something breaks every half minute. This is the plain kind, which waits. An elastic one starts again with four, and loses the time of each restart: choose it in the settings, under Islands.",
  more: { label: "Both, on a million chips", href: "./scale.html" },
};
