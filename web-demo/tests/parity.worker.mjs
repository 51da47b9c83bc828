// Runs the parity tests whose numbers it is told, one at a time.

import init, { Parity } from "./dist/parity.js";

// A Rust panic comes out of a microtask, where nothing catches it.
addEventListener("error", ({ message }) => postMessage({ failed: message }));
addEventListener("unhandledrejection", ({ reason }) => postMessage({ failed: String(reason) }));

await init();
const parity = await Parity.open();
addEventListener("message", async ({ data }) => {
  await parity.run(data);
  postMessage({ passed: data });
});
postMessage({ names: parity.names() });
