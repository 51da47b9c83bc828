/** Drawing at the frame rate of the screen, and less often out of view. */

/** Painting time of one frame, in milliseconds, after which the rest waits for the next frame. */
const FRAME_MS = 10;

const queue = new Set<() => void>();

function runFrame(): void {
  const until = performance.now() + FRAME_MS;
  for (const paint of queue) {
    queue.delete(paint);
    paint();
    if (performance.now() > until) break;
  }
  if (queue.size > 0) requestAnimationFrame(runFrame);
}

function enqueue(paint: () => void): void {
  if (queue.size === 0) requestAnimationFrame(runFrame);
  queue.add(paint);
}

/** Interval of updates out of view, in milliseconds. Screen readers and searches in the page read these parts too. */
const UNSEEN_MS = 3_000;

/** Pending frames, which are painted before the page is printed, in view or not. */
const unpainted = new Set<() => void>();
globalThis.addEventListener?.("beforeprint", () => {
  for (const frame of unpainted) frame();
});

/**
 * Returns a function that requests `paint`. `paint` runs at most once a frame, and once in [`UNSEEN_MS`] while `element` is
 * out of view. While the tab is hidden or `element` is not displayed, `paint` waits, and then runs once.
 */
export function painter(element: Element, paint: () => void): () => void {
  let wanted = false;
  let inView = false;
  let waits = false;
  const frame = () => {
    if (!wanted || element.getClientRects().length === 0) return;
    wanted = false;
    unpainted.delete(frame);
    paint();
  };
  const ask = () => {
    if (!wanted) return;
    unpainted.add(frame);
    if (inView) return enqueue(frame);
    if (waits) return;
    waits = true;
    setTimeout(() => {
      waits = false;
      if (wanted) enqueue(frame);
    }, UNSEEN_MS);
  };
  watch(element, "200px", (seen) => {
    inView = seen;
    ask();
  });
  return () => {
    wanted = true;
    ask();
  };
}

/** Calls `act` every `everyMs` while `element` can be seen, and at once when it comes into view. */
export function whileSeen(element: Element, everyMs: number, act: () => void): void {
  let inView = false;
  let timer: ReturnType<typeof setInterval> | undefined;
  const settle = () => {
    const seen = inView && !document.hidden;
    if (seen && timer === undefined) {
      act();
      timer = setInterval(act, everyMs);
    } else if (!seen) {
      clearInterval(timer);
      timer = undefined;
    }
  };
  watch(element, "0px", (seen) => {
    inView = seen;
    settle();
  });
  document.addEventListener("visibilitychange", settle);
}

function watch(element: Element, rootMargin: string, seen: (inView: boolean) => void): void {
  new IntersectionObserver((entries) => seen(entries.at(-1)?.isIntersecting ?? false), { rootMargin }).observe(element);
}
