/** The figures at the top. */
import type { SeriesView, ServerStatus } from "../shared/api.js";
import { find, setText } from "../shared/dom.js";
import { ago, bytes, count, duration, nats, percent, plural, UNKNOWN, unbroken } from "../shared/format.js";
import { modelOf, termsOf } from "../shared/model-words.js";

/** Returns a function that writes the figures of a status and of the course. `newsAgeS` is their age, or 0 if fresh. */
export function makeHeadline(): (status: ServerStatus, course: SeriesView, newsAgeS: number) => void {
  const put = (id: string) => {
    const node = find(id, HTMLElement);
    return (text: string) => setText(node, text);
  };
  const [about, aboutTerms, participation] = [put("about"), put("about-terms"), put("participation")];
  const [loss, lossStart, lossAge, lossBits] = [put("loss"), put("loss-start"), put("loss-age"), put("loss-bits")];
  const [speed, roundsMore] = [put("speed"), put("rounds-more")];
  const [live, liveMore, merged, mergedMore] = [put("live"), put("live-more"), put("merged"), put("merged-more")];
  const [up, upMore, down, downMore] = [put("up"), put("up-more"), put("down"), put("down-more")];
  return (status, course, newsAgeS) => {
    about(`A ${modelOf(status)}, ${unbroken(duration(status.runS))} old.`);
    aboutTerms(termsOf(status));
    participation(participationOf(status));
    loss(nats(status.valLossLast));
    lossStart(status.valLossFirst === null ? "is being measured now" : `${nats(status.valLossFirst)} at the start`);
    lossAge(ageOf(status, course, newsAgeS));
    lossBits(perByte(status));
    speed(count(status.tokensPerS));
    live(count(status.live));
    liveMore(`${count(status.connected)} connected, ${count(status.learnersTotal)} ever seen`);
    merged(count(status.tokensMerged));
    mergedMore(`tokens, ${scheduleOf(status)}`);
    roundsMore(roundsOf(status));
    up(bytes(status.bytesUp));
    upMore(perParameter(status.bitsPerParamUp));
    down(bytes(status.bytesDown));
    downMore(perParameter(status.bitsPerParamDown));
  };
}

/**
 * Returns the age of the loss, and the learners' current reports. Evaluation may take at most a tenth of the syncer's
 * time, so while the loss falls fast, the figure above lags.
 */
function ageOf(status: ServerStatus, course: SeriesView, newsAgeS: number): string {
  const measured = course.evaluations.at(-1);
  if (measured === undefined || status.finished) return "";
  // If the syncer cannot evaluate, its owner may trust a learner with that.
  const by = measured.measuredBy === undefined ? "" : ` by learner ${measured.measuredBy}`;
  const age = `Measured ${ago(status.runS + newsAgeS - measured.timeS)}${by}`;
  const { trainLoss } = status;
  if (trainLoss === null) return `${age}.`;
  const then = newsAgeS > 0 ? `it was at ${nats(trainLoss)}` : `it is at ${nats(trainLoss)} now`;
  return `${age}; on the text that it trains on ${then}.`;
}

/** Returns the share of the training that is in the model, or a placeholder if nothing was trained. */
export function participationOf({ participation, tokensTrained }: ServerStatus): string {
  return tokensTrained > 0 ? percent(participation) : UNKNOWN;
}

/** Returns the same figures in technical terms. */
function roundsOf(status: ServerStatus): string {
  const rounds = `${plural(status.rounds, "round")} merged`;
  const { stepMs } = status.timing;
  return stepMs > 0 ? `${rounds}; a step takes ${stepMs.toFixed(0)} ms at the median learner.` : `${rounds}.`;
}

/** Returns the share of the learning-rate schedule that is done, and the remaining time at the current speed. */
function scheduleOf(status: ServerStatus): string {
  const share = `${percent(status.tokensMerged / status.totalTokens)} of the plan`;
  const left = status.totalTokens - status.tokensMerged;
  const perS = status.tokensPerS * status.participation;
  const goesOn = !(status.paused || status.finished) && left > 0 && perS > 0;
  return goesOn ? `${share}, ${unbroken(duration(left / perS))} to its end` : share;
}

function perByte(status: ServerStatus): string {
  if (status.valLossLast === null || status.bytesPerToken <= 0) return "";
  return ` That is ${(status.valLossLast / Math.LN2 / status.bytesPerToken).toFixed(2)} bits per byte now.`;
}

function perParameter(bits: number | null): string {
  return bits === null ? "nothing sent yet" : `each number in ${bits.toFixed(2)} bits, not 32`;
}
