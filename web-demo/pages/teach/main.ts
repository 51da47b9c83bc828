/** The page on which decoupled training is broken on purpose. It draws; two Workers run. */
import "./teach.css";
import type { Action, Frame, LessonSpec } from "../shared/lesson.js";
import { find, setAttribute, setText } from "../shared/dom.js";
import { legible } from "../shared/format.js";
import { isPart } from "../shared/link.js";
import { whileSeen } from "../shared/paint.js";
import { Controls } from "./controls.js";
import { LossChart } from "./figures/loss.js";
import { FiguresTable } from "./figures/table.js";
import type { Chapter } from "./guide/chapter.js";
import { CHAPTERS } from "./guide/chapters/index.js";
import { Guide } from "./guide/guide.js";
import { Cards } from "./islands/cards.js";
import { isAway } from "./islands/words.js";
import { listen } from "./keys.js";
import { Live } from "./live.js";
import { Presenter } from "./presenter.js";
import { leftOut, read, write, type Place, type StageOf } from "./run/address.js";
import { settled } from "./run/knobs.js";
import { Stage } from "./run/stage.js";
import { invitedOf, SentenceView } from "./sentence-view.js";
import { Settings } from "./settings/settings.js";
import { Share } from "./share.js";
import { History } from "./timeline/history.js";
import { ParcelView } from "./timeline/parcel.js";
import { TimelineView } from "./timeline/view.js";
import { Words } from "./timeline/words.js";

/** Words and figures change so often at most, in milliseconds: faster nobody reads. */
const WORDS_MS = 125;
/** The link in the address bar changes so often at most, in milliseconds: browsers refuse more. */
const ADDRESS_MS = 500;
/** A text that is looked at is written anew so often, in milliseconds. */
const SAMPLE_MS = 5_000;

const history = new History();
let live: Live | null = null;

const stage = new Stage({
  began: () => began(),
  lesson: (frame) => {
    history.take(frame, stage.actions);
    live?.take(frame, stage.actions);
    words.take(frame.marks, !stage.clock.playing && frame.nowMs > stage.clock.targetMs);
    if (live) guide.take(frame, live);
    const parcel = parcels.take(frame.marks, timeline.followed, stage.spec.code);
    if (parcel && timeline.followed !== null) timeline.chosen = parcel;
  },
  twin: (frame) => {
    history.takeTwin(frame);
    live?.takeTwin(frame);
    guide.takeTwin(frame);
  },
  acted: (action) => {
    guide.acted(action);
    sentence.urgent();
    addressLater();
  },
  sampled: (atMs, text) => {
    const [id, at] = atMs === 0 ? ["text-before", "text-before-at"] : ["text-now", "text-now-at"];
    setText(find(id, HTMLElement), legible(text));
    setText(find(at, HTMLElement), atMs === 0 ? "At the start" : `After ${(atMs / 1_000).toFixed(1)} s`);
  },
  failed: (why) => {
    const notice = find("notice", HTMLElement);
    notice.hidden = false;
    setAttribute(notice, "data-tone", "trouble");
    setText(notice, `The run broke down: ${why}. Load the page anew; if that does not help, this browser may be too old for WebAssembly.`);
  },
});

const words = new Words();
const sentence = new SentenceView();
const figures = new FiguresTable();
const loss = new LossChart();
const cards = new Cards((island, deed, factor) => stage.act(island, deed, factor));
const parcels = new ParcelView(follow);
const timeline = new TimelineView(history, (parcel) => {
  timeline.chosen = parcel;
  parcels.show(parcel, stage.spec.code);
});
const settings = new Settings((spec) => (guide.asksFor(spec) ? rebuild(spec) : begin(spec)));
const presenter = new Presenter();
const guide = new Guide({ open: openChapter, break: breakIt });
const controls = new Controls(stage, restart, () => addressLater());
const share = new Share(stage, () => ({ hash: write(placeNow(), stageOf), leftOut: leftOut(placeNow()) }));

/** The stage of a chapter, or the open one. */
const stageOf: StageOf = (id) => {
  const chapter = CHAPTERS.find((one) => one.id === id);
  if (id !== null && !chapter) return undefined;
  return { spec: settled({ ...stage.defaults, ...chapter?.stage }), speed: chapter?.speed ?? 1, actions: chapter?.actions ?? [], followed: chapter?.follow ?? null };
};

/** The moment that is seen, as a place. */
function placeNow(): Place {
  const { spec, actions, clock } = stage;
  return {
    spec, actions, atMs: clock.playing ? Math.round(clock.shownMs) : clock.targetMs, speed: clock.speed, chapter: guide.chapter?.id ?? null,
    followed: timeline.followed, presenter: presenter.isOn,
  };
}

let addressTimer: ReturnType<typeof setTimeout> | undefined;
let addressedAt = -ADDRESS_MS;
/** The fragment that was last read or written. With another one in the address, somebody is on the way to another place. */
let addressed = "";

function addressLater(): void {
  addressTimer ??= setTimeout(() => {
    addressTimer = undefined;
    addressedAt = performance.now();
    if (location.hash !== addressed) return;
    const place = placeNow();
    // A run that plays has no moment in its address: loaded anew, it is to play.
    window.history.replaceState(null, "", write(stage.clock.playing ? { ...place, atMs: 0 } : place, stageOf));
    addressed = location.hash;
  }, addressedAt + ADDRESS_MS - performance.now());
}

