/** The figures at the top. */
import type { ServerStatus } from "../shared/api.js";
import { find, setText } from "../shared/dom.js";
import { bytes, count, duration, nats, percent, plural } from "../shared/format.js";
import { modelOf, termsOf } from "../shared/model-words.js";

/** Writes the figures of a status; gives the function that does it. */
export function makeHeadline(): (status: ServerStatus) => void {
  const put = (id: string) => {
    const node = find(id, HTMLElement);
    return (text: string) => setText(node, text);
  };
  const [about, aboutTerms, participation] = [put("about"), put("about-terms"), put("participation")];
  const [loss, lossStart, lossBits] = [put("loss"), put("loss-start"), put("loss-bits")];
  const [speed, speedMore] = [put("speed"), put("speed-more")];
  const [live, liveMore, merged, mergedMore] = [put("live"), put("live-more"), put("merged"), put("merged-more")];
  const [up, upMore, down, downMore] = [put("up"), put("up-more"), put("down"), put("down-more")];
  return (status) => {
    about(`A ${modelOf(status)}, ${duration(status.runS)} old.`);
    aboutTerms(termsOf(status));
    participation(percent(status.participation));
    loss(nats(status.valLossLast));
    lossStart(status.valLossFirst === null ? "not measured yet" : `${nats(status.valLossFirst)} at the start`);
    lossBits(perByte(status));
    speed(count(status.tokensPerS));
    speedMore(status.timing.stepMs > 0 ? `median step ${status.timing.stepMs.toFixed(0)} ms` : "tokens a second");
    live(count(status.live));
    liveMore(`${count(status.connected)} connected, ${count(status.learnersTotal)} ever seen`);
    merged(count(status.tokensMerged));
    mergedMore(`in ${plural(status.rounds, "round")}; ${scheduleOf(status)}`);
    up(bytes(status.bytesUp));
    upMore(perParameter(status.bitsPerParamUp));
    down(bytes(status.bytesDown));
    downMore(perParameter(status.bitsPerParamDown));
  };
}

/** How much of the schedule of the learning rate is over, and how long the rest takes at the present speed. */
function scheduleOf(status: ServerStatus): string {
  const share = `${percent(status.tokensMerged / status.totalTokens)} of the schedule`;
  const left = status.totalTokens - status.tokensMerged;
  const perS = status.tokensPerS * status.participation;
  const goesOn = !(status.paused || status.finished) && left > 0 && perS > 0;
  return goesOn ? `${share}, ${duration(left / perS)} to its end` : share;
}

function perByte(status: ServerStatus): string {
  if (status.valLossLast === null || status.bytesPerToken <= 0) return "";
  return ` That is ${(status.valLossLast / Math.LN2 / status.bytesPerToken).toFixed(2)} bits per byte now.`;
}

function perParameter(bits: number | null): string {
  return bits === null ? "nothing sent yet" : `${bits.toFixed(2)} bits per parameter`;
}
