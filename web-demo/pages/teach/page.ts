/** The page as a whole: the run on stage, what shows it, and what its visitor does. */
import { find, setAttribute, setText } from "../shared/dom.js";
import type { Action, LessonSpec } from "../shared/lesson.js";
import { isPart } from "../shared/link.js";
import { whileSeen } from "../shared/paint.js";
import type { Tone } from "../shared/sentence.js";
import { AddressBar } from "./address-bar.js";
import { Controls } from "./controls.js";
import { Drawing } from "./drawing.js";
import type { Chapter } from "./guide/chapter.js";
import { CHAPTERS } from "./guide/chapters/index.js";
import { Guide } from "./guide/guide.js";
import { invitedOf } from "./invitation.js";
import { isAway } from "./islands/words.js";
import { listen } from "./keys.js";
import { Live } from "./live.js";
import { Presenter } from "./presenter.js";
import { Readings } from "./readings.js";
import { leftOut, type Place, read, type StageOf, write } from "./run/address.js";
import { settled } from "./run/knobs.js";
import { Stage } from "./run/stage.js";
import { Settings } from "./settings/settings.js";
import { Share } from "./share.js";

/** Words and figures change so often at most, in milliseconds: faster nobody reads. */
const WORDS_MS = 125;
/** A text that is looked at is written anew so often, in milliseconds. */
const SAMPLE_MS = 5_000;