function began(): void {
  const { spec } = stage;
  live = new Live(spec);
  history.reset(spec.islands);
  cards.reset(spec.islands);
  parcels.reset(spec.fragments);
  timeline.reset();
  if (timeline.followed !== null && timeline.followed >= spec.fragments) timeline.followed = null;
  words.reset();
  settings.show(spec);
  guide.began(stage);
  share.clear();
  settledAt = -1;
  setText(find("text-now", HTMLElement), "Nothing written yet.");
  setText(find("text-now-at", HTMLElement), "Now");
  addressLater();
}

/** A run from its seed, playing. What the chapter itself does to it stays. */
function begin(spec: LessonSpec): void {
  loss.before = null;
  stage.clock.playing = true;
  stage.begin(spec, ownActions(spec));
}

/** What the chapter itself does to a run, as far as the run has such islands. */
function ownActions(spec: LessonSpec): readonly Action[] {
  return stageOf(guide.chapter?.id ?? null)!.actions.filter(({ island }) => island < spec.islands);
}

function openChapter(id: string | null): void {
  const set = stageOf(id);
  if (!set) return;
  guide.show(CHAPTERS.find((one) => one.id === id) ?? null, set);
  loss.before = null;
  controls.choose(set.speed);
  begin(set.spec);
  parcels.choose(set.followed);
}

function breakIt(chapter: Chapter): void {
  const todo = chapter.break;
  if (todo.kind === "deeds") {
    for (const { island, deed, factor } of todo.deeds) stage.act(island, deed, factor);
    stage.clock.playing = true;
    return;
  }
  rebuild(settled({ ...stage.spec, ...todo.change }));
}

/** Begins a chapter's run anew with the setting that it asks for, to compare the two. */
function rebuild(spec: LessonSpec): void {
  const heldOut = live?.heldOut ?? [];
  guide.changing(heldOut);
  begin(spec);
  loss.before = { label: "before", heldOut };
}

/** The same run again; a chapter that was through begins anew as a whole. */
function restart(): void {
  if (guide.chapter && guide.isRebuilt) openChapter(guide.chapter.id);
  else begin(stage.spec);
}

function follow(fragment: number | null): void {
  timeline.followed = fragment;
  timeline.chosen = null;
  addressLater();
}

function present(on: boolean): void {
  presenter.set(on);
  addressLater();
}

function islandOrBack(frame: Frame, index: number): void {
  const island = frame.islands[index];
  if (island && island.state !== "expected") stage.act(index, isAway(island) ? "restart" : "kill");
}

/** Goes to the place that the address names. */
function open(): void {
  addressed = location.hash;
  const { place, notices } = read(addressed, stageOf);
  const notice = find("notice", HTMLElement);
  notice.hidden = notices.length === 0;
  setAttribute(notice, "data-tone", "held");
  setText(notice, notices.join(" "));
  guide.show(CHAPTERS.find((one) => one.id === place.chapter) ?? null, stageOf(place.chapter)!);
  loss.before = null;
  stage.clock.speed = place.speed;
  // A moment that somebody pointed to is shown as it was; everything else plays at once.
  stage.clock.playing = place.atMs === 0;
  const actions = place.actions.length > 0 || place.atMs > 0 ? place.actions : ownActions(place.spec);
  stage.begin(place.spec, actions, place.atMs);
  parcels.choose(place.followed);
  present(place.presenter);
}

let before = 0;
let worded = 0;
let settledAt = -1;

function frame(now: number): void {
  requestAnimationFrame(frame);
  const wall = now - before;
  before = now;
  stage.tick(wall);
  const shown = live?.frame;
  if (!live || !shown) return;
  const { clock, spec } = stage;
  timeline.draw(shown.islands, clock.shownMs, Math.min(clock.speed, Math.max(0.25, clock.pace)), spec.stepMs, spec.roundsInFlight, wall);
  if (!clock.playing && stage.isSettled && settledAt !== clock.targetMs) {
    settledAt = clock.targetMs;
    void share.settle();
    addressLater();
  }
  if (clock.playing && settledAt !== -1) {
    settledAt = -1;
    share.clear();
  }
  if (now - worded < WORDS_MS) return;
  worded = now;
  cards.show(shown);
  figures.show(live);
  loss.show(live);
  sentence.show(live);
  controls.show();
  words.show();
}

find("invite", HTMLButtonElement).addEventListener("click", () => live?.frame && islandOrBack(live.frame, invitedOf(live.frame)));
// Whoever reads it reads the newest, as long as the run goes on.
whileSeen(find("texts", HTMLElement), SAMPLE_MS, () => stage.clock.playing && stage.sample());
find("renew", HTMLButtonElement).addEventListener("click", () => stage.sample());
find("presenter", HTMLButtonElement).addEventListener("click", () => present(!presenter.isOn));
find("defaults", HTMLButtonElement).addEventListener("click", () => begin(stageOf(guide.chapter?.id ?? null)?.spec ?? stage.defaults));

listen(
  {
    toggle: () => controls.toggle(),
    step: () => controls.step(),
    restart,
    faster: (by) => controls.faster(by),
    island: (index) => live?.frame && islandOrBack(live.frame, index),
    presenter: () => present(!presenter.isOn),
    chapter: (by) => guide.go(by),
    follow: () => parcels.choose(timeline.followed === null ? 0 : (timeline.followed + 1) % stage.spec.fragments),
  },
  () => presenter.isOn,
);

await stage.ready();
open();
// Somebody edited the address, or followed a link to a chapter; our own changes do not tell.
window.addEventListener("hashchange", () => {
  if (!isPart(location.hash)) return open();
  addressed = location.hash;
  addressLater();
});
requestAnimationFrame((now) => {
  before = now;
  frame(now);
});
