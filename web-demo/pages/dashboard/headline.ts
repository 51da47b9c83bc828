/** The figures at the top. */
import type { ServerStatus } from "../shared/api.js";
import { find, setText } from "../shared/dom.js";
import { bytes, count, duration, nats, percent, plural } from "../shared/format.js";

/** Writes the figures of a status; gives the function that does it. */
export function makeHeadline(): (status: ServerStatus) => void {
  const put = (id: string) => {
    const node = find(id, HTMLElement);
    return (text: string) => setText(node, text);
  };
  const [about, participation, participationBar] = [put("about"), put("participation"), find("participation-bar", HTMLElement)];
  const [loss, lossStart, speed, speedMore] = [put("loss"), put("loss-start"), put("speed"), put("speed-more")];
  const [live, liveMore, merged, mergedMore] = [put("live"), put("live-more"), put("merged"), put("merged-more")];
  const [up, upMore, down, downMore] = [put("up"), put("up-more"), put("down"), put("down-more")];
  return (status) => {
    about(`A model of ${count(status.params)} parameters (“${status.preset}”) on ${status.corpus}, for ${duration(status.run_s)}.`);
    participation(percent(status.participation));
    participationBar.style.width = `${(status.participation * 100).toFixed(1)}%`;
    loss(nats(status.val_loss_last));
    lossStart(status.val_loss_first === null ? "not measured yet" : `${nats(status.val_loss_first)} at the start${perByte(status)}`);
    speed(count(status.tokens_per_s));
    speedMore(status.timing.step_ms > 0 ? `median step ${status.timing.step_ms.toFixed(0)} ms` : "tokens a second");
    live(count(status.live));
    liveMore(`${count(status.connected)} connected, ${count(status.learners_total)} ever seen`);
    merged(count(status.tokens_merged));
    mergedMore(`in ${plural(status.rounds, "round")}; ${percent(status.tokens_merged / status.total_tokens)} of the schedule`);
    up(bytes(status.bytes_up));
    upMore(perParameter(status.bits_per_param_up));
    down(bytes(status.bytes_down));
    downMore(perParameter(status.bits_per_param_down));
  };
}

function perByte(status: ServerStatus): string {
  if (status.val_loss_last === null || status.bytes_per_token <= 0) return "";
  return `; ${(status.val_loss_last / Math.LN2 / status.bytes_per_token).toFixed(2)} bits per byte now`;
}

function perParameter(bits: number | null): string {
  return bits === null ? "nothing sent yet" : `${bits.toFixed(2)} bits per parameter`;
}
