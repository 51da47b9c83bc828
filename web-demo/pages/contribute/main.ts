/** The page on which a visitor lends a machine. */
import { measure } from "archipelago";
import type { ServerStatus } from "../shared/api.js";
import { find, setAttribute } from "../shared/dom.js";
import { carryInvite, linkFor, shareLink } from "../shared/link.js";
import type { Sentence } from "../shared/sentence.js";
import { showBrowser, showFits, showRun } from "./before.js";
import { showClassroom, showInsecure } from "./classroom.js";
import { Machine, ScreenLock } from "./conditions.js";
import { bindForms } from "./form.js";
import { Live } from "./live.js";
import { say } from "./say.js";
import { Session } from "./session.js";
import { keepSettings, noteRunning, readSettings, wasRunning } from "./settings.js";
import { bindCopy, showLink } from "./share.js";

/** Time between two looks at the run, in milliseconds; none while the page is hidden. */
const STATUS_MS = 5_000;
/** How long a trouble is shown at least, in milliseconds. */
const TROUBLE_MS = 20_000;

// What follows # is an invite: it goes to the syncer when joining, and into the link.
const syncer = shareLink();
const live = new Live();
const lock = new ScreenLock();
const machine = new Machine(() => session?.apply());
let settings = readSettings();
let session: Session | undefined;
let preset = "tiny";
/** When something went wrong last. */
let troubleMs = 0;

function start(): void {
  problem("");
  performance.mark("start");
  live.begin();
  noteRunning(true);
  lock.want(settings.wakeLock);
  show("running");
  session = new Session(syncer, settings, machine, {
    sentence: tell,
    engine: (notice) => live.engine(notice),
    welcomed: (event) => live.welcomed(event),
    progress: (report) => live.progress(report),
    receipt: (event) => {
      live.receipt(event);
      // What was wrong is over, and was there to be read.
      if (performance.now() - troubleMs > TROUBLE_MS) problem("");
    },
    trouble: problem,
    ended,
  });
}

function ended(sentence: Sentence): void {
  session = undefined;
  noteRunning(false);
  lock.want(false);
  show("idle");
  tell(sentence);
}

function show(state: "running" | "idle"): void {
  find("start", HTMLElement).hidden = state === "running";
  find("pause", HTMLElement).hidden = find("stop", HTMLElement).hidden = state === "idle";
  find("pause", HTMLElement).textContent = "Pause";
  find(state === "running" ? "stop" : "start", HTMLElement).focus();
}

/** Shows the sentence in the colour of its tone. */
function tell({ tone, text }: Sentence): void {
  say("sentence", text);
  setAttribute(find("sentence", HTMLElement), "data-tone", tone);
}

function problem(text: string): void {
  troubleMs = performance.now();
  say("error", text);
  find("error", HTMLElement).hidden = text === "";
}

async function look(): Promise<void> {
  if (document.hidden) return;
  try {
    const answer = await fetch("./v1/status");
    if (!answer.ok) throw new Error(`the syncer answers ${answer.status}`);
    const status: ServerStatus = await answer.json();
    preset = status.preset;
    showRun(status);
    showLink(linkFor(status.links));
    showClassroom(status.classroom);
    session?.look(status.learners);
  } catch (error) {
    // A learner that runs says itself that the syncer is away.
    if (!session)
      say(
        "about",
        `The syncer does not answer (${error instanceof Error ? error.message : error}). This page tries again.`,
      );
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
setInterval(() => void look(), STATUS_MS);
void showBrowser().then((found) =>
  find("check", HTMLElement).addEventListener("click", () => void showFits(found, preset)),
);
if (wasRunning() && settings.resume) start();

/** For the console: measures, and breaks things on purpose. */
Object.assign(window, { archipelago: { measure, loseDevice: () => session?.loseDevice() } });
