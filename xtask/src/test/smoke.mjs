// Instantiates the module named by the first argument. Imports are stubs that must not be called.
import { readFileSync } from "node:fs";

const module = new WebAssembly.Module(readFileSync(process.argv[1]));
const imports = {};
for (const { module: from, name, kind } of WebAssembly.Module.imports(module)) {
  if (kind !== "function") throw new Error(`no stub for the ${kind} ${from}.${name}`);
  (imports[from] ??= {})[name] = () => { throw new Error(`${from}.${name} was called`); };
}
const { exports } = new WebAssembly.Instance(module, imports);
// Before its bindings are generated, an export carries a hash after its name.
const [, wireVersion] = Object.entries(exports).find(([name]) => name.startsWith("wireVersion"));
console.log(wireVersion());
