/** The page on which a visitor lends a machine. */
import { measure, Writer } from "@archipelago-train/learner";
import type { ServerStatus } from "../shared/api.js";
import { find } from "../shared/dom.js";
import { carryInvite, linkFor, shareLink } from "../shared/link.js";
import { showNews } from "../shared/news.js";
import { unreachable } from "../shared/reach.js";
import { type Sentence, SentenceView } from "../shared/sentence.js";
import { Talk } from "../shared/talk.js";
import { showBrowser, showFits, showRun } from "./before.js";
import { showBoard } from "./board.js";
import { showClassroom, showInsecure } from "./classroom.js";
import { COMPLETE, showComplete } from "./complete.js";
import { Machine, ScreenLock } from "./conditions.js";
import { bindForms } from "./form.js";
import { addTraffic } from "./given.js";
import { InviteField } from "./invited.js";
import { ANSWER_MS, STATUS_MS, silenceMs, TICK_MS, TRAINING_MS } from "./listening.js";
import { Live } from "./live.js";
import { Reward } from "./reward.js";
import { say } from "./say.js";
import { Session } from "./session.js";
import { keepSettings, noteRunning, readSettings, wasRunning } from "./settings.js";
import { bindCopy, showLink } from "./share.js";

/** Time without announcements to screen readers after a sentence, in milliseconds, unless the tone changes. */
const QUIET_MS = 8_000;
/** Shortest display of a problem, in milliseconds. */
const TROUBLE_MS = 20_000;

// The part after # is an invite: it goes to the syncer on joining, and into the link.
let syncer = shareLink();
const live = new Live();
const reward = new Reward(() => settings.name);
const talk = new Talk(find("talk", HTMLElement), syncer, (bytes) => addTraffic(new Date(), bytes));
const lock = new ScreenLock();
const invited = new InviteField();
const machine = new Machine(() => session?.apply());
let settings = readSettings();
let session: Session | undefined;
let preset = "tiny";
/** Time of the last news from the syncer: an answer, a welcome or a receipt. */
let newsMs: number | null = null;
/** Time since which the page has listened: earlier time does not count as silence. */
let listeningMs = performance.now();
let complete = false;
let looking = false;
let lookedMs = -STATUS_MS;
const title = document.title;
const sentence = new SentenceView({ quietMs: QUIET_MS, tonesAtOnce: true });
/** Time of the last problem. */
let troubleMs = 0;
/** Sentence shown while nothing computes and the run can be reached. */
let idle: Sentence = { tone: "done", text: "Nothing computes yet." };

function start(): void {
  const uninvited = invited.take();
  problem(uninvited);
  if (uninvited !== "") return;
  syncer = shareLink();
  performance.mark("start");
  live.begin();
  reward.begin();
  noteRunning(true);
  lock.want(settings.wakeLock);
  show("running");
  session = new Session(syncer, settings, machine, {
    sentence: tell,
    engine: (notice) => live.engine(notice),
    welcomed: (event) => {
      live.welcomed(event);
      reward.welcomed(event);
      heard();
    },
    progress: (report) => {
      live.progress(report);
      reward.progress(report);
    },
    receipt: (event) => {
      live.receipt(event);
      if ("merged" in event.fate) reward.merged();
      heard();
      // The problem is over, and has been shown long enough.
      if (performance.now() - troubleMs > TROUBLE_MS) problem("");
    },
    trouble: problem,
    leaving: () => {
      noteRunning(false);
      lock.want(false);
      show("leaving");
    },
    uninvited: () => invited.refused(),
    ended,
  });
}

function ended(sentence: Sentence): void {
  session = undefined;
  noteRunning(false);
  lock.want(false);
  live.rest();
  reward.ended();
  show("idle");
  idle = sentence;
  tell(sentence);
}

