/** Leads through the chapters: predict, break, see. What is said at the end is read off the run. */

import { find, make, setAttribute, setText } from "../../shared/dom.js";
import type { Action, Frame, LessonSpec, TwinFrame } from "../../shared/lesson.js";
import type { HeldOut, Live } from "../live.js";
import { named } from "../sentence.js";
import type { Chapter, Finding, ToDo } from "./chapter.js";
import { CHAPTERS } from "./chapters/index.js";
import { type Measure, Watch } from "./measure.js";
import { isDone, isOwn, isSet, type Plan } from "./own.js";

/** What the guide asks of the page. */
export interface Stagehand {
  /** Sets the stage of a chapter, or of none. */
  open(chapter: string | null): void;
  /** Breaks what a chapter says is to break. */
  break(chapter: Chapter): void;
}

/** A run is measured once this many rounds are merged, or so much time is over: before, islands fetch the model. */
const SETTLED = { merges: 3, ms: 4_000 } as const;

type Phase =
  | { readonly phase: "before" }
  /** It is not the chapter's run, or not any more: nothing is measured. */
  | { readonly phase: "changed" }
  /** It is being broken, by deeds of these moments; `left` is still to do. */
  | {
      readonly phase: "breaking";
      readonly fromMs: number;
      readonly untilMs: number;
      readonly left: readonly ToDo[];
      readonly before: Measure | null;
    }
  | { readonly phase: "after"; readonly before: Measure; readonly heldOutBefore: readonly HeldOut[] }
  | { readonly phase: "found"; readonly finding: Finding };

export class Guide {
  chapter: Chapter | null = null;
  readonly #hand: Stagehand;
  readonly #dots = find("dots", HTMLElement);
  readonly #opening = find("opening", HTMLElement);
  readonly #lesson = find("chapter", HTMLElement);
  readonly #answers = find("answers", HTMLElement);
  readonly #break = find("break", HTMLButtonElement);
  readonly #breakHint = find("break-hint", HTMLElement);
  readonly #anew = find("anew", HTMLButtonElement);
  readonly #title = document.title;
  readonly #finding = find("finding", HTMLElement);
  readonly #foundText = find("found-text", HTMLElement);
  #watch = new Watch(0);
  #phase: Phase = { phase: "before" };
  /** What the chapter's own run is. */
  #stage: Plan | null = null;
  #guess: number | null = null;
  /** The run has settled in, and is measured since. */
  #settled = false;
  /** The run that begins next is this chapter's, broken: its stage was not set anew. */
  #breaking = false;

  constructor(hand: Stagehand) {
    this.#hand = hand;
    CHAPTERS.forEach((chapter, at) => {
      const dot = make(
        "button",
        {
          type: "button",
          class: "dot",
          "data-chapter": chapter.id,
          title: chapter.title,
          "aria-label": `${at + 1}: ${chapter.title}`,
        },
        String(at + 1),
      );
      dot.addEventListener("click", () => this.#open(chapter.id));
      this.#dots.append(make("li", {}, dot));
    });
    find("chapter-before", HTMLButtonElement).addEventListener("click", () => this.go(-1));
    find("chapter-after", HTMLButtonElement).addEventListener("click", () => this.go(1));
    find("begin-chapters", HTMLButtonElement).addEventListener("click", () => this.go(1));
    // It keeps the focus while there is nothing to break, so it is never disabled outright.
    this.#break.addEventListener("click", () => this.chapter && this.#canBreak && hand.break(this.chapter));
    this.#anew.addEventListener("click", () => this.chapter && this.#open(this.chapter.id));
  }

  /** To the next chapter, or the one before; before the first is the open stage. */
  go(by: number): void {
    const at = (this.chapter ? CHAPTERS.indexOf(this.chapter) : -1) + by;
    if (at >= CHAPTERS.length || at < -1) return;
    this.#open(CHAPTERS[at]?.id ?? null);
  }

  /** Somebody goes to a chapter, or back to the open stage: so does the focus, for those who do not see the page change. */
  #open(chapter: string | null): void {
    this.#hand.open(chapter);
    (this.chapter ? find("chapter-title", HTMLElement) : find("invite", HTMLButtonElement)).focus();
  }

