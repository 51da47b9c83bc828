/** Facts shown before the start: the run, the costs, this browser's capabilities, and the presets that fit. */

import type { Capabilities, LearnerError, Measured } from "@archipelago-train/learner";
import { capabilities, measure } from "@archipelago-train/learner";
import type { ServerStatus } from "../shared/api.js";
import { find, make } from "../shared/dom.js";
import { bytes, count, plural, unbroken } from "../shared/format.js";
import { modelOf, termsOf } from "../shared/model-words.js";
import { say } from "./say.js";

/** Bits on the socket per parameter and round, each way, until the run has measured its own. */
const BITS_PER_PARAM = 4.1;
/** Copies of the parameters that training holds. */
const COPIES = 6;
/** Speed below which a preset is called slow. */
const SLOW_TOKENS_PER_S = 500;
/** Share of the machine's memory above which a preset is said not to fit. */
const MEMORY_SHARE = 0.5;
/** Training time of each engine in a measurement. */
const TRAIN_MS = 1_000;

/** Describes the model, and adds technical terms for readers who want more. */
export function showRun(status: ServerStatus): void {
  say("about", aboutOf(status));
  say("about-terms", termsOf(status));
  find("about-more", HTMLElement).hidden = false;
  showCosts(status);
  say(
    "model-state",
    status.valLossLast === null
      ? "It has written nothing yet."
      : status.finished
        ? "The last text that it wrote:"
        : "It writes a new text now and then, so the text below may be a little older than the figures above.",
  );
}

/** Returns "This run trains a tiny language model on made-up sentences. 3 machines take part now. It has read …" */
export function aboutOf(status: ServerStatus): string {
  const model = `a ${modelOf(status)}`;
  const read = `It has read ${unbroken(count(status.tokensMerged))} ${status.tokenIsByte ? "letters" : "pieces of words"}`;
  if (status.finished) return `This run has trained ${model}. ${read} on ${plural(status.learnersTotal, "machine")}.`;
  const others = status.live === 1 ? "1 machine takes" : `${count(status.live)} machines take`;
  return `This run trains ${model}. ${others} part now.${status.tokensMerged > 0 ? ` ${read} so far.` : ""}`;
}

function showCosts(status: ServerStatus): void {
  const bits = status.bitsPerParamUp ?? BITS_PER_PARAM;
  // A round of each fragment sends every parameter once each way, at the measured interval of rounds.
  const rounds =
    status.timing.launchMs > 0 ? 3_600_000 / (status.timing.launchMs * Math.max(1, status.fragments.length)) : 0;
  const hourly =
    rounds > 0
      ? `about ${bytes((2 * rounds * status.params * bits) / 8)} an hour at the run's pace`
      : "somewhat more the faster the run is";
  const shard = status.corpusTokens * 2 || 0;
  const frozen = status.adapters?.frozenBytes ?? 0;
  const once = frozen > 0 ? ` and ${bytes(frozen)} that it builds on, which this browser keeps` : "";
  const lines = [
    "Nothing computes before you press the button, and Stop ends it at once.",
    `Data: ${bytes(status.params * 2)} of model to begin with${once}, up to ${bytes(shard)} of training text, then ${hourly}.`,
    `Memory: about ${bytes(status.params * 4 * COPIES + frozen)} for the model and as much again to compute.`,
    "Power: a processor or GPU that works hard; choose how hard at the top of this page.",
    "Nothing of yours is read: the text comes from the run, and only changes of the model go back.",
    status.namesHidden
      ? "The run's owner hides names and devices: others see a number, and how much you did."
      : "Everyone who opens this page sees the name that you choose, your device, and how much you did.",
  ];
  say(
    "cost-line",
    `Costs ${bytes(status.params * 2 + frozen)} of data to begin with, then ${hourly}, and power. Nothing of yours is read. Stop ends it at once.`,
  );
  const list = find("costs", HTMLElement);
  const shown = Array.from(list.children, (item) => item.textContent);
  if (shown.join() !== lines.join()) list.replaceChildren(...lines.map((line) => make("li", {}, line)));
}

/** Shows the browser's capabilities, which needs no computing. */
export async function showBrowser(): Promise<Capabilities> {
  const found = await capabilities();
  const { adapter } = found;
  const rows: [string, string][] = [
    [
      "GPU",
      adapter
        ? `WebGPU${adapter.name ? `, ${adapter.name}` : ""}${adapter.software ? " (a software GPU on the processor: slow)" : ""}`
        : `not usable: ${found.reason}`,
    ],
    ["Largest piece of a model", adapter ? bytes(adapter.bindingBytesMax) : "–"],
    [
      "Processor",
      `${found.processors} threads, ${found.relaxedSimd ? "fast arithmetic" : found.simd ? "plain arithmetic" : "too old to train"}`,
    ],
    ["Memory", found.memoryBytes ? `about ${bytes(found.memoryBytes)} or more` : "not told"],
    ["Would train with", found.engine === "gpu" ? "WebGPU" : "the processor"],
  ];
  find("browser", HTMLElement).replaceChildren(
    ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]),
  );
  return found;
}

/** Measures both available engines on demand, and says which presets fit. */
export async function showFits(found: Capabilities, preset: string): Promise<void> {
  const button = find("check", HTMLButtonElement);
  button.disabled = true;
  const measured: Measured[] = [];
  const told: string[] = [];
  for (const engine of found.adapter && !found.adapter.software ? (["gpu", "cpu"] as const) : (["cpu"] as const)) {
    const name = engine === "gpu" ? "WebGPU" : "The processor";
    say("check-state", `Measuring: ${name} trains for a second…`);
    try {
      const result = await measure({ engine, preset, trainMs: TRAIN_MS });
      measured.push(result);
      told.push(
        `${name}: ${count(result.tokensPerS)} tokens a second, first step after ${(result.firstStepMs / 1000).toFixed(1)} s.`,
      );
    } catch (error) {
      told.push(`${name}: ${(error as LearnerError).message}.`);
    }
  }
  say("check-state", told.join(" "));
  button.disabled = false;
  const best = measured.sort((a, b) => b.tokensPerS - a.tokensPerS)[0];
  if (best) showTable(best, found, preset);
}

function showTable(best: Measured, found: Capabilities, measured: string): void {
  say("fits-caption", `What fits, with ${best.device}; “${measured}” was measured, the others follow from it`);
  const rows = best.presets.map((preset) => {
    const memory = found.memoryBytes !== undefined && preset.stateBytes > found.memoryBytes * MEMORY_SHARE;
    const verdict = memory ? "too large" : preset.tokensPerS < SLOW_TOKENS_PER_S ? "slow" : "fits";
    const row = document.createElement("tr");
    const name = make("th", {}, preset.name);
    name.scope = "row";
    const numbers = [count(preset.params), bytes(preset.stateBytes), count(preset.tokensPerS)];
    row.append(name, ...numbers.map((text) => make("td", { class: "right" }, text)), make("td", {}, verdict));
    return row;
  });
  find("fits-rows", HTMLElement).replaceChildren(...rows);
  find("fits", HTMLElement).hidden = false;
}
