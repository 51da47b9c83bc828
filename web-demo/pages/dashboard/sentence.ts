/** The run's activity, in one sentence. */
import type { LearnersByState, ServerStatus } from "../shared/api.js";
import type { LinkState } from "../shared/events.js";
import { plural } from "../shared/format.js";
import { unreachable } from "../shared/reach.js";
import type { Sentence } from "../shared/sentence.js";

/** Time after which a server with a lost connection counts as silent, in seconds. */
const ANEW_S = 10;

/** Returns the sentence for a run with this status, if known, this connection, and this age of the last news. */
export function sentenceOf(status: ServerStatus | null, link: LinkState, newsAgeS: number | null): Sentence {
  if (link.link === "lost" && status?.finishing) {
    return { tone: "done", text: "The run is complete, and its syncer has stopped." };
  }
  const isUnanswered = link.link === "silent" || (link.link === "lost" && newsAgeS !== null && newsAgeS >= ANEW_S);
  const then = { offline: "This page goes on when you are back.", silent: "This page tries again." };
  const apart = unreachable(isUnanswered ? 1_000 * (newsAgeS ?? 0) : 0, then);
  if (apart) return apart;
  if (link.link === "lost") {
    const untold = link.retryS > 0 ? ` in ${link.retryS} s.` : " now.";
    return { tone: "trouble", text: "Connection to the syncer lost, trying again", untold };
  }
  if (!status) return { tone: "waiting", text: "Asking the syncer how the run goes…" };
  if (status.finished) return { tone: "done", text: "The run is complete: this is its result." };
  if (status.disk.tapeFault !== null) {
    const why = "The run stands still: the disk of its syncer accepts no writes";
    return { tone: "trouble", text: `${why} (${status.disk.tapeFault}). It continues by itself once the disk does.` };
  }
  if (status.disk.servicesFault !== null) {
    const why = `Nothing is merged, because ${status.disk.servicesFault}`;
    return { tone: "trouble", text: `${why}. Learners train on, and the run continues by itself once it does.` };
  }
  if (status.finishing) return { tone: "going", text: "Finishing: the last progress is being collected." };
  if (status.paused) {
    const waiting = status.connected > 0 ? `: ${plural(status.connected, "learner waits", "learners wait")}` : "";
    return { tone: "held", text: `Paused by its owner${waiting}.` };
  }
  return sentenceOfLearners(status);
}

function sentenceOfLearners(status: ServerStatus): Sentence {
  const { learnersByState: by, connected } = status;
  if (status.learnersTotal === 0) return { tone: "waiting", text: "Waiting for the first learner: share the link." };
  if (connected === 0) {
    const all = plural(status.learnersTotal, "learner", "learners");
    return { tone: "waiting", text: `Waiting for learners: ${all} came so far, none is connected now.` };
  }
  if (by.training === 0) return { tone: "waiting", text: `No learner trains now: ${others(by).join(", ")}.` };
  return { tone: "going", text: `Training: ${[plural(by.training, "learner"), ...others(by)].join(", ")}.` };
}

/** Counts connected learners that do not train, by state. */
function others(by: LearnersByState): string[] {
  const words: readonly (readonly [number, string])[] = [
    [by.joining, "joining"],
    [by.paused, "paused by their owners"],
    [by.hidden, "in hidden tabs"],
    [by.starved, "without data to train on"],
    [by.held, "held"],
  ];
  return words.filter(([some]) => some > 0).map(([some, what]) => `${some} ${what}`);
}
