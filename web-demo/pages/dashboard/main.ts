/** The dashboard: activity of the run, for its owner and for everyone with the link. */
import "./dashboard.css";
import "./reins.css";
import "./class.css";
import "./settings.css";
import type { LogView, RoundsView, SeriesView, ServerStatus } from "../shared/api.js";
import { find, setText } from "../shared/dom.js";
import { EventLink, type LinkState } from "../shared/events.js";
import { carryInvite, copyFrom, invite, linkFor, shareLink } from "../shared/link.js";
import { showNews } from "../shared/news.js";
import { painter } from "../shared/paint.js";
import { SentenceView } from "../shared/sentence.js";
import { Talk } from "../shared/talk.js";
import { AlertBanner } from "./alerts.js";
import { ClassView } from "./class.js";
import { Course } from "./course.js";
import { Guests } from "./guests.js";
import { makeHeadline } from "./headline.js";
import { Learners } from "./learners.js";
import { LogList } from "./log.js";
import { Owner } from "./owner.js";
import { makeSamples } from "./samples.js";
import { sentenceOf } from "./sentence.js";
import { Settings } from "./settings.js";
import { Timeline } from "./timeline.js";

const course = new Course();
let status: ServerStatus | null = null;
let link: LinkState = { link: "opening" };
let events: EventLink | undefined;
/** Age of the last news in seconds if it is old, and 0 otherwise. */
let newsAgeS = 0;

/** Screen readers hear a change of activity at once; a changed number of learners can wait. */
const sentence = new SentenceView({ quietMs: 30_000, tonesAtOnce: true });
const talk = new Talk(find("talk", HTMLElement), shareLink());
const timeline = new Timeline((learner) => learners.nameOf(learner));
const owner = new Owner();
new Guests(owner);
const learners = new Learners(owner);
const log = new LogList();
const settings = new Settings(owner);
const alerts = new AlertBanner();
const classView = new ClassView(owner, course);
const shared = find("share-link", HTMLInputElement);
let refreshCharts = (): void => {};
const refreshSamples = makeSamples(course);
const writeHeadline = makeHeadline();
const refreshHeadline = painter(find("headline", HTMLElement), () => {
  if (!status) return;
  writeHeadline(status, course.view, newsAgeS);
});
const refreshOwner = painter(find("share", HTMLElement), () => {
  if (!status) return;
  owner.show(status);
  const [look, lend] = [
    "Everyone who opens this link sees the result of the run",
    "Everyone who opens this link can lend a machine",
  ];
  setText(find("share-label", HTMLElement), status.finished ? look : lend);
  shared.value = linkFor(status.links);
  for (const [id, file] of [
    ["report-page", "report.html"],
    ["report-lines", "history.jsonl"],
  ] as const) {
    find(id, HTMLAnchorElement).href = `./v1/runs/${encodeURIComponent(status.run)}/${file}`;
  }
  find("invite-needed", HTMLElement).hidden = status.finished || !status.inviteRequired || invite() !== "";
});

function showSentence(): void {
  // The sentence is shown before the first status arrives.
  sentence.show(sentenceOf(status, link, events?.newsAgeS() ?? null));
}

function refreshAll(): void {
  refreshCharts();
  refreshSamples();
  refreshHeadline();
  classView.refresh();
}

async function get<T>(path: string): Promise<T | null> {
  try {
    const answer = await fetch(path);
    return answer.ok ? ((await answer.json()) as T) : null;
  } catch {
    // The event stream reports a lost connection, and triggers new requests once it is back.
    return null;
  }
}

let loading = false;

/** Fetches the columns. Does nothing during a request: points that arrive meanwhile are added at its end. */
async function loadSeries(): Promise<void> {
  if (loading) return;
  loading = true;
  course.fetching();
  const view = await get<SeriesView>("./v1/series");
  loading = false;
  if (view) course.load(view);
  refreshAll();
}

async function loadRounds(): Promise<void> {
  const view = await get<RoundsView>("./v1/rounds");
  if (view) timeline.take(view, true);
}

async function loadLog(): Promise<void> {
  const view = await get<LogView>("./v1/log");
  if (view) log.take(view, true);
}

events = new EventLink(
  "./v1/events",
  {
    status: (news) => {
      const floorCame = status === null;
      status = news;
      learners.look(news.learners);
      showSentence();
      alerts.show(status.alerts);
      find("complete", HTMLElement).hidden = !status.finished;
      classView.show(status);
      refreshHeadline();
      talk.look(status);
      refreshOwner();
      if (floorCame) refreshCharts();
    },
    rounds: (news) => {
      timeline.take(news, false);
      classView.merged(news);
    },
    point: (point) => {
      if (course.append(point)) refreshCharts();
      else void loadSeries();
    },
    evaluation: (evaluation) => {
      course.evaluated(evaluation);
      // The next status has the same value up to a second later.
      if (status) status = { ...status, valLossLast: evaluation.loss };
      refreshHeadline();
      refreshCharts();
      classView.refresh();
    },
    sample: (sample) => {
      course.wrote(sample);
      refreshSamples();
      classView.refresh();
    },
    log: (news) => {
      log.take(news, false);
      // Another tab of the owner may have changed them.
      if (news.entries.some((entry) => entry.kind === "owner")) void settings.refresh();
    },
    lagged: () => {
      void loadSeries();
      void loadRounds();
      void loadLog();
    },
  },
  (state) => {
    // An attempt is not yet a connection: until it succeeds the connection counts as lost.
    link = state.link === "opening" && link.link === "lost" ? { link: "lost", retryS: 0 } : state;
    showSentence();
    if (state.link !== "open") return;
    void loadSeries();
    void loadRounds();
    void loadLog();
  },
);

showNews(
  () => events?.newsAgeS() ?? null,
  () => status?.finished ?? false,
  (ageS, isOld) => {
    const wasOld = newsAgeS > 0;
    newsAgeS = isOld ? ageS : 0;
    if (!isOld && !wasOld) return;
    showSentence();
    refreshHeadline();
  },
);
for (const name of ["online", "offline"]) window.addEventListener(name, showSentence);

// Loaded separately, so that chart code does not delay the page's first task.
void import("./charts.js").then(({ makeCharts }) => {
  refreshCharts = makeCharts(find("charts", HTMLElement), course, () => status);
  refreshCharts();
});

carryInvite();
shared.value = shareLink();
shared.addEventListener("focus", () => shared.select());
find("share-copy", HTMLButtonElement).addEventListener("click", async () => {
  const copied = await copyFrom(shared);
  setText(find("share-said", HTMLElement), copied ? "Copied." : "Selected: press Ctrl+C to copy it.");
});
