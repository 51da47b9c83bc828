import { milliseconds, nats } from "../../../shared/format.js";
import type { Chapter } from "../chapter.js";
import { perSecond } from "../measure.js";

const GONE = 1;

export const rejoin: Chapter = {
  id: "rejoin",
  title: "Coming back",
  goal: "Follow an island that comes back with nothing, and say who waits for it.",
  minutes: 5,
  stage: { islands: 5 },
  actions: [{ atMs: 2_000, island: GONE, deed: "kill", factor: 1 }],
  speed: 1,
  text: ["Island 2 dies two seconds after the start, and everything in its memory with it: parameters and optimiser."],
  question: "It starts again, with nothing. What do the others do?",
  answers: ["They wait until it has caught up", "They go on as before", "They are pulled back by its fresh parameters"],
  usual: 1,
  break: { kind: "deeds", label: "Start island 2 again", deeds: [{ island: GONE, deed: "restart" }] },
  beforeMs: 5_000,
  afterMs: 9_000,
  find: ({ before, after }) => {
    const others = (steps: readonly number[]) => steps.reduce((sum, one, at) => sum + (at === GONE ? 0 : one), 0);
    const [was, is] = [perSecond(before, others(before.steps)), perSecond(after, others(after.steps))];
    const [live, merged] = [after.liveMs[GONE], after.mergedMs[GONE]];
    const back =
      live == null
        ? "It is not back yet."
        : `It had the model after ${milliseconds(live - after.fromMs)}${merged == null ? "" : ` and was in a merge after ${milliseconds(merged - after.fromMs)}`}.`;
    const pulled = (after.lossUntil ?? 0) > 1.02 * (after.lossFrom ?? Infinity);
    return {
      answer: pulled ? 2 : is < 0.85 * was ? 0 : 1,
      text: `${back} The others took ${was.toFixed(1)} steps a second before and ${is.toFixed(1)} since; held-out loss went from ${nats(after.lossFrom)} to ${nats(after.lossUntil)}.`,
    };
  },
  moral:
    "Only the syncer makes versions. Whoever joins fetches the newest one and is merged from its next answers on. A newcomer overwrites nobody.",
};
