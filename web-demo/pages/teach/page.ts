/** The whole page: the run on stage, its displays, and the visitor's actions. */

import { find, setAttribute, setText } from "../shared/dom.js";
import { type Action, type Frame, LESSON_MS_MAX, type LessonSpec } from "../shared/lesson.js";
import { isPart } from "../shared/link.js";
import { whileSeen } from "../shared/paint.js";
import type { Tone } from "../shared/sentence.js";
import { phrase } from "../words/phrase.js";
import { AddressBar } from "./address-bar.js";
import { actionsOf, readBoard, writeBoard } from "./challenge/board.js";
import { CHALLENGE, END_MS, FREE } from "./challenge/challenge.js";
import { ChallengeView } from "./challenge/view.js";
import { Controls } from "./controls.js";
import { Drawing } from "./drawing.js";
import type { Chapter } from "./guide/chapter.js";
import { CHAPTERS } from "./guide/chapters/index.js";
import { Guide } from "./guide/guide.js";
import type { Stage as OwnStage } from "./guide/own.js";
import { invitedOf } from "./invitation.js";
import { isAway } from "./islands/words.js";
import { listen } from "./keys.js";
import { Live } from "./live.js";
import { Presenter } from "./presenter.js";
import { Readings } from "./readings.js";
import { leftOut, type Place, read, type StageOf, write } from "./run/address.js";
import { isLive, settingOf } from "./run/changes.js";
import { settled } from "./run/knobs.js";
import { Stage } from "./run/stage.js";
import { Settings } from "./settings/settings.js";
import { Share } from "./share.js";

/** Least time between two updates of words and figures, in milliseconds, for readers. */
const WORDS_MS = 125;
/** Time between two updates of a displayed text, in milliseconds. */
const SAMPLE_MS = 5_000;

/** Common parts of a chapter and the challenge. */
type Setting = Pick<Chapter, "stage" | "speed" | "actions" | "follow">;

