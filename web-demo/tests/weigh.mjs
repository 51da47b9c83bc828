// Memory and time that a run takes in Chromium: `node tests/weigh.mjs URL cpu|gpu [SECONDS]` joins the run at that
// link (600 seconds by default), and prints one line of JSON. No other Chromium may run on the machine.
import { readdir, readFile } from "node:fs/promises";
import { chromiumFlags, chromiumFlagsWithoutGpu, chromiumPath, launch } from "./support.mjs";

const [url, engine, seconds = "600"] = process.argv.slice(2);
if (!url || !["cpu", "gpu"].includes(engine)) throw new Error("node tests/weigh.mjs URL cpu|gpu [SECONDS]");
const LOOK_MS = 500;

/** Bytes held by all Chromium processes on this machine; shared memory counts once. */
async function browserBytes() {
  const kinds = {};
  for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name))) {
    try {
      const words = await readFile(`/proc/${pid}/cmdline`, "utf8");
      if (!words.split(/[\0 ]/)[0].includes("chromium")) continue;
      const kind = /--type=([\w-]+)/.exec(words)?.[1] ?? "browser";
      const kib = /^Pss:\s+(\d+)/m.exec(await readFile(`/proc/${pid}/smaps_rollup`, "utf8"))[1];
      kinds[kind] = (kinds[kind] ?? 0) + 1024 * Number(kib);
    } catch {
      // The process ended meanwhile.
    }
  }
  return { ...kinds, all: Object.values(kinds).reduce((a, b) => a + b, 0) };
}

const browser = await launch(engine === "gpu" ? chromiumFlags : chromiumFlagsWithoutGpu);
const page = await browser.newPage();
const trouble = [];
page.on("pageerror", (error) => trouble.push(String(error)));
page.on("console", (message) => message.type() === "error" && trouble.push(message.text()));
await page.addInitScript((kept) => localStorage.setItem("archipelago.settings", JSON.stringify(kept)), {
  name: "weighed",
  engine,
  mode: "all",
});
await page.goto(url);
const before = await browserBytes();
const began = Date.now();
await page.click("#start");
let [peak, firstStepS, learner] = [before, null, null];
while (Date.now() - began < 1_000 * Number(seconds)) {
  await new Promise((done) => setTimeout(done, LOOK_MS));
  const held = await browserBytes();
  if (held.all > peak.all) peak = held;
  if (firstStepS === null && (await page.evaluate(() => performance.getEntriesByName("first step").length > 0)))
    firstStepS = (Date.now() - began) / 1_000;
  const { learners } = await (await fetch(new URL("v1/status", url))).json();
  learner = learners.findLast(({ name }) => name === "weighed") ?? learner;
}
const now = await browserBytes();
console.log(
  JSON.stringify({ chromium: chromiumPath, engine, before, peak, now, first_step_s: firstStepS, learner, trouble }),
);
await browser.close();
