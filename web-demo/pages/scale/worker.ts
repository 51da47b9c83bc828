/** Computes goodput and bandwidth in slices; a newer job replaces an older one. */
import init, { goodput, linkGbitPerS } from "../../lesson/dist/lesson.js";
import type { Answers, Job, Question } from "./messages.js";

const SLICE_MS = 30;

const scope = self as unknown as {
  onmessage: (message: MessageEvent<Job>) => void;
  postMessage(message: Answers): void;
};
const turns = new MessageChannel();
const ready = init();

let job: Job | undefined;
let next = 0;

function answer(question: Question): readonly [number, ReturnType<typeof goodput> | null] {
  if (question.of === "link") return [linkGbitPerS(question.spec), null];
  const view = goodput(question.spec);
  return [view.goodput, view];
}

turns.port1.onmessage = () => {
  if (!job) return;
  const answers: (readonly [number, number, ReturnType<typeof goodput> | null])[] = [];
  const until = performance.now() + SLICE_MS;
  try {
    while (next < job.questions.length && performance.now() < until) {
      answers.push([next, ...answer(job.questions[next]!)]);
      next += 1;
    }
  } catch (error) {
    // Lets a newer job begin.
    job = undefined;
    return scope.postMessage({ is: "failed", why: String(error) });
  }
  const done = next >= job.questions.length;
  scope.postMessage({ is: "answers", job: job.job, answers, done });
  if (!done) turns.port2.postMessage(null);
};

scope.onmessage = ({ data }) => {
  ready.then(
    () => {
      const idle = !job || next >= job.questions.length;
      [job, next] = [data, 0];
      if (idle) turns.port2.postMessage(null);
    },
    (error: unknown) => scope.postMessage({ is: "failed", why: String(error) }),
  );
};