export class TeachPage {
  readonly #stage = new Stage({
    began: () => this.#began(),
    lesson: (frame) => {
      const { actions, clock, spec } = this.#stage;
      if (this.#live) this.#live.spec = this.#stage.specAt(frame.nowMs);
      this.#drawing.take(frame, actions, spec.code);
      this.#live?.take(frame, actions);
      this.#readings.take(frame, !clock.playing && frame.nowMs > clock.targetMs);
      if (!this.#live) return;
      this.#guide.take(frame, this.#live);
      this.#challenge.take(frame, this.#live);
    },
    twin: (frame) => {
      this.#drawing.takeTwin(frame);
      this.#live?.takeTwin(frame);
      this.#guide.takeTwin(frame);
    },
    acted: (action) => {
      this.#guide.acted(action);
      this.#readings.acted();
      this.#address.later();
    },
    changed: () => {
      this.#guide.changed();
      this.#readings.acted();
      this.#address.later();
    },
    sampled: (atMs, text) => this.#readings.wrote(atMs, text),
    failed: (why) => {
      notice("trouble", phrase("failures.run", { why }));
    },
  });
  readonly #readings = new Readings(this.#stage, () => this.#islandOrBack(this.#invited));
  readonly #drawing = new Drawing(() => this.#stage.spec.code, {
    changed: () => this.#address.later(),
    act: (island, deed, factor) => this.#stage.act(island, deed, factor),
  });
  readonly #settings = new Settings((spec, key) => this.#set(spec, key));
  readonly #presenter = new Presenter();
  readonly #guide = new Guide({ open: (id) => this.#openChapter(id), break: (chapter) => this.#break(chapter) });
  readonly #challenge = new ChallengeView({
    again: () => this.#restart(),
    changed: () => this.#address.later(),
    stage: () => this.#stageOf(CHALLENGE.id)!.spec,
    linkTo: (entry) => this.#write({ ...this.#challengePlace(), spec: entry.spec, actions: actionsOf(entry) }),
    linkToBoard: () => this.#write(this.#challengePlace()),
  });
  readonly #controls = new Controls(
    this.#stage,
    () => this.#restart(),
    () => this.#address.later(),
  );
  readonly #share = new Share(this.#stage, () => {
    const place = this.#place();
    return { hash: this.#write(place), leftOut: leftOut(place) };
  });
  readonly #address = new AddressBar(() => {
    const place = this.#place();
    // A playing run has no moment in its address, so that a reload plays it again.
    return this.#write(this.#stage.clock.playing ? { ...place, atMs: 0 } : place);
  });
  /** The run on stage, once it has begun. */
  #live: Live | null = null;
  #drawnAtMs = 0;
  #wordedAtMs = 0;
  /** Updates of words and figures take turns: all at once would delay a frame. */
  readonly #turns: readonly ((live: Live, frame: Frame) => void)[] = [
    (live, frame) => this.#readings.showIslands(live, frame),
    (live, frame) => this.#readings.show(live, frame),
    (_, frame) => this.#drawing.say(frame, this.#stage.spec),
    (live) => this.#showRun(live),
  ];
  #turn = 0;
  /** The displayed settings. */
  #setting: LessonSpec | undefined;
  /** The moment at which the run stands still and is shared; -1 while it plays. */
  #settledAtMs = -1;

  /** Opens the place that the address names, and plays from now on. */
  async start(): Promise<void> {
    this.#bind();
    await this.#stage.ready();
    this.#open();
    // The visitor edited the address or followed a link to a chapter; the page's own changes cause no event.
    window.addEventListener("hashchange", () => {
      if (!isPart(location.hash)) return this.#open();
      this.#address.read();
      this.#address.later();
    });
    requestAnimationFrame((now) => {
      this.#drawnAtMs = now;
      this.#draw(now);
    });
  }

  #bind(): void {
    // An open text is refreshed as long as the run plays.
    whileSeen(find("texts", HTMLElement), SAMPLE_MS, () => this.#stage.clock.playing && this.#stage.sample());
    onClick("renew", () => this.#stage.sample());
    onClick("presenter", () => this.#present(!this.#presenter.isOn));
    onClick("defaults", () => this.#begin(this.#stageOf(this.#guide.id)?.spec ?? this.#stage.defaults));
    listen(
      {
        toggle: () => this.#controls.toggle(),
        step: () => this.#controls.step(),
        restart: () => this.#restart(),
        faster: (by) => this.#controls.faster(by),
        island: (index) => this.#islandOrBack(index),
        presenter: () => this.#present(!this.#presenter.isOn),
        chapter: (by) => this.#guide.go(by),
        follow: () => {
          const { followed } = this.#drawing;
          this.#drawing.follow(followed === null ? 0 : (followed + 1) % this.#stage.spec.fragments);
        },
      },
      () => this.#presenter.isOn,
    );
  }

  get #invited(): number {
    return this.#live?.frame ? invitedOf(this.#live.frame) : -1;
  }

  /** The stage of a chapter or of the challenge, or the open one. */
  readonly #stageOf: StageOf = (id) => {
    const set: Setting | undefined = id === CHALLENGE.id ? CHALLENGE : CHAPTERS.find((one) => one.id === id);
    if (id !== null && !set) return undefined;
    return {
      spec: settled({ ...this.#stage.defaults, ...set?.stage }),
      speed: set?.speed ?? 1,
      actions: set?.actions ?? [],
      followed: set?.follow ?? null,
    };
  };

  /** The displayed moment, as a place. */
  #place(): Place {
    const { clock } = this.#stage;
    return {
      ...this.#stage.plan,
      atMs: clock.playing ? Math.round(clock.shownMs) : clock.targetMs,
      speed: clock.speed,
      chapter: this.#guide.id,
      followed: this.#drawing.followed,
      view: this.#drawing.view,
      presenter: this.#presenter.isOn,
    };
  }

  /** The challenge at its beginning. */
  #challengePlace(): Place {
    const set = this.#stageOf(CHALLENGE.id)!;
    const { view } = this.#drawing;
    return { ...set, changes: [], atMs: 0, chapter: CHALLENGE.id, view, presenter: this.#presenter.isOn };
  }

  /** Returns the fragment for a place, always with the board. */
  #write(place: Place): string {
    return write(place, this.#stageOf) + writeBoard(this.#challenge.scores.entries);
  }

  /** Clears the displays of the previous run. */
  #began(): void {
    const { spec } = this.#stage;
    this.#live = new Live(spec);
    this.#drawing.reset(spec);
    this.#readings.reset(spec.islands);
    this.#showSettings();
    this.#guide.began(this.#stage.plan);
    this.#challenge.began(this.#stage.plan);
    this.#share.clear();
    this.#settledAtMs = -1;
    this.#address.later();
  }

  /** Plays a run from its seed. The chapter's own actions stay. */
  #begin(spec: LessonSpec): void {
    this.#readings.loss.before = null;
    this.#stage.clock.playing = true;
    this.#stage.begin({ spec, actions: this.#ownActions(spec), changes: [] });
  }

  /** Applies a changed setting: the run continues with it, or another run begins. */
  #set(spec: LessonSpec, key: keyof LessonSpec): void {
    if (isLive(key) && !this.#beginsAnew(key)) {
      this.#stage.change(settingOf(spec, key));
      this.#showSettings();
    } else if (this.#guide.asksFor(spec)) this.#rebuild(spec);
    else this.#begin(spec);
  }

  /** Whether a change of this setting starts another run: it is fixed, or the chapter compares runs by it. */
  #beginsAnew(key: keyof LessonSpec): boolean {
    return !isLive(key) || this.#guide.id === CHALLENGE.id || this.#guide.compares.includes(key);
  }

  /** Shows the current settings. */
  #showSettings(): void {
    this.#setting = this.#stage.spec;
    this.#settings.show(this.#setting);
  }

  /** Returns the chapter's own actions, as far as the run has their islands. */
  #ownActions(spec: LessonSpec): readonly Action[] {
    return this.#stageOf(this.#guide.id)!.actions.filter(({ island }) => island < spec.islands);
  }

  /** Shows the parts of a chapter, of the challenge, or of neither. */
  #show(id: string | null, stage: OwnStage): void {
    this.#guide.show(id, stage);
    const isChallenge = id === CHALLENGE.id;
    this.#settings.allow(isChallenge ? FREE : null);
    this.#stage.clock.endMs = isChallenge ? END_MS : LESSON_MS_MAX;
  }

  #openChapter(id: string | null): void {
    if (!this.#live) return this.#openLater(id);
    const set = this.#stageOf(id);
    if (!set) return;
    this.#show(id, set);
    this.#controls.choose(set.speed);
    this.#begin(set.spec);
    this.#drawing.follow(set.followed);
  }

  /** Before the Workers are ready there is no run; the first one begins as the address says. */
  #openLater(id: string | null): void {
    const fields = new URLSearchParams(location.hash.slice(1));
    for (const name of ["a", "t", "chapter"]) fields.delete(name);
    if (id !== null) fields.set("chapter", id);
    window.history.replaceState(null, "", `#${fields}`);
  }

  #break(chapter: Chapter): void {
    const todo = chapter.break;
    if (todo.kind === "deeds") {
      for (const { island, deed, factor } of todo.deeds) this.#stage.act(island, deed, factor);
      this.#stage.clock.playing = true;
      return;
    }
    this.#rebuild(settled({ ...this.#stage.spec, ...todo.change }));
  }

  /** Restarts a chapter's run with the setting that it asks for, to compare the two. */
  #rebuild(spec: LessonSpec): void {
    const heldOut = this.#live?.heldOut ?? [];
    this.#guide.changing(heldOut);
    this.#begin(spec);
    this.#readings.loss.before = { label: phrase("figures.beforeLine"), heldOut };
  }

  /** Restarts the same run; a completed chapter starts again as a whole. */
  #restart(): void {
    if (this.#guide.chapter && this.#guide.isRebuilt) this.#openChapter(this.#guide.chapter.id);
    else this.#begin(this.#stage.spec);
  }

  #present(on: boolean): void {
    this.#presenter.set(on);
    this.#address.later();
  }

  /** Kills the island, or starts it again. */
  #islandOrBack(index: number): void {
    const island = this.#live?.frame?.islands[index];
    if (island && island.state !== "expected") this.#stage.act(index, isAway(island) ? "restart" : "kill");
  }

  /** Goes to the place that the address names. */
  #open(): void {
    const hash = this.#address.read();
    const { place, notices } = read(hash, this.#stageOf);
    const board = readBoard(hash, this.#stageOf(CHALLENGE.id)!.spec);
    this.#challenge.scores.claim(board.entries);
    notice("held", [...notices, ...board.notices].join(" "));
    this.#show(place.chapter, this.#stageOf(place.chapter)!);
    this.#readings.loss.before = null;
    this.#stage.clock.speed = place.speed;
    // A linked moment is shown as it was; everything else plays at once.
    this.#stage.clock.playing = place.atMs === 0;
    const { length } = [...place.actions, ...place.changes];
    const actions = length > 0 || place.atMs > 0 ? place.actions : this.#ownActions(place.spec);
    this.#stage.begin({ ...place, actions }, place.atMs);
    this.#drawing.follow(place.followed);
    this.#drawing.view = place.view;
    this.#present(place.presenter);
  }

  #draw(now: number): void {
    requestAnimationFrame((next) => this.#draw(next));
    const wallMs = now - this.#drawnAtMs;
    this.#drawnAtMs = now;
    this.#stage.tick(wallMs);
    const shown = this.#live?.frame;
    if (!this.#live || !shown) return;
    this.#drawing.draw(this.#live, shown, this.#stage.clock, this.#stage.spec, wallMs, this.#guide.watched);
    this.#shareWhenSettled();
    if (now - this.#wordedAtMs < WORDS_MS / this.#turns.length) return;
    this.#wordedAtMs = now;
    this.#turns[this.#turn]!(this.#live, shown);
    this.#turn = (this.#turn + 1) % this.#turns.length;
  }

  /** Shows the state of the run, and the possible controls. */
  #showRun(live: Live): void {
    this.#readings.loss.watched = this.#guide.watched;
    this.#readings.loss.show(live);
    this.#controls.show();
    this.#challenge.show();
    // A link may hold changes that come by themselves.
    if (this.#setting !== this.#stage.spec) this.#showSettings();
    this.#settings.mark((key) => this.#beginsAnew(key));
  }

  /** Updates the link of a run that stands still at a moment. */
  #shareWhenSettled(): void {
    const { clock, isSettled } = this.#stage;
    if (!clock.playing && isSettled && this.#settledAtMs !== clock.targetMs) {
      this.#settledAtMs = clock.targetMs;
      void this.#share.settle();
      this.#address.later();
    }
    if (clock.playing && this.#settledAtMs !== -1) {
      this.#settledAtMs = -1;
      this.#share.clear();
    }
  }
}

function onClick(id: string, what: () => void): void {
  find(id, HTMLButtonElement).addEventListener("click", what);
}

/** Shows a notice above the run, or none. */
function notice(tone: Tone, text: string): void {
  const place = find("notice", HTMLElement);
  place.hidden = text === "";
  setAttribute(place, "data-tone", tone);
  setText(place, text);
}
