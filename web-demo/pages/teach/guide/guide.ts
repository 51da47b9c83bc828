/** Leads through the chapters: predict, break, see. All findings are measured in the run. */

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

/** Callbacks of the guide to the page. */
export interface Stagehand {
  /** Sets the stage of a chapter, of the challenge, or the open one. */
  open(id: string | null): void;
  /** Carries out a chapter's break. */
  break(chapter: Chapter): void;
}

/** Entries before the first chapter and after the last one, in the order of the buttons. */
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
  /** Current entry: the opening, a chapter, the summary of predictions, or the challenge. */
  #at = OPENING;
  /** The inquiry of the open chapter; `null` outside chapters. */
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
    // Stays focusable while there is nothing to break, so it is never disabled outright.
    this.#break.addEventListener("click", () => this.chapter && this.#canBreak && hand.break(this.chapter));
    this.#anew.addEventListener("click", () => this.chapter && this.#open(this.chapter.id));
  }

  #dot(id: string, text: string, title: string, label: string): void {
    const attributes = { type: "button", class: "dot", "data-chapter": id, title, "aria-label": label };
    const dot = make("button", attributes, text);
    dot.addEventListener("click", () => this.#open(id));
    this.#dots.append(make("li", {}, dot));
  }

  /** The open chapter or challenge, as named in links, or `null`. */
  get id(): string | null {
    return this.#at === CHALLENGED ? CHALLENGE.id : (this.chapter?.id ?? null);
  }

  /** The open chapter. */
  get chapter(): Chapter | null {
    return this.#inquiry?.chapter ?? null;
  }

  /** Goes to the next or previous entry. */
  go(by: number): void {
    const at = this.#at + by;
    if (at < OPENING || at > CHALLENGED) return;
    if (at === ENDING) return this.#end();
    this.#open(at === CHALLENGED ? CHALLENGE.id : (CHAPTERS[at]?.id ?? null));
  }

  /** Moves to an entry, with the focus, so that screen readers notice the change. */
  #open(id: string | null): void {
    this.#hand.open(id);
    const title = this.chapter ? "chapter-title" : this.#at === CHALLENGED ? "challenge-title" : "invite";
    find(title, HTMLElement).focus();
  }

  /** The end: the open stage, and the summary of predictions. */
  #end(): void {
    this.#hand.open(null);
    this.#set(ENDING);
    this.#ending.show();
  }

  /** Shows the current entry. */
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

  /** Shows a chapter from its beginning, the challenge, or the opening; `stage` is the entry's own run. */
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
      // A visitor who has seen the result cannot predict it.
      if (this.#isDecided) return;
      this.#guess = at;
      this.#refresh();
    });
    return make("li", {}, button);
  }

  /** Takes a new run. */
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

  /** Takes an action of the visitor on the run. */
  acted(action: Action): void {
    this.#inquiry?.acted(action);
    this.#refresh();
  }

  /** Takes a changed setting of the running run. */
  changed(): void {
    this.#inquiry?.changed();
    this.#refresh();
  }

  /** The settings of the chapter's comparison, until it is finished. */
  get compares(): readonly (keyof LessonSpec)[] {
    const inquiry = this.#inquiry;
    const todo = inquiry?.chapter.break;
    if (!inquiry || todo?.kind !== "setting" || inquiry.phase.phase === "found") return [];
    return Object.keys(todo.change) as (keyof LessonSpec)[];
  }

  /** Prepares for the change of the setting that the chapter asks for. */
  changing(heldOutBefore: readonly HeldOut[]): void {
    this.#inquiry?.changing(heldOutBefore);
    this.#refresh();
  }

  /** The chapter's marks for the pictures. */
  get watched(): Watched {
    return this.#inquiry?.watched ?? NOTHING;
  }

  /** Whether the stage has the changed setting that the chapter asked for. */
  get isRebuilt(): boolean {
    return this.#inquiry?.isRebuilt ?? false;
  }

  /** Whether these settings have the change that the chapter asks for next. */
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
      // Hides the other answers, to make room for the finding.
      button.parentElement!.hidden = found !== null && found.answer !== at && this.#guess !== at;
    });
    setAttribute(this.#break, "aria-disabled", this.#canBreak ? null : "true");
    setAttribute(this.#break, "data-due", this.#canBreak ? "" : null);
    setText(this.#breakHint, this.#hint(inquiry));
    this.#anew.hidden = inquiry.phase.phase !== "changed";
    this.#finding.hidden = found === null;
    // The finding replaces the question; the focus moves along.
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