export class TeachPage {
  readonly #stage = new Stage({
    began: () => this.#began(),
    lesson: (frame) => {
      const { actions, clock, spec } = this.#stage;
      this.#drawing.take(frame, actions, spec.code);
      this.#live?.take(frame, actions);
      this.#readings.take(frame, !clock.playing && frame.nowMs > clock.targetMs);
      if (this.#live) this.#guide.take(frame, this.#live);
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
    sampled: (atMs, text) => this.#readings.wrote(atMs, text),
    failed: (why) => {
      const help = "Load the page anew; if that does not help, this browser may be too old for WebAssembly.";
      notice("trouble", `The run broke down: ${why}. ${help}`);
    },
  });
  readonly #readings = new Readings(this.#stage, () => this.#islandOrBack(this.#invited));
  readonly #drawing = new Drawing(
    () => this.#stage.spec.code,
    () => this.#address.later(),
  );
  readonly #settings = new Settings((spec) => (this.#guide.asksFor(spec) ? this.#rebuild(spec) : this.#begin(spec)));
  readonly #presenter = new Presenter();
  readonly #guide = new Guide({ open: (id) => this.#openChapter(id), break: (chapter) => this.#break(chapter) });
  readonly #controls = new Controls(
    this.#stage,
    () => this.#restart(),
    () => this.#address.later(),
  );
  readonly #share = new Share(this.#stage, () => {
    const place = this.#place();
    return { hash: write(place, this.#stageOf), leftOut: leftOut(place) };
  });
  readonly #address = new AddressBar(() => {
    const place = this.#place();
    // A run that plays has no moment in its address: loaded anew, it is to play.
    return write(this.#stage.clock.playing ? { ...place, atMs: 0 } : place, this.#stageOf);
  });
  /** The run on stage, once it has begun. */
  #live: Live | null = null;
  #drawnAtMs = 0;
  #wordedAtMs = 0;
  /** The moment at which the run stands still and is shared, -1 while it goes on. */
  #settledAtMs = -1;

  /** Opens the place that the address names, and plays from now on. */
  async start(): Promise<void> {
    this.#bind();
    await this.#stage.ready();
    this.#open();
    // Somebody edited the address, or followed a link to a chapter; our own changes do not tell.
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
    // Whoever reads it reads the newest, as long as the run goes on.
    whileSeen(find("texts", HTMLElement), SAMPLE_MS, () => this.#stage.clock.playing && this.#stage.sample());
    onClick("renew", () => this.#stage.sample());
    onClick("presenter", () => this.#present(!this.#presenter.isOn));
    onClick("defaults", () => this.#begin(this.#stageOf(this.#chapterId)?.spec ?? this.#stage.defaults));
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

  get #chapterId(): string | null {
    return this.#guide.chapter?.id ?? null;
  }

  get #invited(): number {
    return this.#live?.frame ? invitedOf(this.#live.frame) : -1;
  }

  /** The stage of a chapter, or the open one. */
  readonly #stageOf: StageOf = (id) => {
    const chapter = chapterOf(id);
    if (id !== null && !chapter) return undefined;
    return {
      spec: settled({ ...this.#stage.defaults, ...chapter?.stage }),
      speed: chapter?.speed ?? 1,
      actions: chapter?.actions ?? [],
      followed: chapter?.follow ?? null,
    };
  };

  /** The moment that is seen, as a place. */
  #place(): Place {
    const { spec, actions, clock } = this.#stage;
    return {
      spec,
      actions,
      atMs: clock.playing ? Math.round(clock.shownMs) : clock.targetMs,
      speed: clock.speed,
      chapter: this.#chapterId,
      followed: this.#drawing.followed,
      presenter: this.#presenter.isOn,
    };
  }

  /** A run is on stage: what was shown of the one before goes. */
  #began(): void {
    const { spec } = this.#stage;
    this.#live = new Live(spec);
    this.#drawing.reset(spec);
    this.#readings.reset(spec.islands);
    this.#settings.show(spec);
    this.#guide.began(this.#stage);
    this.#share.clear();
    this.#settledAtMs = -1;
    this.#address.later();
  }

  /** A run from its seed, playing. What the chapter itself does to it stays. */
  #begin(spec: LessonSpec): void {
    this.#readings.loss.before = null;
    this.#stage.clock.playing = true;
    this.#stage.begin(spec, this.#ownActions(spec));
  }

  /** What the chapter itself does to a run, as far as the run has such islands. */
  #ownActions(spec: LessonSpec): readonly Action[] {
    return this.#stageOf(this.#chapterId)!.actions.filter(({ island }) => island < spec.islands);
  }

  #openChapter(id: string | null): void {
    const set = this.#stageOf(id);
    if (!set) return;
    this.#guide.show(chapterOf(id), set);
    this.#controls.choose(set.speed);
    this.#begin(set.spec);
    this.#drawing.follow(set.followed);
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

  /** Begins a chapter's run anew with the setting that it asks for, to compare the two. */
  #rebuild(spec: LessonSpec): void {
    const heldOut = this.#live?.heldOut ?? [];
    this.#guide.changing(heldOut);
    this.#begin(spec);
    this.#readings.loss.before = { label: "before", heldOut };
  }

  /** The same run again; a chapter that was through begins anew as a whole. */
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
    const { place, notices } = read(this.#address.read(), this.#stageOf);
    notice("held", notices.join(" "));
    this.#guide.show(chapterOf(place.chapter), this.#stageOf(place.chapter)!);
    this.#readings.loss.before = null;
    this.#stage.clock.speed = place.speed;
    // A moment that somebody pointed to is shown as it was; everything else plays at once.
    this.#stage.clock.playing = place.atMs === 0;
    const actions = place.actions.length > 0 || place.atMs > 0 ? place.actions : this.#ownActions(place.spec);
    this.#stage.begin(place.spec, actions, place.atMs);
    this.#drawing.follow(place.followed);
    this.#present(place.presenter);
  }

  #draw(now: number): void {
    requestAnimationFrame((next) => this.#draw(next));
    const wallMs = now - this.#drawnAtMs;
    this.#drawnAtMs = now;
    this.#stage.tick(wallMs);
    const shown = this.#live?.frame;
    if (!this.#live || !shown) return;
    this.#drawing.draw(shown, this.#stage.clock, this.#stage.spec, wallMs);
    this.#shareWhenSettled();
    if (now - this.#wordedAtMs < WORDS_MS) return;
    this.#wordedAtMs = now;
    this.#readings.show(this.#live, shown);
    this.#controls.show();
  }

  /** A run that stands still at a moment has a link to it. */
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

function chapterOf(id: string | null): Chapter | null {
  return CHAPTERS.find((one) => one.id === id) ?? null;
}

function onClick(id: string, what: () => void): void {
  find(id, HTMLButtonElement).addEventListener("click", what);
}

/** Says something above the run, or nothing. */
function notice(tone: Tone, text: string): void {
  const place = find("notice", HTMLElement);
  place.hidden = text === "";
  setAttribute(place, "data-tone", tone);
  setText(place, text);
}
