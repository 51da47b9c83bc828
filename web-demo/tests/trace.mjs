// Work of a page's thread in CPU time, so that other load on the machine does not count.

const CATEGORIES = ["devtools.timeline", "disabled-by-default-devtools.timeline"];
/** One turn of a thread; tracing of deeper layers has the same turns within it. */
const TASK = "RunTask";
/** The page's scripts are about to draw a frame. */
const FRAME = "FireAnimationFrame";

/**
 * Measures the thread of `page` for `durationMs`: its tasks, each with its time `ms`, and in `framesMs` the
 * total task time between two frames: scripts, style, layout, painting, garbage collection.
 */
export async function trace(browser, page, durationMs) {
  await browser.startTracing(page, { categories: CATEGORIES });
  await page.waitForTimeout(durationMs);
  const { traceEvents } = JSON.parse((await browser.stopTracing()).toString());
  const threads = traceEvents.filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain");
  const drawing = traceEvents.filter(({ name }) => name === FRAME);
  const own = new Set(threads.map(threadOf).filter((thread) => drawing.some((event) => threadOf(event) === thread)));
  const isOwn = (event) => own.has(threadOf(event));
  const tasks = traceEvents
    .filter((event) => isOwn(event) && event.tdur !== undefined && event.name === TASK)
    .map(({ ts, dur, tdur }) => ({ at: ts, end: ts + dur, ms: tdur / 1_000 }))
    .sort((a, b) => a.at - b.at);
  const framed = new Set(drawing.filter(isOwn).map(({ ts }) => tasks.find(({ at, end }) => at <= ts && ts < end)));
  const framesMs = [];
  for (const task of tasks) {
    if (framed.has(task)) framesMs.push(0);
    if (framesMs.length > 0) framesMs[framesMs.length - 1] += task.ms;
  }
  // The last one may be incomplete.
  return { tasks, framesMs: framesMs.slice(0, -1) };
}

const threadOf = ({ pid, tid }) => `${pid} ${tid}`;
