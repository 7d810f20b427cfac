// proper-lockfile itself as a contender: node proper_lockfile.mjs MODULE TARGET STATE NAME PYTHON INSIDE
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import { createRequire } from "node:module";

const [module, target, state, name, python, inside] = process.argv.slice(2);
const lockfile = createRequire(import.meta.url)(module);
const retries = { retries: 20, factor: 1, minTimeout: 1, maxTimeout: 3 };

while (fs.existsSync(`${state}/go`)) {
  let release;
  try {
    release = await lockfile.lock(target, { retries });
  } catch (error) {
    if (error.code !== "ELOCKED") throw error;
    continue;
  }
  execFileSync(python, ["-ISs", inside, state, name, "-"], { stdio: "inherit" });
  await release();
  await new Promise((resolve) => setTimeout(resolve, 50));
}
