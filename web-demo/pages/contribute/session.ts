/** One learner under the visitor's rules, from Start to Stop. */

import type { Learner, LearnerError, LearnerEventMap, Offline, Report } from "@archipelago-train/learner";
import { capabilities, join } from "@archipelago-train/learner";
import type { LearnerView } from "../shared/api.js";
import { bytes } from "../shared/format.js";
import { invite } from "../shared/link.js";
import { NAMELESS } from "../shared/names.js";
import { unreachable } from "../shared/reach.js";
import { DROPPED, slowed } from "../shared/rein.js";
import type { Sentence, Tone } from "../shared/sentence.js";
import { COMPLETE } from "./complete.js";
import type { Machine } from "./conditions.js";
import { addTraffic, readTraffic } from "./given.js";
import { refusedInvite } from "./invited.js";
import type { Verdict } from "./rules.js";
import { judge } from "./rules.js";
import type { Settings } from "./settings.js";
import { MODES } from "./settings.js";

/** Callbacks with which a page shows a session. */
export interface View {
  /** One sentence on the learner's activity, or on the reason for inactivity. */
  sentence(sentence: Sentence): void;
  engine(notice: LearnerEventMap["engine"]): void;
  welcomed(event: LearnerEventMap["welcomed"]): void;
  progress(report: Report): void;
  receipt(event: LearnerEventMap["receipt"]): void;
  trouble(text: string): void;
  /** The learner has stopped training and sends its last updates. */
  leaving(): void;
  /** The syncer requires an invite, or refused the given one. */
  uninvited(): void;
  /** The session has ended; nothing computes any more. */
  ended(sentence: Sentence): void;
}

/** Sentence if another tab of this browser took over. */
const TWIN: Sentence = {
  tone: "trouble",
  text: "Not training: another tab or window of this browser trains in this run now.",
};

/** A learner that begins at once. */
export class Session {
  paused = false;
  readonly #machine: Machine;
  readonly #view: View;
  #settings: Settings;
  #learner: Learner | undefined;
  #ended = false;
  /** Sentence for the end, after the last updates are sent. */
  #leaving: Sentence | undefined;
  /** Activity that the learner itself reported. */
  #doing: Sentence = { tone: "waiting", text: "Starting: loading the engine…" };
  /** Recorded traffic of this learner, in bytes. */
  #bytes = 0;
  /** Time since the syncer last answered the page, in milliseconds. */
  #silentMs = 0;
  /** The learner's number in the run. */
  #id: number | undefined;
  /** Whether the owner of the run dropped the learner. */
  #dropped = false;
  #resting = false;