function show(state: "running" | "leaving" | "idle"): void {
  find("start", HTMLElement).hidden = state !== "idle";
  find("pause", HTMLElement).hidden = state !== "running";
  find("stop", HTMLElement).hidden = state === "idle";
  find("stop", HTMLElement).textContent = state === "leaving" ? "Stop without waiting" : "Stop";
  find("pause", HTMLElement).textContent = "Pause";
  // Does not scroll: the card above the button stays in view.
  find(state === "idle" ? "start" : "stop", HTMLElement).focus({ preventScroll: true });
}

/** Shows that nothing computes, or that the run cannot be reached. */
function tellIdle(silentMs: number): void {
  const then = { offline: "You can start when you are back.", silent: "This page tries again." };
  tell((!complete && unreachable(silentMs, then)) || idle);
}

/** Shows the sentence in the colour of its tone. */
function tell(told: Sentence): void {
  sentence.show(told);
  // Visible also from another tab.
  document.title = session ? `${told.text.split(/[,.:;(]/, 1)[0]} · ${title}` : title;
}

function problem(text: string): void {
  troubleMs = performance.now();
  say("error", text);
  find("error", HTMLElement).hidden = text === "";
}

/** Records that data from the syncer arrived. */
function heard(): void {
  newsMs = performance.now();
  session?.hear(0);
}

/** Requests the status if it is due, and reports a silent syncer. */
function tick(): void {
  if (document.hidden) return;
  const nowMs = performance.now();
  const silentMs = silenceMs(nowMs, newsMs, listeningMs);
  if (session) session.hear(silentMs);
  else tellIdle(silentMs);
  if (nowMs - lookedMs >= (session ? TRAINING_MS : STATUS_MS)) void look();
}

async function look(): Promise<void> {
  if (document.hidden || looking) return;
  looking = true;
  lookedMs = performance.now();
  try {
    const answer = await fetch("./v1/status", { signal: AbortSignal.timeout(ANSWER_MS) });
    if (!answer.ok) throw new Error(`the syncer answered ${answer.status}`);
    const status: ServerStatus = await answer.json();
    preset = status.preset;
    complete = status.finished;
    showRun(status);
    showComplete(status);
    // A training visitor learns it from the learner itself.
    if (status.finished) idle = COMPLETE;
    invited.look(status);
    talk.look(status);
    void showBoard(status, session?.id ?? null).catch(() => undefined);
    showLink(linkFor(status.links));
    showClassroom(status.classroom);
    session?.look(status.learners);
    reward.look(status, session !== undefined);
    heard();
  } catch (error) {
    // After the first answer, the sentence at the top reports the silence.
    if (newsMs === null)
      say(
        "about",
        `The syncer does not answer (${error instanceof Error ? error.message : error}). This page tries again.`,
      );
  } finally {
    looking = false;
  }
}

find("start", HTMLElement).addEventListener("click", start);
find("stop", HTMLElement).addEventListener("click", () => void session?.stop());
find("pause", HTMLElement).addEventListener("click", () => {
  if (!session) return;
  session.paused = !session.paused;
  find("pause", HTMLElement).textContent = session.paused ? "Go on" : "Pause";
  session.apply();
});
bindForms(settings, (changed) => {
  settings = changed;
  keepSettings(settings);
  if (session) lock.want(settings.wakeLock);
  session?.apply(settings);
});
showLink(syncer);
bindCopy();
carryInvite();
showInsecure();
void look();
setInterval(tick, TICK_MS);
for (const name of ["online", "offline"]) window.addEventListener(name, () => (session ? session.apply() : tick()));
// The hidden page did not listen: that time does not count as silence.
document.addEventListener("visibilitychange", () => {
  listeningMs = performance.now();
});
showNews(
  () => newsMs && (performance.now() - newsMs) / 1_000,
  () => complete,
);
void showBrowser().then((found) =>
  find("check", HTMLElement).addEventListener("click", () => void showFits(found, preset)),
);
if (wasRunning() && settings.resume) start();

/** For the browser's console: measuring and writing. */
Object.assign(window, { archipelago: { measure, Writer } });
