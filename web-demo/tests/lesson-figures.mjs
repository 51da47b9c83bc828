// Measurements of the lesson by `cargo xtask bench browser`: bytes, frames, and the time until a killed island shows.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { root, serve } from "./support.mjs";
import { trace } from "./trace.mjs";

/** Time in which frames are counted. */
const COUNTED_MS = 10_000;
/** Number of visits for the median. */
const VISITS = 5;

const quantile = (values, share) =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(share * values.length))];
const median = (values) => quantile(values, 0.5);

/** Returns the compressed bytes that a visitor loads besides the engine. */
async function pageBytes(browser, site) {
  const page = await browser.newPage();
  const loaded = new Set();
  page.on("request", (request) => loaded.add(new URL(request.url()).pathname.slice(1)));
  await page.goto(`${site.url}teach.html`);
  await page.waitForFunction(() => Number.parseFloat(document.querySelector("#time").textContent) > 0);
  await page.close();
  const files = [...loaded].filter((file) => !file.endsWith(".wasm"));
  const sizes = files.map(async (file) => gzipSync(await readFile(join(root, "dist", file)), { level: 9 }).length);
  return (await Promise.all(sizes)).reduce((a, b) => a + b);
}

/**
 * Measures frames per second with eight islands at 1 ×, and the longest wait for a frame. Separately measures the
 * page's own CPU time per frame. A screen that waits although the page was done in time waits for the browser's
 * compositor, which paints on the same cores on a machine without a GPU.
 */
async function frames(browser, site) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  await page.goto(`${site.url}teach.html#v=1&m=8&x=1`);
  await page.waitForFunction(() => Number.parseFloat(document.querySelector("#time").textContent) > 1);
  const figures = await page.evaluate(async (countedMs) => {
    const next = () => new Promise((drawn) => requestAnimationFrame(drawn));
    const waits = [];
    const began = await next();
    let last = began;
    while (last - began < countedMs) {
      const now = await next();
      waits.push(now - last);
      last = now;
    }
    return { perS: (1_000 * waits.length) / (last - began), longestMs: Math.max(...waits) };
  }, COUNTED_MS);
  const { framesMs } = await trace(browser, page, COUNTED_MS);
  await page.close();
  return { ...figures, ownMs: framesMs };
}

/** Measures from the link to the sentence that an island is gone, with a click as soon as possible. */
async function killedMs(browser, site) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  const page = await context.newPage();
  const began = performance.now();
  await page.goto(`${site.url}teach.html`);
  await page.click("[data-pin='2']");
  await page.waitForFunction(() => document.querySelector("#sentence").textContent.startsWith("Island 3 is gone"));
  const ms = performance.now() - began;
  await context.close();
  return ms;
}

/** Returns all figures, each next to its bound. */
export async function lessonFigures(browser) {
  const site = await serve(join(root, "dist"));
  try {
    const killed = [];
    for (let visit = 0; visit < VISITS; visit += 1) killed.push(await killedMs(browser, site));
    const { perS, longestMs, ownMs } = await frames(browser, site);
    return {
      lesson_gzip_bytes: await pageBytes(browser, site),
      lesson_gzip_bytes_max: 250_000,
      lesson_frames_per_s: perS,
      lesson_frames_per_s_min: 60,
      lesson_longest_frame_ms: longestMs,
      lesson_page_frame_ms_p50: median(ownMs),
      lesson_page_frame_ms_p99: quantile(ownMs, 0.99),
      lesson_page_frame_ms_longest: Math.max(...ownMs),
      lesson_page_frame_ms_max: 1_000 / 60,
      lesson_killed_ms_p50: median(killed),
      lesson_killed_ms_max: 10_000,
    };
  } finally {
    await site.stop();
  }
}