  constructor(syncer: string, settings: Settings, machine: Machine, view: View) {
    this.#settings = settings;
    this.#machine = machine;
    this.#view = view;
    view.sentence(this.#doing);
    void this.#begin(syncer);
  }

  /** Applies the rules again after a change of settings or conditions. */
  apply(settings = this.#settings): void {
    const changed = settings.mode !== this.#settings.mode;
    this.#settings = settings;
    if (!this.#learner || this.#ended || this.#leaving) return;
    if (changed) this.#learner.setShare(MODES[settings.mode].share);
    const verdict = this.#judge();
    if (verdict.do === "end") return void this.stop(verdict.why);
    if ((verdict.do === "rest") !== this.#resting) {
      this.#resting = verdict.do === "rest";
      if (this.#resting) this.#learner.pause();
      else this.#learner.resume();
    }
    this.#view.sentence(verdict.do === "rest" ? verdict.why : this.#told());
  }

  /** Reconnects at once if the owner lets a dropped learner return early. */
  look(learners: readonly LearnerView[]): void {
    const shown = learners.find(({ learner }) => learner === this.#id);
    if (this.#dropped && shown && shown.returnsS === null) this.#learner?.reconnect();
  }

  /** Takes the time for which the syncer has not answered the page, in milliseconds; 0 after an answer. */
  hear(silentMs: number): void {
    const isNews = silentMs > 0 || this.#silentMs > 0;
    this.#silentMs = silentMs;
    if (isNews) this.apply();
  }

  /** The learner's activity, or a silent syncer, which the learner itself would notice much later. */
  #told(): Sentence {
    const trains = this.#doing.tone === "going";
    const alone = "This machine trains on alone, and that counts";
    return (
      unreachable(this.#silentMs, {
        offline: trains ? `${alone} when you are back.` : "Training goes on when you are back.",
        silent: trains ? `Nothing is lost. ${alone} once it answers.` : "Nothing is lost.",
      }) ?? this.#doing
    );
  }

  /** The learner's number in the run, once it is admitted. */
  get id(): number | undefined {
    return this.#id;
  }

  /** Stops training at once, and ends the learner once its last updates are sent; a second call does not wait for them. */
  async stop(why: Sentence = { tone: "done", text: "Stopped: nothing computes any more. Thank you." }): Promise<void> {
    if (this.#ended) return;
    const isAgain = this.#leaving !== undefined;
    this.#leaving ??= why;
    if (!isAgain) {
      this.#view.leaving();
      this.#view.sentence({ tone: "waiting", text: "Stopping: sending what this machine has learnt." });
    }
    await (isAgain ? this.#learner?.stop(0) : this.#learner?.stop())?.catch(() => undefined);
    this.#end(this.#leaving);
  }

  #judge(): Verdict {
    const { onBattery, hidden, hour } = this.#machine;
    return judge(this.#settings, {
      onBattery,
      hidden,
      hour,
      bytes: readTraffic(new Date()),
      paused: this.paused,
    });
  }

  async #begin(syncer: string): Promise<void> {
    const { name, mode } = this.#settings;
    const engine = this.#settings.engine === "auto" ? (await capabilities()).engine : this.#settings.engine;
    if (this.#ended || this.#leaving) return;
    // "auto" still falls back if the GPU turns out to be unusable.
    const asked = this.#settings.engine === "auto" && engine === "gpu" ? "auto" : engine;
    const learner = join(syncer, { engine: asked, share: MODES[mode].share, name: name || NAMELESS });
    this.#learner = learner;
    const doing = (sentence: Sentence) => {
      this.#doing = sentence;
      this.apply();
    };
    const waiting = (text: string) => doing({ tone: "waiting", text });
    learner.on("connecting", () => {
      // After a lost connection the sentence already announces retries; a single retry is not news.
      if (this.#id === undefined && this.#doing.untold === undefined) waiting("Connecting to the syncer…");
    });
    learner.on("preparing", () => waiting("Getting ready: building the model…"));
    learner.on("standby", () =>
      waiting(
        "Waiting: another tab of this browser already trains in this run. This tab takes over when that one ends.",
      ),
    );
    learner.on("forgetful", ({ reason }) =>
      this.#view.trouble(`This browser stores nothing (${reason}): after a reload you count as a newcomer.`),
    );
    learner.on("softKey", () =>
      this.#view.trouble(
        "This browser cannot protect your key (it is old, or this page has no https): other scripts of this site could read it.",
      ),
    );
    learner.on("engine", (notice) => this.#view.engine(notice));
    learner.on("welcomed", (event) => {
      this.#id = event.learner;
      this.#view.welcomed(event);
    });
    learner.on("firstStep", () => performance.measure("first step", "start"));
    learner.on("receipt", (event) => this.#view.receipt(event));
    learner.on("trouble", ({ reason }) => this.#view.trouble(reason));
    learner.on("afresh", ({ reason }) => this.#view.trouble(`Started from scratch: ${reason}.`));
    learner.on("progress", (report) => {
      const bytes = report.sentBytes + report.receivedBytes + report.fetchedBytes;
      addTraffic(new Date(), Math.max(0, bytes - this.#bytes));
      this.#bytes = bytes;
      this.#dropped = report.offline?.code === DROPPED;
      doing(sentence(report, MODES[this.#settings.mode].label));
      this.#view.progress(report);
    });
    learner.done.then(
      () => this.#end(this.#leaving ?? COMPLETE),
      (error: LearnerError) => this.#end(this.#leaving ?? this.#failed(error)),
    );
    this.apply();
  }

  #failed({ code, message }: LearnerError): Sentence {
    if (code === "replaced") return TWIN;
    if (code !== "invite") return { tone: "trouble", text: `Not training: ${message}.` };
    this.#view.uninvited();
    return refusedInvite(message, invite() !== "");
  }

  #end(sentence: Sentence): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#view.ended(sentence);
  }
}

/** Describes a learner's activity in one sentence. */
export function sentence(report: Report, mode: string): Sentence {
  const offline = report.offline;
  if (offline?.code === DROPPED && report.doing !== "paused") return dropped(report, offline);
  // During training or rest, a lost connection matters most.
  const plain = (tone: Tone, text: string): Sentence => {
    if (!offline) return { tone, text };
    const untold = offline.retryMs > 0 ? ` in ${seconds(offline.retryMs)} s.` : " now.";
    return { tone: "trouble", text: `${text} Not connected (${offline.reason}), trying again`, untold };
  };
  switch (report.doing) {
    case "connecting":
      return { ...plain("waiting", offline ? "Connecting." : "Connecting to the syncer…"), tone: "waiting" };
    case "joining":
      return gathering(report) ?? plain("waiting", "Joining: fetching the model.");
    case "starved":
      return plain("waiting", "Waiting for data to train on.");
    case "held":
      return { tone: "waiting", text: "Waiting: the owner of the run paused it." };
    case "training": {
      const slow = report.share < 1 ? `, ${slowed(report.share)} by the owner of the run` : "";
      return plain("going", `Training, ${mode.toLowerCase()}${slow}.`);
    }
    case "paused":
      return plain("held", "Resting.");
    case "leaving":
      return { tone: "waiting", text: "Leaving." };
  }
}

/** Describes a connected learner that still fetches frozen weights of its run. */
function gathering({ offline, frozenBytes, frozenBytesTotal }: Report): Sentence | undefined {
  if (offline || !(frozenBytes < frozenBytesTotal)) return undefined;
  const untold = ` ${bytes(frozenBytes)} of ${bytes(frozenBytesTotal)} are here.`;
  return { tone: "waiting", text: "Joining: fetching the run's frozen weights, once for this browser.", untold };
}

/** Describes a learner that the owner or the syncer dropped. */
function dropped(report: Report, offline: Offline): Sentence {
  const alone = report.doing === "training" ? " What this machine learns alone until then counts when it is back." : "";
  const back =
    offline.retryMs > 0 ? [" It may return", ` in ${seconds(offline.retryMs)} s.`] : [" It returns", " now."];
  return { tone: "held", text: `Dropped: ${offline.reason}.${alone}${back[0]}`, untold: back[1]! };
}

function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
