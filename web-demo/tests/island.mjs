/** An island of a lesson that trains without faults. */
export const ISLAND = {
  state: "training",
  partitioned: false,
  poisoned: false,
  lies: false,
  slow: 1,
  latencyMs: 30,
  stopped: null,
  steps: 10,
  tokens: 100,
  merged: 50,
  loss: 3,
  stepMs: 250,
  possibleSteps: 10,
};

/** Provides drawing modules with the parts of a page that they use; paths are recorded as a `Path`. */
export function pretendPage(Path) {
  globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
  globalThis.document = { createElement: () => ({ style: {}, remove() {} }), body: { appendChild: (probe) => probe } };
  globalThis.getComputedStyle = ({ style }) => style;
  globalThis.Path2D = Path;
}
