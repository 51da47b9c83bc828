/** The rounds as a timeline, for mouse, touch and keyboard, and as a table. */
import type { Answer, RoundReport, RoundsView } from "../shared/api.js";
import { fillRows, fillText, find, make, setText } from "../shared/dom.js";
import { milliseconds } from "../shared/format.js";
import { painter } from "../shared/paint.js";
import { onThemeChange } from "../shared/palette.js";
import { AXIS_PX, drawLanes, LANE_PX, type Picture, xOf, yOf } from "./draw-lanes.js";
import { cause, describeAnswer, describeRound, outcome, Rounds, roundName, shareOf, TimeScale } from "./lanes.js";

const LANES_WIDE = 14;
const LANES_NARROW = 10;
/** Distance at which the pointer hits a mark, in CSS pixels. */
const NEAR_PX = 9;

/** The section with the last rounds. */
export class Timeline {
  readonly #rounds = new Rounds();
  readonly #nameOf: (learner: number) => string;
  readonly #host = find("lanes", HTMLElement);
  readonly #canvas = find("lanes-canvas", HTMLCanvasElement);
  readonly #context = this.#canvas.getContext("2d");
  readonly #said = find("lanes-said", HTMLElement);
  readonly #table = find("rounds-table", HTMLDetailsElement);
  readonly #rows = find("rounds-rows", HTMLTableSectionElement);
  readonly #refresh: () => void;
  #picture: Picture = { reports: [], scale: new TimeScale([], 0), nowMs: 0, width: 0, lane: null, answer: null };
  /** True once the rounds were fetched. Before that, an empty list does not mean that there are no rounds. */
  #isKnown = false;
  /** Whether the picture is frozen, for a pointer or a screen reader. */
  #held = false;

  constructor(nameOf: (learner: number) => string) {
    this.#nameOf = nameOf;
    this.#refresh = painter(this.#host, () => this.#paint());
    new ResizeObserver(() => this.#refresh()).observe(this.#host);
    onThemeChange(() => this.#refresh());
    this.#host.addEventListener("pointermove", (event) => this.#point(event));
    this.#host.addEventListener("pointerdown", (event) => this.#point(event));
    this.#host.addEventListener("pointerleave", () => this.#release());
    this.#host.addEventListener("blur", () => this.#release());
    this.#host.addEventListener("keydown", (event) => this.#key(event));
    this.#table.addEventListener("toggle", () => this.#refresh());
  }

  /** Takes all rounds if `whole`, else the changed ones. */
  take(view: RoundsView, whole: boolean): void {
    this.#isKnown ||= whole;
    this.#rounds.take(view, whole);
    this.#refresh();
  }

  #paint(): void {
    const width = this.#host.clientWidth;
    if (!this.#held) {
      const reports = this.#rounds.newest(width < 600 ? LANES_NARROW : LANES_WIDE);
      const nowMs = this.#rounds.nowMs;
      this.#picture = { reports, nowMs, width, scale: new TimeScale(reports, nowMs), lane: null, answer: null };
    } else if (width !== this.#picture.width) {
      this.#picture = { ...this.#picture, width };
    }
    this.#draw();
    this.#say();
    const isRead = this.#rows.closest(".scroll")?.contains(document.activeElement) ?? false;
    if (this.#table.open && !isRead) this.#fillTable();
  }

  #draw(): void {
    const { reports, width } = this.#picture;
    const height = AXIS_PX + Math.max(1, reports.length) * LANE_PX;
    const ratio = devicePixelRatio;
    if (this.#canvas.width !== Math.round(width * ratio) || this.#canvas.height !== Math.round(height * ratio)) {
      this.#canvas.width = Math.round(width * ratio);
      this.#canvas.height = Math.round(height * ratio);
      this.#canvas.style.height = `${height}px`;
    }
    if (!this.#context) return;
    this.#context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawLanes(this.#context, this.#picture);
  }

  #say(): void {
    const { reports, lane, answer } = this.#picture;
    const report = reports[lane ?? 0];
    if (!report && !this.#isKnown) return;
    if (!report) return fillText(this.#said, "No round yet: the first begins when learners have trained for a while.");
    const mark = answer ? ` ${describeAnswer(answer, this.#nameOf(answer.learner))}` : "";
    fillText(this.#said, (lane === null ? "Newest: " : "") + describeRound(report) + mark);
  }

  #choose(lane: number | null, answer: Answer | null): void {
    const { reports } = this.#picture;
    const within = lane === null || reports.length === 0 ? null : Math.min(reports.length - 1, Math.max(0, lane));
    this.#held = within !== null;
    this.#picture = { ...this.#picture, lane: within, answer };
    this.#refresh();
  }

  #release(): void {
    if (document.activeElement === this.#host && this.#host.matches(":focus-visible")) return;
    this.#choose(null, null);
  }

  #point(event: PointerEvent): void {
    const box = this.#canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const lane = Math.floor((y - AXIS_PX) / LANE_PX);
    const report = this.#picture.reports[lane];
    if (!report) return this.#choose(null, null);
    const distance = (answer: Answer) => Math.hypot(xOf(this.#picture, answer.afterMs) - x, yOf(lane) - y);
    const nearest = report.answers.reduce<Answer | null>(
      (best, answer) => (best && distance(best) <= distance(answer) ? best : answer),
      null,
    );
    this.#choose(lane, nearest && distance(nearest) <= NEAR_PX ? nearest : null);
  }

  #key(event: KeyboardEvent): void {
    const { lane, answer, reports } = this.#picture;
    if (event.key === "Escape") return this.#choose(null, null);
    const answers = [...(reports[lane ?? 0]?.answers ?? [])].sort((a, b) => a.afterMs - b.afterMs);
    const at = answer ? answers.indexOf(answer) : -1;
    const goals: Readonly<Record<string, () => void>> = {
      ArrowDown: () => this.#choose(lane === null ? 0 : lane + 1, null),
      ArrowUp: () => this.#choose((lane ?? 1) - 1, null),
      ArrowRight: () => this.#choose(lane ?? 0, answers[Math.min(answers.length - 1, at + 1)] ?? null),
      ArrowLeft: () => this.#choose(lane ?? 0, answers[at - 1] ?? null),
    };
    const go = goals[event.key];
    if (!go) return;
    event.preventDefault();
    go();
  }

  #fillTable(): void {
    const blank = () => make("tr", {}, make("th", { scope: "row" }), ...Array.from({ length: 7 }, () => make("td")));
    fillRows(this.#rows, this.#picture.reports, blank, (row, report) => {
      tableCells(report).forEach((text, index) => setText(row.cells[index]!, text));
    });
  }
}

function tableCells(report: RoundReport): string[] {
  const first = report.answers.length > 0 ? Math.min(...report.answers.map((answer) => answer.afterMs)) : null;
  return [
    roundName(report.round),
    String(report.fragment),
    shareOf(report),
    milliseconds(first),
    milliseconds(report.quorumMs),
    milliseconds(report.graceMs),
    report.merged ? `${milliseconds(report.merged.collectMs)}, ${cause(report)}` : "",
    outcome(report),
  ];
}
