// Runs the parity tests with the given numbers, one at a time.

import init, { Parity } from "./dist/parity.js";

// A Rust panic escapes from a microtask, where it cannot be caught.
addEventListener("error", ({ message }) => postMessage({ failed: message }));
addEventListener("unhandledrejection", ({ reason }) => postMessage({ failed: String(reason) }));

await init();
const parity = await Parity.open();
addEventListener("message", async ({ data }) => {
  await parity.run(data);
  postMessage({ passed: data });
});
postMessage({ names: parity.names() });
