/** A visitor's reward: the share in the model, the place of the island, and a card at the end. */
import type { LearnerEventMap, Report } from "@archipelago-train/learner";
import type { ServerStatus } from "../shared/api.js";
import { find } from "../shared/dom.js";
import { count, duration, legible } from "../shared/format.js";
import { linkFor } from "../shared/link.js";
import { dayOf, savePicture } from "../shared/save.js";
import { promptOf, writeText } from "../shared/texts.js";
import { hasGiven, showDays } from "./days.js";
import { type Given, keepGiven, keepLearner, readGiven, readLearner } from "./given.js";
import { Islands } from "./islands.js";
import { say } from "./say.js";

/** Returns "12 % of what this model has learnt came from this machine." */
export function partOf(tokens: number, all: number): string {
  if (tokens <= 0 || all <= 0) return "";
  const percent = Math.min(100, (100 * tokens) / all);
  const part = percent < 0.1 ? "Less than 0.1 %" : `${percent < 10 ? percent.toFixed(1) : percent.toFixed(0)} %`;
  return `${part} of what this model has learnt came from this machine.`;
}

/** Returns "This machine has trained for 12 min in all, and 885 k tokens of that are in the model. 12 % of …" */
export function thanksOf({ tokens, trainMs }: Given, all: number): string {
  if (tokens === 0) return "Nothing of this machine is in this run's model yet.";
  const read = `This machine has trained for ${duration(trainMs / 1_000)} in all, and ${count(tokens)} tokens of that are in the model`;
  const part = partOf(tokens, all);
  return part === "" ? `${read}.` : `${read}. ${part}`;
}

/** Number of texts that are compared. */
const TEXTS_MAX = 8;

export class Reward {
  readonly #islands = new Islands(find("islands", SVGSVGElement));
  readonly #card = find("thanks", HTMLElement);
  readonly #picture = find("picture", HTMLCanvasElement);
  #run = "";
  /** Contribution to the run, including this learner's. */
  #given: Given = { tokens: 0, trainMs: 0 };
  /** Contribution before this learner; unknown until it is welcomed. */
  #before: Given | null = null;
  /** Tokens in this learner's reports that were merged into another run. */
  #elsewhere = 0;
  #reported = 0;
  /** The learner's number in the run, known from its welcome or from an earlier visit. */
  #learner: number | null = null;
  #all = 0;
  /** The model's text at the visitor's arrival, and its newest text. */
  #then = "";
  #now = "";
  /** The last few texts, whose common beginning is the prompt. */
  #texts: readonly string[] = [];
  /** Address of the run, without the invite. */
  #place = "";
  readonly #name: () => string;

  /** `name` returns the visitor's name, or an empty string. */
  constructor(name: () => string) {
    this.#name = name;
    find("save-picture", HTMLElement).addEventListener("click", () => this.#save());
  }

  /** Updates the display from the run's status. */
  look(status: ServerStatus, isTraining: boolean): void {
    if (this.#run !== status.run && !isTraining) {
      this.#run = status.run;
      this.#given = readGiven(status.run);
      this.#learner = readLearner(status.run);
      [this.#then, this.#texts] = ["", []];
      this.#card.hidden = !hasGiven();
    }
    this.#all = status.tokensMerged;
    [this.#place = ""] = linkFor(status.links).split("#");
    this.#credit(status);
    if (!this.#card.hidden) this.#thank();
    this.#islands.show(status.live, isTraining);
    this.#wrote(status.sample);
  }

  /** Takes the model's newest text. */
  #wrote(text: string): void {
    if (text !== "" && !this.#texts.includes(text)) this.#texts = [...this.#texts, text].slice(-TEXTS_MAX);
    this.#now = text;
    if (this.#then === "") this.#then = text;
    this.#showTexts();
  }

  #showTexts(): void {
    const prompt = promptOf(this.#texts);
    writeText(find("sample-before", HTMLElement), this.#then, prompt);
    writeText(find("sample", HTMLElement), this.#now, prompt);
  }

  /** Adds tokens merged after the ended learner's last report, which only the syncer knows. */
  #credit(status: ServerStatus): void {
    const mine = status.learners.find(({ learner }) => learner === this.#learner);
    if (status.run !== this.#run || !mine || mine.tokensMerged <= this.#given.tokens) return;
    this.#given = { ...this.#given, tokens: mine.tokensMerged };
    keepGiven(this.#run, this.#given, new Date());
    say("part", partOf(this.#given.tokens, this.#all));
  }

  /** Prepares for a new learner. */
  begin(): void {
    this.#card.hidden = true;
    [this.#before, this.#learner] = [null, null];
    [this.#elsewhere, this.#reported] = [0, 0];
    this.#islands.show(Math.max(1, this.#islands.count), true);
    this.#then = this.#now;
    this.#showTexts();
    say("sample-before-title", "When you came");
  }

  /** Takes the learner's number and its earlier merged tokens from the welcome. */
  welcomed({ run, learner, tokensMerged }: LearnerEventMap["welcomed"]): void {
    this.#learner = learner;
    keepLearner(run, learner);
    const isAnother = this.#before !== null && this.#run !== run;
    const known = readGiven(run);
    const trainMs = this.#before === null || isAnother ? known.trainMs : this.#before.trainMs;
    // This browser has no record of them, so their day is unknown.
    if (known.tokens === 0 && tokensMerged > 0) keepGiven(run, { tokens: tokensMerged, trainMs }, null);
    if (isAnother) this.#elsewhere = this.#reported;
    this.#run = run;
    this.#before = { tokens: tokensMerged, trainMs };
  }

  progress(report: Report): void {
    this.#reported = report.tokensMerged;
    if (this.#before === null) return;
    const tokens = this.#before.tokens + Math.max(0, report.tokensMerged - this.#elsewhere);
    this.#given = { tokens, trainMs: this.#before.trainMs + report.trainMs };
    keepGiven(this.#run, this.#given, new Date());
    say("part", partOf(tokens, this.#all));
  }

  /** Shows that an update was merged. */
  merged(): void {
    this.#islands.pulse();
  }

  /** Shows the card after training has ended. */
  ended(): void {
    this.#islands.show(this.#islands.count, false);
    this.#card.hidden = !hasGiven();
    if (!this.#card.hidden) this.#thank();
  }

  #thank(): void {
    say("thanks-text", thanksOf(this.#given, this.#all));
    showDays();
  }

  /** Saves a picture to keep or to share. */
  #save(): void {
    const context = this.#picture.getContext("2d");
    if (!context) return;
    const { width, height } = this.#picture;
    context.fillStyle = "#0d3b4c";
    context.fillRect(0, 0, width, height);
    context.save();
    context.translate(0, 125);
    this.#islands.paint(context, width, height - 255);
    context.restore();
    context.fillStyle = "#ffffff";
    context.textBaseline = "top";
    context.font = "600 44px system-ui, sans-serif";
    const name = legible(this.#name().trim());
    const title = name === "" ? "My island in the archipelago" : `The island of ${name} in the archipelago`;
    context.fillText(title, 48, 32, width - 96);
    context.font = "26px system-ui, sans-serif";
    context.fillText(`${dayOf(new Date())} · ${this.#place}`, 48, 90, width - 96);
    const lines = thanksOf(this.#given, this.#all).match(/.{1,80}(?:\s|$)/g) ?? [];
    lines.forEach((line, at) => context.fillText(line.trim(), 48, height - 110 + 36 * at));
    savePicture(this.#picture, "my-island.png");
  }
}