  /** Shows a chapter from its beginning; `stage` is what its own run is. */
  show(chapter: Chapter | null, stage: Plan): void {
    this.chapter = chapter;
    this.#stage = stage;
    document.title = chapter ? `${chapter.title} · ${this.#title}` : this.#title;
    this.#phase = { phase: "before" };
    this.#guess = null;
    this.#opening.hidden = chapter !== null;
    find("chapters", HTMLElement).hidden = chapter === null;
    this.#lesson.hidden = chapter === null;
    for (const dot of this.#dots.querySelectorAll("button"))
      setAttribute(dot, "aria-current", dot.dataset["chapter"] === chapter?.id ? "step" : null);
    if (!chapter) return;
    setText(find("chapter-number", HTMLElement), `Chapter ${CHAPTERS.indexOf(chapter) + 1} of ${CHAPTERS.length}`);
    setText(find("chapter-title", HTMLElement), chapter.title);
    find("chapter-text", HTMLElement).replaceChildren(...chapter.text.map((text) => make("p", {}, text)));
    setText(find("question", HTMLElement), chapter.question);
    this.#answers.replaceChildren(...chapter.answers.map((answer, at) => this.#answer(answer, at)));
    setText(this.#break, chapter.break.label);
    const more = chapter.more ? [" ", make("a", { href: chapter.more.href }, chapter.more.label)] : [];
    find("moral", HTMLElement).replaceChildren(chapter.moral, ...more);
    find("chapter-after", HTMLButtonElement).disabled = CHAPTERS.at(-1) === chapter;
    this.#refresh();
  }

  #answer(text: string, at: number): HTMLElement {
    const button = make("button", { type: "button", class: "answer", "aria-pressed": "false" }, text);
    button.addEventListener("click", () => {
      if (this.#phase.phase === "found") return;
      this.#guess = at;
      this.#refresh();
    });
    return make("li", {}, button);
  }

  /** A run begins. */
  began(run: Plan): void {
    this.#watch = new Watch(run.spec.islands);
    this.#settled = false;
    if (!this.#breaking) this.#phase = { phase: this.#stage && isOwn(run, this.#stage) ? "before" : "changed" };
    this.#breaking = false;
    this.#refresh();
  }

  take(frame: Frame, live: Live): void {
    this.#watch.take(frame);
    const { chapter } = this;
    if (!chapter) return;
    const begun = this.#watch.now;
    if (!this.#settled && (begun.merges >= SETTLED.merges || begun.untilMs >= SETTLED.ms)) {
      this.#settled = true;
      this.#watch.cut();
    }
    this.#follow(frame.nowMs);
    const { now } = this.#watch;
    if (this.#phase.phase === "after" && this.#settled && now.untilMs - now.fromMs >= chapter.afterMs) {
      const { before, heldOutBefore } = this.#phase;
      this.#phase = { phase: "found", finding: chapter.find({ before, after: now, live, heldOutBefore }) };
    }
    this.#refresh();
  }

  takeTwin(frame: TwinFrame): void {
    this.#watch.takeTwin(frame);
  }

  /** Somebody did something to the run; perhaps it was what the chapter asks for. Anything else makes it another run. */
  acted(action: Action): void {
    const phase = this.#phase;
    if (!this.chapter || phase.phase === "found") return;
    const todo = this.chapter.break.kind === "deeds" ? this.chapter.break.deeds : [];
    const due =
      phase.phase === "breaking" ? phase.left : phase.phase === "before" && this.#isWarm(this.chapter) ? todo : [];
    const left = due.filter((one) => !isDone(action, one));
    if (left.length === due.length) this.#phase = { phase: "changed" };
    else if (phase.phase === "breaking") this.#phase = { ...phase, untilMs: action.atMs, left };
    else this.#phase = { phase: "breaking", fromMs: action.atMs, untilMs: action.atMs, left, before: null };
    this.#refresh();
  }

  /** The run goes on while it is being broken: what was measured ends with the first deed, and begins anew with the last. */
  #follow(nowMs: number): void {
    const phase = this.#phase;
    if (phase.phase !== "breaking" || nowMs < phase.fromMs) return;
    const isOver = phase.left.length === 0 && nowMs >= phase.untilMs;
    const before = phase.before ?? this.#watch.cut();
    if (isOver && phase.before) this.#watch.cut();
    this.#phase = isOver ? { phase: "after", before, heldOutBefore: [] } : { ...phase, before };
  }

  /** The setting that the chapter asks for is about to be changed. */
  changing(heldOutBefore: readonly HeldOut[]): void {
    this.#breaking = true;
    this.#phase = { phase: "after", before: this.#watch.cut(), heldOutBefore };
    this.#refresh();
  }

  /** Whether the chapter's stage is not what it was: a setting was changed, as it asked for. */
  get isRebuilt(): boolean {
    return this.chapter?.break.kind === "setting" && (this.#phase.phase === "after" || this.#phase.phase === "found");
  }

  /** Whether these settings are the ones that the chapter asks for next. */
  asksFor(spec: LessonSpec): boolean {
    const { chapter } = this;
    if (chapter?.break.kind !== "setting" || !this.#stage || this.#phase.phase !== "before") return false;
    return this.#isWarm(chapter) && isSet(spec, this.#stage.spec, chapter.break.change);
  }

  /** Whether enough was measured of the undisturbed run. */
  #isWarm(chapter: Chapter): boolean {
    const { now } = this.#watch;
    return this.#settled && now.untilMs - now.fromMs >= chapter.beforeMs;
  }

  get #canBreak(): boolean {
    return (
      this.chapter !== null && this.#phase.phase === "before" && this.#guess !== null && this.#isWarm(this.chapter)
    );
  }

  #refresh(): void {
    const { chapter } = this;
    if (!chapter) return;
    const found = this.#phase.phase === "found" ? this.#phase.finding : null;
    const buttons = [...this.#answers.querySelectorAll("button")];
    buttons.forEach((button, at) => {
      setAttribute(button, "aria-pressed", String(this.#guess === at));
      setAttribute(button, "data-found", found?.answer === at ? "" : null);
      setAttribute(button, "aria-disabled", found ? "true" : null);
    });
    setAttribute(this.#break, "aria-disabled", this.#canBreak ? null : "true");
    setAttribute(this.#break, "data-due", this.#canBreak ? "" : null);
    setText(this.#breakHint, this.#hint(chapter));
    this.#anew.hidden = this.#phase.phase !== "changed";
    this.#finding.hidden = found === null;
    const verdict =
      this.#guess === null ? "" : this.#guess === found?.answer ? "As you predicted. " : "Not as you predicted. ";
    setText(this.#foundText, found ? verdict + found.text : "");
  }

  #hint(chapter: Chapter): string {
    const { now } = this.#watch;
    const passedMs = this.#settled && this.#phase.phase !== "breaking" ? now.untilMs - now.fromMs : 0;
    const left = (ms: number) => `${Math.max(0, Math.ceil((ms - passedMs) / 1_000))} s of the run`;
    switch (this.#phase.phase) {
      case "before":
        if (this.#guess === null) return "Choose an answer first.";
        if (!this.#isWarm(chapter)) return `First the undisturbed run is measured: ${left(chapter.beforeMs)} more.`;
        return chapter.break.kind === "setting" ? "The run begins anew with it." : "Now.";
      case "changed":
        return "This run has been changed: it cannot answer the question.";
      case "breaking":
        if (this.#phase.left.length > 0) return `Go on: ${named(this.#phase.left.map(({ island }) => island))} too.`;
        return `Watch: ${left(chapter.afterMs)} more.`;
      case "after":
        return `Watch: ${left(chapter.afterMs)} more.`;
      case "found":
        return "Done.";
    }
  }
}
