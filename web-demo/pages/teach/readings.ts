/** Written displays of the run: its sentence, figures, islands, last events and texts. */

import { find, setText } from "../shared/dom.js";
import { legible } from "../shared/format.js";
import { fixed } from "../shared/language.js";
import type { Frame } from "../shared/lesson.js";
import { SentenceView } from "../shared/sentence.js";
import { phrase } from "../words/phrase.js";
import { LossChart } from "./figures/loss.js";
import { FiguresTable } from "./figures/table.js";
import { Invitation } from "./invitation.js";
import { Cards } from "./islands/cards.js";
import type { Live } from "./live.js";
import type { Stage } from "./run/stage.js";
import { sentenceOf } from "./sentence.js";
import { Words } from "./timeline/words.js";

/** Delay before an action's effect is announced, in milliseconds. */
const SOON_MS = 1_200;

export class Readings {
  readonly loss = new LossChart();
  readonly #words = new Words();
  readonly #sentence = new SentenceView({ quietMs: 20_000, tonesAtOnce: false });
  readonly #figures = new FiguresTable();
  readonly #cards: Cards;
  readonly #invitation: Invitation;

  /** `invited` is called when the visitor takes the invitation. */
  constructor(stage: Stage, invited: () => void) {
    this.#cards = new Cards((island, deed, factor) => stage.act(island, deed, factor));
    this.#invitation = new Invitation(invited);
  }

  /** Resets the displays for a run with this many islands. */
  reset(islands: number): void {
    this.#cards.reset(islands);
    this.#words.reset();
    setText(find("text-now", HTMLElement), phrase("texts.nothing"));
    setText(find("text-now-at", HTMLElement), phrase("texts.now"));
  }

  /** Takes a `text` that the model wrote at this moment. */
  wrote(atMs: number, text: string): void {
    const [id, at] = atMs === 0 ? ["text-before", "text-before-at"] : ["text-now", "text-now-at"];
    setText(find(id, HTMLElement), legible(text));
    setText(
      find(at, HTMLElement),
      atMs === 0 ? phrase("texts.start") : phrase("texts.after", { time: fixed(atMs / 1_000, 1) }),
    );
  }

  /** Announces the effect of an action soon. */
  acted(): void {
    this.#sentence.tellIn(SOON_MS);
  }

  /** `stepped` if the visitor stepped to the next event. */
  take(frame: Frame, stepped: boolean): void {
    this.#words.take(frame.marks, stepped);
  }

  /** Shows each island's state. */
  showIslands(live: Live, frame: Frame): void {
    this.#cards.show(frame, live.spec.latencyMs);
  }

  /** Shows the run's sentence, figures and last events. */
  show(live: Live, frame: Frame): void {
    this.#figures.show(live);
    this.#sentence.show(sentenceOf(live));
    this.#invitation.show(frame);
    this.#words.show();
  }
}
