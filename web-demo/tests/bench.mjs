// Measurements of `cargo xtask bench browser`: sizes, time to the first step, speed. Prints one line of JSON.
import { readdir, readFile } from "node:fs/promises";
import { cpus, loadavg } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { lessonFigures } from "./lesson-figures.mjs";
import { launch, root, startSyncer } from "./support.mjs";

/** Number of starts for the median, after one that fills the caches. */
const STARTS = 7;
/** Measured windows of each engine, in turn, for the median. */
const ROUNDS = Number(process.env.BENCH_ROUNDS ?? 3);
const TRAIN_MS = 15_000;

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];
const packed = async (file) => gzipSync(await readFile(file), { level: 9 }).length;

/** Size of the engine that a browser loads to train: the larger build, with its bindings. */
async function engineBytes() {
  const folders = ["plain", "relaxed"].map((build) => join(root, "package/dist/wasm", build));
  const sizes = folders.map(async (folder) => {
    const files = ["archipelago_bg.wasm", "archipelago.js"].map((file) => packed(join(folder, file)));
    return (await Promise.all(files)).reduce((a, b) => a + b);
  });
  return Math.max(...(await Promise.all(sizes)));
}

/** Size of everything else that the contribute page loads. */
async function pageBytes(browser, url) {
  const page = await browser.newPage();
  const loaded = new Set(["index.html"]);
  page.on("request", (request) => {
    const found = /\/(assets\/[^?]+)$/.exec(request.url());
    if (found && !/archipelago/.test(found[1])) loaded.add(found[1]);
  });
  await page.goto(url);
  await page.click("#start");
  await page.waitForFunction(() => performance.getEntriesByName("first step").length > 0);
  await page.close();
  const worker = (await readdir(join(root, "dist/assets"))).filter((file) => /^(worker|helper)-/.test(file));
  for (const file of worker) loaded.add(`assets/${file}`);
  const sizes = await Promise.all([...loaded].map((file) => packed(join(root, "dist", file))));
  return sizes.reduce((a, b) => a + b);
}

/** Measures from the click to the end of the first step, and the longest task of the page's thread then and later. */
async function start(context, url) {
  const page = await context.newPage();
  await page.addInitScript(() => {
    window.longest_ms = 0;
    new PerformanceObserver((list) => {
      for (const { startTime, duration } of list.getEntries())
        if (startTime > window.clicked_ms) window.longest_ms = Math.max(window.longest_ms, duration);
    }).observe({ entryTypes: ["longtask"] });
  });
  await page.goto(url);
  await page.waitForLoadState("networkidle");
  await page.evaluate(() => {
    window.clicked_ms = performance.now();
    document.querySelector("#start").click();
  });
  await page.waitForFunction(() => performance.getEntriesByName("first step").length > 0, undefined, {
    timeout: 120_000,
  });
  const first_ms = await page.evaluate(() => performance.getEntriesByName("first step")[0].duration);
  await page.waitForTimeout(1_500);
  const longest_ms = await page.evaluate(() => window.longest_ms);
  await page.click("#stop");
  await page.close();
  return { first_ms, longest_ms };
}

const syncer = await startSyncer("--preset", "small", "--no-eval");
const browser = await launch();
try {
  const context = await browser.newContext();
  await start(context, syncer.url);
  const starts = [];
  for (let i = 0; i < STARTS; i++) starts.push(await start(context, syncer.url));
  await context.close();

  const speeds = { gpu: [], cpu: [] };
  const facts = {};
  for (let round = 0; round < ROUNDS; round++) {
    for (const engine of ["gpu", "cpu"]) {
      const page = await browser.newPage();
      await page.goto(syncer.url);
      const measured = await page.evaluate(
        ([engine, trainMs]) => window.archipelago.measure({ engine, preset: "small", trainMs }),
        [engine, TRAIN_MS],
      );
      speeds[engine].push(measured.tokensPerS);
      facts[engine] = measured;
      await page.close();
    }
  }
  const figures = {
    engine_gzip_bytes: await engineBytes(),
    engine_gzip_bytes_max: 400_000,
    page_gzip_bytes: await pageBytes(browser, syncer.url),
    page_gzip_bytes_max: 150_000,
    first_step_ms_p50: median(starts.map(({ first_ms }) => first_ms)),
    first_step_ms_max: 5_000,
    longest_task_ms: Math.max(...starts.map(({ longest_ms }) => longest_ms)),
    tokens_per_s_webgpu: median(speeds.gpu),
    tokens_per_s_wasm: median(speeds.cpu),
    device_webgpu: facts.gpu.device,
    device_wasm: facts.cpu.device,
    memory_bytes_webgpu: facts.gpu.memoryBytes,
    memory_bytes_wasm: facts.cpu.memoryBytes,
    params: facts.cpu.params,
    ...(await lessonFigures(browser)),
    cores: cpus().length,
    load: loadavg()[0],
  };
  console.log(JSON.stringify(figures));
} finally {
  await Promise.all([browser.close(), syncer.stop()]);
}
