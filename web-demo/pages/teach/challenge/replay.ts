/** Replays a challenge run in a separate Worker at full speed, to compute its result. */

import type { Frame } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import { Goodput } from "../goodput.js";
import type { Plan } from "../guide/own.js";
import type { Ask, Tell } from "../run/messages.js";
import { END_MS, type Result, resultOf } from "./challenge.js";

/** Resolves with the result of the run; `reached` gets its progress, in virtual milliseconds. */
export function replay({ spec, actions, changes }: Plan, reached: (nowMs: number) => void): Promise<Result> {
  const worker = new Worker(new URL("../run/worker.ts", import.meta.url), { type: "module", name: "replay" });
  const goodput = new Goodput(spec);
  const ask = (what: Ask) => worker.postMessage(what);
  const result = new Promise<Result>((came, failed) => {
    worker.onmessage = ({ data }: MessageEvent<Tell>) => {
      if (data.tell === "ready") {
        ask({ ask: "start", run: 1, spec, actions, changes });
        ask({ ask: "advance", toMs: END_MS });
      } else if (data.tell === "failed") failed(new Error(data.why));
      else if (data.tell === "frame") {
        const frame = data.frame as Frame;
        goodput.take(frame);
        reached(frame.nowMs);
        const found = resultOf(frame, goodput.ours);
        if (found) came(found);
        else if (frame.nowMs >= END_MS) failed(new Error(phrase("failures.unmeasured")));
      }
    };
    worker.onerror = (event) => {
      event.preventDefault();
      failed(new Error(event.message || phrase("failures.worker")));
    };
    ask({ ask: "be", kind: "lesson" });
  });
  return result.finally(() => worker.terminate());
}
