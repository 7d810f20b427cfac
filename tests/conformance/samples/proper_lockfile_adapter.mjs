// proper-lockfile itself, as the conformance kit asks for it: node proper_lockfile_adapter.mjs MODULE OPERATION [PATH]
import { createRequire } from "node:module";
import { run, say } from "./adapter.mjs";

const [module, operation, path] = process.argv.slice(2);

if (operation === "abilities") {
  say("hold try serve");
  process.exit(0);
}
const lockfile = createRequire(import.meta.url)(module);

async function answer(operation, path, untilTold) {
  const retries = operation === "hold" ? { retries: 100000, factor: 1, minTimeout: 20, maxTimeout: 20 } : 0;
  let release;
  try {
    release = await lockfile.lock(path, { retries, onCompromised: console.error });
  } catch (error) {
    if (error.code !== "ELOCKED") {
      console.error(error);
      return 2;
    }
    say("refused");
    return 1;
  }
  say("held");
  await untilTold();
  await release();
  return 0;
}

await run(answer, operation, path);
