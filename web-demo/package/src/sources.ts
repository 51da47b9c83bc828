/** The package's Worker and the location of its code. */
import type { FromWorker } from "./messages.js";
import type { Sources } from "./types.js";
import { LearnerError } from "./types.js";

/** Starts a Worker; calls `fail` if it crashes or does not load. Throws a {@link LearnerError} if none may start. */
export function start(
  sources: Sources,
  hear: (message: FromWorker) => void,
  fail: (error: LearnerError) => void,
): Worker {
  const worker = open(sources);
  worker.onmessage = (message: MessageEvent<FromWorker>) => hear(message.data);
  worker.onerror = (event) => {
    event.preventDefault();
    // Without a message the script itself did not load.
    const loaded = Boolean(event.message);
    fail(
      new LearnerError(loaded ? "worker" : "load", loaded ? event.message : "the learner's Worker could not be loaded"),
    );
  };
  return worker;
}

/** Creates the Worker. Browsers refuse at once a script of another origin. */
function open({ workerUrl }: Sources): Worker {
  try {
    // Written out, because bundlers look for exactly this pattern.
    return workerUrl
      ? new Worker(workerUrl, { type: "module" })
      : new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new LearnerError("load", `the browser starts no Worker (${why}): worker.js must be of the page's own origin`);
  }
}

/** Returns the engines' folder as an address that a Worker can use; empty for the package's own. */
export function wasmUrl(sources: Sources): string {
  return sources.wasmUrl === undefined ? "" : new URL(sources.wasmUrl, document.baseURI).href;
}
