// Lends a browser to a run as a visitor does, until its input ends: node tests/lend.mjs URL NAME
import { once } from "node:events";
import { launch } from "./support.mjs";

const [url, name] = process.argv.slice(2);
const browser = await launch();
try {
  const page = await browser.newPage();
  const settings = { name, engine: "auto", mode: "all" };
  await page.addInitScript((kept) => localStorage.setItem("archipelago.settings", JSON.stringify(kept)), settings);
  await page.goto(url);
  await page.click("#start");
  await once(process.stdin.resume(), "end");
  console.log(await page.textContent("#sentence"));
} finally {
  await browser.close();
}
