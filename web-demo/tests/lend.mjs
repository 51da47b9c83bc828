// Lends a browser to a run as a visitor does, until its input ends or, with `killed`, until a signal ends it:
// node tests/lend.mjs URL NAME [ENGINE MODE [killed]]
import { once } from "node:events";
import { launch } from "./support.mjs";

const [url, name, engine = "auto", mode = "all", until = "input"] = process.argv.slice(2);
const browser = await launch();
try {
  const page = await browser.newPage();
  const settings = { name, engine, mode };
  await page.addInitScript((kept) => localStorage.setItem("archipelago.settings", JSON.stringify(kept)), settings);
  await page.goto(url);
  await page.click("#start");
  await (until === "killed" ? new Promise(() => {}) : once(process.stdin.resume(), "end"));
  console.log(await page.textContent("#sentence"));
} finally {
  await browser.close();
}
