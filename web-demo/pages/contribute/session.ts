/** One learner under the visitor's rules: from Start to Stop. */
import { capabilities, join } from "archipelago";
import type { Learner, LearnerError, LearnerEventMap, Report } from "archipelago";
import type { LearnerView } from "../shared/api.js";
import { DROPPED, slowed } from "../shared/rein.js";
import type { Machine } from "./conditions.js";
import { judge } from "./rules.js";
import type { Verdict } from "./rules.js";
import { MODES } from "./settings.js";
import type { Settings } from "./settings.js";

/** What a page shows of a session. */
export interface View {
  /** One sentence that says what it does, or why it does not. */
  sentence(text: string): void;
  engine(notice: LearnerEventMap["engine"]): void;
  welcomed(event: LearnerEventMap["welcomed"]): void;
  progress(report: Report): void;
  receipt(event: LearnerEventMap["receipt"]): void;
  trouble(text: string): void;
  /** It is over; nothing computes any more. */
  ended(sentence: string, error?: LearnerError): void;
}

/** What is said when this browser's own other tab took this one's place. */
const TWIN = "Not training: another tab or window of this browser trains in this run now.";

/** A learner that begins at once. */
export class Session {
  paused = false;
  readonly #machine: Machine;
  readonly #view: View;
  #settings: Settings;
  #learner: Learner | undefined;
  #ended = false;
  /** What the learner itself says that it does. */
  #doing = "Starting: loading the engine…";
  #bytes = 0;
  /** Its number in the run. */
  #id: number | undefined;
  /** The owner of the run dropped it. */
  #dropped = false;
  #resting = false;

  constructor(syncer: string, settings: Settings, machine: Machine, view: View) {
    this.#settings = settings;
    this.#machine = machine;
    this.#view = view;
    view.sentence(this.#doing);
    void this.#begin(syncer);
  }

  /** Looks at the rules again: something they ask about changed. */
  apply(settings = this.#settings): void {
    const changed = settings.mode !== this.#settings.mode;
    this.#settings = settings;
    if (!this.#learner || this.#ended) return;
    if (changed) this.#learner.setShare(MODES[settings.mode].share);
    const verdict = this.#judge();
    if (verdict.do === "end") return void this.stop(verdict.why);
    if ((verdict.do === "rest") !== this.#resting) {
      this.#resting = verdict.do === "rest";
      if (this.#resting) this.#learner.pause();
      else this.#learner.resume();
    }
    this.#view.sentence(verdict.do === "rest" ? verdict.why : this.#doing);
  }

  /** Hears what the syncer shows of learners: who was dropped, and may come back before its time, does. */
  look(learners: readonly LearnerView[]): void {
    const shown = learners.find(({ learner }) => learner === this.#id);
    if (this.#dropped && shown && shown.returns_s === null) this.#learner?.reconnect();
  }

  /** Takes the GPU away on purpose. */
  loseDevice(): void {
    this.#learner?.loseDevice();
  }

  /** Ends it now. */
  async stop(why = "Stopped: nothing computes any more. Thank you."): Promise<void> {
    this.#end(why);
    await this.#learner?.stop().catch(() => undefined);
  }

  #judge(): Verdict {
    const { onBattery, hidden, hour } = this.#machine;
    return judge(this.#settings, { onBattery, hidden, hour, bytes: this.#bytes, paused: this.paused });
  }

  async #begin(syncer: string): Promise<void> {
    const { name, mode } = this.#settings;
    const engine = this.#settings.engine === "auto" ? (await capabilities()).engine : this.#settings.engine;
    if (this.#ended) return;
    // "auto" still falls back where the GPU turns out not to do.
    const asked = this.#settings.engine === "auto" && engine === "gpu" ? "auto" : engine;
    const learner = join(syncer, { engine: asked, share: MODES[mode].share, name: name || "browser" });
    this.#learner = learner;
    const doing = (text: string) => {
      this.#doing = text;
      this.apply();
    };
    learner.on("connecting", () => doing("Connecting to the syncer…"));
    learner.on("preparing", () => doing("Getting ready: building the model…"));
    learner.on("standby", () => doing("Waiting: another tab of this browser trains in this run already. This one takes over when that one ends."));
    learner.on("forgetful", ({ reason }) => this.#view.trouble(`This browser keeps nothing (${reason}): after a reload you count as a newcomer.`));
    learner.on("engine", (notice) => this.#view.engine(notice));
    learner.on("welcomed", (event) => {
      this.#id = event.learner;
      this.#view.welcomed(event);
    });
    learner.on("first_step", () => performance.measure("first step", "start"));
    learner.on("receipt", (event) => this.#view.receipt(event));
    learner.on("trouble", ({ reason }) => this.#view.trouble(reason));
    learner.on("afresh", ({ reason }) => this.#view.trouble(`Begun afresh: ${reason}.`));
    learner.on("progress", (report) => {
      this.#bytes = report.sent_bytes + report.received_bytes;
      this.#dropped = report.offline?.code === DROPPED;
      doing(sentence(report, MODES[this.#settings.mode].label));
      this.#view.progress(report);
    });
    learner.done.then(
      () => this.#end("The run is complete. Thank you."),
      (error: LearnerError) => this.#end(error.code === "replaced" ? TWIN : `Not training: ${error.message}.`, error),
    );
    this.apply();
  }

  #end(sentence: string, error?: LearnerError): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#view.ended(sentence, error);
  }
}

/** What a learner does, in one sentence. */
export function sentence(report: Report, mode: string): string {
  const offline = report.offline;
  const wait = offline?.retry_ms ? `may return in ${Math.ceil(offline.retry_ms / 1000)} s` : "returning now";
  if (offline?.code === DROPPED && report.doing !== "paused") {
    const alone = report.doing === "training" ? "; what it learns alone until then counts when it is back" : "";
    return `Dropped by the owner of the run: this machine ${wait}${alone}.`;
  }
  const again = offline && (offline.retry_ms > 0 ? `trying again in ${Math.ceil(offline.retry_ms / 1000)} s` : "trying again now");
  const apart = offline ? ` Not connected (${offline.reason}), ${again}.` : "";
  const slow = report.share < 1 ? `, ${slowed(report.share)} by the owner of the run` : "";
  switch (report.doing) {
    case "connecting":
      return offline ? `Connecting: ${offline.reason}, ${again}.` : "Connecting to the syncer…";
    case "joining":
      return `Joining: fetching the model.${apart}`;
    case "starved":
      return `Waiting for data to train on.${apart}`;
    case "held":
      return "Waiting: the owner of the run paused it.";
    case "training":
      return `Training, ${mode.toLowerCase()}${slow}.${apart}`;
    case "paused":
      return `Resting.${apart}`;
    case "leaving":
      return "Leaving.";
  }
}
