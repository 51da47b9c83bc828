/** Leads through the chapters: predict, break, see. What is said at the end is read off the run. */

import { fillRows, find, make, setAttribute, setText } from "../../shared/dom.js";
import { percent } from "../../shared/format.js";
import type { Action, Frame, LessonSpec, TwinFrame } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import { CHALLENGE } from "../challenge/challenge.js";
import type { HeldOut, Live } from "../live.js";
import { numbers } from "../sentence.js";
import type { Chapter } from "./chapter.js";
import { CHAPTERS } from "./chapters/index.js";
import { Ending } from "./ending.js";
import { Inquiry } from "./inquiry.js";
import type { Plan, Stage } from "./own.js";
import { Strips } from "./strips.js";
import { NOTHING, type Watched } from "./watched.js";

/** What the guide asks of the page. */
export interface Stagehand {
  /** Sets the stage of a chapter, of the challenge, or of neither. */
  open(id: string | null): void;
  /** Breaks what a chapter says is to break. */
  break(chapter: Chapter): void;
}

/** What comes before the first chapter and after the last one, in the order of the buttons. */
const OPENING = -1;
const ENDING = CHAPTERS.length;
const CHALLENGED = CHAPTERS.length + 1;

export class Guide {
  readonly #hand: Stagehand;
  readonly #dots = find("dots", HTMLElement);
  readonly #opening = find("opening", HTMLElement);
  readonly #lesson = find("chapter", HTMLElement);
  readonly #answers = find("answers", HTMLElement);
  readonly #break = find("break", HTMLButtonElement);
  readonly #toBreak = find("to-break", HTMLElement);
  readonly #breakHint = find("break-hint", HTMLElement);
  readonly #anew = find("anew", HTMLButtonElement);
  readonly #title = document.title;
  readonly #finding = find("finding", HTMLElement);
  readonly #foundText = find("found-text", HTMLElement);
  readonly #strips = new Strips();
  readonly #ending = new Ending(CHAPTERS, (id) => this.#open(id));
  /** Where somebody is: before the first chapter, in one, at what was predicted, or in the challenge. */
  #at = OPENING;
  /** What is asked of the run; nothing before the first chapter and after the last. */
  #inquiry: Inquiry | null = null;
  #guess: number | null = null;

  constructor(hand: Stagehand) {
    this.#hand = hand;
    CHAPTERS.forEach(({ id, title }, at) =>
      this.#dot(id, String(at + 1), title, phrase("guide.dot", { number: at + 1, title })),
    );
    this.#dot(CHALLENGE.id, "★", CHALLENGE.title, CHALLENGE.title);
    find("chapter-before", HTMLButtonElement).addEventListener("click", () => this.go(-1));
    find("chapter-after", HTMLButtonElement).addEventListener("click", () => this.go(1));
    find("begin-chapters", HTMLButtonElement).addEventListener("click", () => this.go(1));
    for (const button of document.querySelectorAll(".to-challenge"))
      button.addEventListener("click", () => this.#open(CHALLENGE.id));
    // It keeps the focus while there is nothing to break, so it is never disabled outright.
    this.#break.addEventListener("click", () => this.chapter && this.#canBreak && hand.break(this.chapter));
    this.#anew.addEventListener("click", () => this.chapter && this.#open(this.chapter.id));
  }

  #dot(id: string, text: string, title: string, label: string): void {
    const attributes = { type: "button", class: "dot", "data-chapter": id, title, "aria-label": label };
    const dot = make("button", attributes, text);
    dot.addEventListener("click", () => this.#open(id));
    this.#dots.append(make("li", {}, dot));
  }

  /** What is open, as links name it: a chapter, the challenge, or `null`. */
  get id(): string | null {
    return this.#at === CHALLENGED ? CHALLENGE.id : (this.chapter?.id ?? null);
  }

  /** The chapter that is open. */
  get chapter(): Chapter | null {
    return this.#inquiry?.chapter ?? null;
  }

  /** To what comes next, or before. */
  go(by: number): void {
    const at = this.#at + by;
    if (at < OPENING || at > CHALLENGED) return;
    if (at === ENDING) return this.#end();
    this.#open(at === CHALLENGED ? CHALLENGE.id : (CHAPTERS[at]?.id ?? null));
  }

  /** Somebody goes to a chapter, or elsewhere: so does the focus, for those who do not see the page change. */
  #open(id: string | null): void {
    this.#hand.open(id);
    const title = this.chapter ? "chapter-title" : this.#at === CHALLENGED ? "challenge-title" : "invite";
    find(title, HTMLElement).focus();
  }

