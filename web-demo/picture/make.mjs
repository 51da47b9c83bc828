// Makes the README's picture from the real page: an island is killed, a cable is cut, and the others train on.
//
//     npm --prefix web-demo run picture        after `cargo xtask web`
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import gifenc from "gifenc";
import { PNG } from "pngjs";
import { chromiumFlagsWithoutGpu, launch, root, serve } from "../tests/support.mjs";

const { applyPalette, GIFEncoder, quantize } = gifenc;

const FRAME_MS = 200;
const FRAMES = 46;
const COLORS = 63;
/** Button presses of the page, by frame. */
const DEEDS = new Map([
  [10, "[data-pin='2']"],
  [24, "[data-cable='0']"],
]);
/** Time that the run plays before the film begins, in milliseconds. */
const LEAD_MS = 7_000;

const site = await serve(join(root, "dist"));
const browser = await launch(chromiumFlagsWithoutGpu);
const page = await browser.newPage({ viewport: { width: 1_120, height: 640 } });
await page.goto(`${site.url}teach.html`);
await page.addStyleTag({ content: ".controls, .choice, .said, #figures { display: none !important } #watch { height: 28rem; padding-inline: 4px }" });
await page.waitForTimeout(LEAD_MS);
const clip = await page.locator("#watch").boundingBox();
const frames = [];
let next = Date.now();
for (let at = 0; at < FRAMES; at += 1) {
  const deed = DEEDS.get(at);
  if (deed) await page.click(deed);
  const { data, width, height } = PNG.sync.read(await page.screenshot({ clip }));
  frames.push({ data, width, height });
  next += FRAME_MS;
  await page.waitForTimeout(Math.max(0, next - Date.now()));
}
await browser.close();
await site.stop();

// One palette for all frames: the drawing hardly changes colour.
const some = [0, 16, 32, 45].map((at) => frames[at].data);
const palette = quantize(Buffer.concat(some), COLORS);
const transparentIndex = palette.length;
palette.push([0, 0, 0]);
const gif = GIFEncoder();
let before;
for (const { data, width, height } of frames) {
  const index = applyPalette(data, palette.slice(0, transparentIndex));
  // Unchanged pixels are left out.
  const seen = before ? index.map((color, at) => (color === before[at] ? transparentIndex : color)) : index;
  gif.writeFrame(seen, width, height, {
    palette: before ? undefined : palette,
    delay: FRAME_MS,
    transparent: before !== undefined,
    transparentIndex,
    dispose: 1,
  });
  before = index;
}
gif.finish();
const path = process.argv[2] ?? join(root, "../.github/lesson.gif");
await writeFile(path, gif.bytes());
console.log(`${path}: ${Math.round(gif.bytes().length / 1_000)} kB, ${FRAMES} frames`);
