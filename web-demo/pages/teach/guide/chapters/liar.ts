import { nats } from "../../../shared/format.js";
import { type Chapter, measuredBy } from "../chapter.js";

const LIAR = 4;
/** From then on island 5 lies, and the losses of this moment are what is compared with. */
const LIES_MS = 8_000;
/** Both runs are compared at this moment. */
const COMPARED_MS = 24_000;

export const liar: Chapter = {
  id: "liar",
  title: "A liar",
  goal: "Say what a bound of influence is for, and what it does not stop.",
  minutes: 7,
  stage: { islands: 5, merge: "mean" },
  actions: [{ atMs: LIES_MS, island: LIAR, deed: "lie", factor: 1 }],
  speed: 4,
  text: [
    "From 8 s on island 5 lies: it sends the opposite of what it learnt, five times as large. Nothing of it is refused, so the syncer bounds what anybody can do: an update counts up to three times the usual length, and an island at most twice the mean share.",
  ],
  question: "The bounds are taken away. What does one liar of five do to the model?",
  answers: [
    "Hardly anything: four honest islands outvote it",
    "The model learns on, only more slowly",
    "The model forgets: it becomes worse from then on",
  ],
  usual: 2,
  break: { kind: "setting", label: "Take the bounds away", change: { bounds: "off" } },
  beforeMs: COMPARED_MS,
  afterMs: COMPARED_MS,
  find: ({ heldOutBefore, live }) => {
    const bounded = measuredBy(heldOutBefore, COMPARED_MS);
    const free = bounded && measuredBy(live.heldOut, bounded.atMs);
    const lied = free && measuredBy(live.heldOut, LIES_MS);
    if (!bounded || !free || !lied) return { answer: 1, text: "Nothing was measured of both at the same moment." };
    const seconds = ({ atMs }: { readonly atMs: number }) => `${Math.round(atMs / 1_000)} s`;
    return {
      answer: free.loss >= lied.loss ? 2 : free.loss > 1.02 * bounded.loss ? 1 : 0,
      text: `When the lies began, at ${seconds(lied)}, the loss was ${nats(lied.loss)}. At ${seconds(bounded)} it is ${nats(bounded.loss)} with the bounds and ${nats(free.loss)} without them.`,
    };
  },
  moral:
    "A bound need not find the liar: it only makes each one weak. It does not stop several that are patient: set the bounds back, let island 4 lie too, and two of five spoil the model. In lock-step a single one does, for there everything is added up as it comes. So invite people whom you trust.",
};