  /** After the last chapter: the open stage, and what was predicted. */
  #end(): void {
    this.#hand.open(null);
    this.#set(ENDING);
    this.#ending.show();
  }

  /** Shows what belongs to where somebody is. */
  #set(at: number): void {
    this.#at = at;
    const chapter = CHAPTERS[at];
    this.#opening.hidden = at !== OPENING;
    this.#lesson.hidden = chapter === undefined;
    find("challenge", HTMLElement).hidden = at !== CHALLENGED;
    this.#ending.hide();
    find("chapters", HTMLElement).hidden = at === OPENING;
    for (const dot of this.#dots.querySelectorAll("button"))
      setAttribute(dot, "aria-current", dot.dataset["chapter"] === this.id ? "step" : null);
    const title = chapter?.title ?? (at === CHALLENGED ? CHALLENGE.title : null);
    document.title = title === null ? this.#title : phrase("guide.pageTitle", { title, page: this.#title });
    const number = chapter ? phrase("guide.number", { number: at + 1, chapters: CHAPTERS.length }) : "";
    setText(find("chapter-number", HTMLElement), number);
    const after = find("chapter-after", HTMLButtonElement);
    after.hidden = at === CHALLENGED;
    setText(after, phrase(at === ENDING ? "challenge.title" : at === ENDING - 1 ? "guide.toEnding" : "guide.next"));
  }

  /** Shows a chapter from its beginning, the challenge, or the opening; `stage` is what its own run is. */
  show(id: string | null, stage: Stage): void {
    const at = CHAPTERS.findIndex((one) => one.id === id);
    const chapter = CHAPTERS[at] ?? null;
    this.#inquiry = chapter && new Inquiry(chapter, stage);
    this.#guess = null;
    this.#set(chapter ? at : id === CHALLENGE.id ? CHALLENGED : OPENING);
    if (!chapter) return;
    setText(find("chapter-title", HTMLElement), chapter.title);
    for (const id of ["chapter-text", "text-again"])
      find(id, HTMLElement).replaceChildren(...chapter.text.map((text) => make("p", {}, text)));
    find("again", HTMLDetailsElement).open = false;
    setText(find("question", HTMLElement), chapter.question);
    this.#answers.replaceChildren(...chapter.answers.map((answer, at) => this.#answer(answer, at)));
    setText(this.#break, chapter.break.label);
    const more = chapter.more ? [" ", make("a", { href: chapter.more.href }, chapter.more.label)] : [];
    find("moral", HTMLElement).replaceChildren(chapter.moral, ...more);
    this.#refresh();
  }

  #answer(text: string, at: number): HTMLElement {
    const button = make("button", { type: "button", class: "answer", "aria-pressed": "false" }, text);
    button.addEventListener("click", () => {
      // Whoever has seen what comes of it predicts nothing.
      if (this.#isDecided) return;
      this.#guess = at;
      this.#refresh();
    });
    return make("li", {}, button);
  }

  /** A run begins. */
  began(run: Plan): void {
    this.#inquiry?.began(run);
    this.#refresh();
  }

  take(frame: Frame, live: Live): void {
    const inquiry = this.#inquiry;
    if (!inquiry) return;
    const wasFound = inquiry.phase.phase === "found";
    inquiry.take(frame, live);
    const { phase } = inquiry;
    if (phase.phase === "found" && !wasFound && this.#guess !== null)
      this.#ending.saw(inquiry.chapter.id, this.#guess === phase.finding.answer);
    this.#refresh();
  }

  takeTwin(frame: TwinFrame): void {
    this.#inquiry?.takeTwin(frame);
  }

  /** Somebody did something to the run. */
  acted(action: Action): void {
    this.#inquiry?.acted(action);
    this.#refresh();
  }

  /** Somebody changed a setting of the run, which goes on. */
  changed(): void {
    this.#inquiry?.changed();
    this.#refresh();
  }

  /** The settings that the chapter compares two runs by, as long as it has not. */
  get compares(): readonly (keyof LessonSpec)[] {
    const inquiry = this.#inquiry;
    const todo = inquiry?.chapter.break;
    if (!inquiry || todo?.kind !== "setting" || inquiry.phase.phase === "found") return [];
    return Object.keys(todo.change) as (keyof LessonSpec)[];
  }

  /** The setting that the chapter asks for is about to be changed. */
  changing(heldOutBefore: readonly HeldOut[]): void {
    this.#inquiry?.changing(heldOutBefore);
    this.#refresh();
  }

  /** What the pictures mark of the chapter's question. */
  get watched(): Watched {
    return this.#inquiry?.watched ?? NOTHING;
  }

  /** Whether the chapter's stage is not what it was: a setting was changed, as it asked for. */
  get isRebuilt(): boolean {
    return this.#inquiry?.isRebuilt ?? false;
  }

  /** Whether these settings are the ones that the chapter asks for next. */
  asksFor(spec: LessonSpec): boolean {
    return this.#inquiry?.asksFor(spec) ?? false;
  }

  /** Whether the run is broken already. */
  get #isDecided(): boolean {
    const phase = this.#inquiry?.phase.phase;
    return phase === "breaking" || phase === "after" || phase === "found";
  }

  get #canBreak(): boolean {
    const inquiry = this.#inquiry;
    return inquiry?.phase.phase === "before" && this.#guess !== null && inquiry.isWarm;
  }

  #refresh(): void {
    const inquiry = this.#inquiry;
    if (!inquiry) return;
    const found = inquiry.phase.phase === "found" ? inquiry.phase.finding : null;
    const buttons = [...this.#answers.querySelectorAll("button")];
    buttons.forEach((button, at) => {
      setAttribute(button, "aria-pressed", String(this.#guess === at));
      setAttribute(button, "data-found", found?.answer === at ? "" : null);
      setAttribute(button, "aria-disabled", this.#isDecided ? "true" : null);
      // Then the answers that nobody gave make room for what was seen.
      button.parentElement!.hidden = found !== null && found.answer !== at && this.#guess !== at;
    });
    setAttribute(this.#break, "aria-disabled", this.#canBreak ? null : "true");
    setAttribute(this.#break, "data-due", this.#canBreak ? "" : null);
    setText(this.#breakHint, this.#hint(inquiry));
    this.#anew.hidden = inquiry.phase.phase !== "changed";
    this.#finding.hidden = found === null;
    // A finding takes the place of what led to it; the focus goes along.
    const isLeft = found !== null && this.#toBreak.contains(document.activeElement);
    for (const part of [this.#toBreak, find("chapter-text", HTMLElement), find("predict-title", HTMLElement)])
      part.hidden = found !== null;
    if (isLeft) find("found-title", HTMLElement).focus({ preventScroll: true });
    const isRight = this.#guess === found?.answer;
    const verdict = phrase(isRight ? "guide.asPredicted" : "guide.notAsPredicted");
    const seen = this.#guess === null ? [found?.text] : [verdict, found?.text];
    setText(this.#foundText, found ? seen.join(" ") : "");
    this.#strips.show(found?.strips ?? []);
    fillRows(find("arrows", HTMLElement), found?.arrows ?? [], blankArrow, (row, { label, length }) => {
      setText(row.children[1]!, phrase("guide.arrow", { label, length: percent(length) }));
      row.style.setProperty("--length", Math.min(1, length).toFixed(3));
    });
  }

  #hint({ chapter, phase, isWarm, measuredMs }: Inquiry): string {
    const left = (ms: number) => Math.max(0, Math.ceil((ms - measuredMs) / 1_000));
    switch (phase.phase) {
      case "before":
        if (this.#guess === null) return phrase("guide.hints.choose");
        if (!isWarm) return phrase("guide.hints.measuring", { seconds: left(chapter.beforeMs) });
        return phrase(chapter.break.kind === "setting" ? "guide.hints.setting" : "guide.hints.now");
      case "changed":
        return phrase("guide.hints.changed");
      case "breaking":
        if (phase.left.length > 0) {
          const islands = numbers(phase.left.map(({ island }) => island));
          return phrase("guide.hints.goOn", { count: phase.left.length, islands });
        }
        return phrase("guide.hints.watch", { seconds: left((chapter.skipMs ?? 0) + chapter.afterMs) });
      case "after":
        return phrase("guide.hints.watch", { seconds: left(chapter.afterMs) });
      case "found":
        return phrase("guide.hints.done");
    }
  }
}

function blankArrow(): HTMLElement {
  return make("li", {}, make("span", { class: "arrow", "aria-hidden": "true" }), make("span", { class: "small" }));
}
