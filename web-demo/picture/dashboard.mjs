// Makes the README's shot of the dashboard from a real run: three learners, one of which leaves, for two minutes.
//
//     npm --prefix web-demo run shot        after `cargo xtask web` and `cargo build --bins`
import { join } from "node:path";
import { chromiumFlagsWithoutGpu, launch, root, startLearner, startSyncer } from "../tests/support.mjs";

/** Time before one learner leaves, and after that, in milliseconds. */
const [LEAD_MS, REST_MS] = [70_000, 30_000];

const syncer = await startSyncer("--total-tokens", "8000000", "--eval-every", "2s");
const learners = ["Ada", "Grace", "Alan"].map((name) => startLearner(syncer.url.replace("http", "ws"), name, 0.4));
const browser = await launch(chromiumFlagsWithoutGpu);
try {
  const page = await browser.newPage({ viewport: { width: 1_120, height: 1_080 } });
  await page.goto(new URL("dashboard", syncer.url).href);
  await page.waitForTimeout(LEAD_MS);
  await learners[1].stop();
  await page.waitForTimeout(REST_MS);
  await page.screenshot({ path: join(root, "../.github/dashboard.png") });
} finally {
  await browser.close();
  await Promise.all(learners.map((learner) => learner.stop()));
  await syncer.stop();
}
