/** Live figures of this machine while it trains. */
import type { LearnerEventMap, Report } from "@archipelago-train/learner";
import { find, make } from "../shared/dom.js";
import { bytes, count } from "../shared/format.js";
import { Spark } from "../shared/spark.js";
import { say } from "./say.js";

/** Limit of displayed receipts. */
const RECEIPTS_MAX = 40;

/** The card "This machine". */
export class Live {
  readonly #spark = new Spark(find("spark", HTMLCanvasElement));
  #mergedBefore = 0;
  #fates = { merged: 0, late: 0, refused: 0 };
  #device = "";

  /** Resets the card for a new learner. */
  begin(): void {
    this.#spark.clear();
    this.#fates = { merged: 0, late: 0, refused: 0 };
    find("receipts", HTMLElement).replaceChildren();
    find("live", HTMLElement).hidden = false;
  }

  engine({ device, fallback, restored }: LearnerEventMap["engine"]): void {
    this.#device = [device, restored ? "goes on with what this browser kept" : "", fallback ?? ""]
      .filter(Boolean)
      .join("; ");
    say("device", this.#device);
  }

  welcomed({ learner, batch, tokensMerged }: LearnerEventMap["welcomed"]): void {
    this.#mergedBefore = tokensMerged;
    this.#showMerged(0);
    say("device", `Learner ${learner}: ${this.#device}; batch ${batch}`);
  }

  progress(report: Report): void {
    say("speed", report.doing === "training" ? count(report.tokensPerS) : "–");
    if (report.loss !== null) {
      say("loss", report.loss.toFixed(3));
      this.#spark.push(report.loss);
      say("spark-text", this.#spark.describe());
    }
    this.#showMerged(report.tokensMerged);
    const down = report.receivedBytes + report.fetchedBytes;
    say("bytes", bytes(report.sentBytes + down));
    say("exchange", `${bytes(report.sentBytes)} up, ${bytes(down)} down`);
  }

  /** Clears the speed, since training has ended. */
  rest(): void {
    say("speed", "–");
  }

  receipt({ fragment, fate }: LearnerEventMap["receipt"]): void {
    const { kind, text } = inWords(fate);
    this.#fates[kind] += 1;
    const list = find("receipts", HTMLElement);
    list.prepend(make("li", {}, `Part ${fragment} of the model: ${text}`));
    while (list.children.length > RECEIPTS_MAX) list.lastChild?.remove();
    const { merged, late, refused } = this.#fates;
    say(
      "receipts-sum",
      `Of the changes that this machine sent, ${merged} were merged into the model; ${late} came too late, ${refused} were refused. The next change includes what did not count.`,
    );
  }

  #showMerged(now: number): void {
    const tokens = this.#mergedBefore + now;
    find("merged", HTMLElement).dataset["tokens"] = String(tokens);
    say("merged", count(tokens));
  }
}

function inWords(fate: LearnerEventMap["receipt"]["fate"]): { kind: "merged" | "late" | "refused"; text: string } {
  if ("merged" in fate) {
    const { tokens, weight } = fate.merged;
    return {
      kind: "merged",
      text: `it was merged, ${count(tokens)} tokens' worth, as ${(weight * 100).toFixed(0)} % of that step`,
    };
  }
  if ("late" in fate) return { kind: "late", text: `it came too late (${fate.late.replaceAll("_", " ")})` };
  return { kind: "refused", text: `it was refused (${fate.refused.replaceAll("_", " ")})` };
}
