// fs-safe itself as a contender: node fs_safe.mjs MODULE TARGET STATE NAME PYTHON INSIDE
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import { pathToFileURL } from "node:url";

const [module, target, state, name, python, inside] = process.argv.slice(2);
const { acquireFileLock } = await import(pathToFileURL(module));
const retry = { retries: 10, factor: 1, minTimeout: 1, maxTimeout: 3 };
const payload = () => ({ pid: process.pid, createdAt: new Date().toISOString() });

while (fs.existsSync(`${state}/go`)) {
  let held;
  try {
    held = await acquireFileLock(target, { staleMs: 30000, payload, retry, timeoutMs: 50 });
  } catch (error) {
    // 0.3.0 now and then calls a lock stale that was released while it looked.
    if (!["file_lock_timeout", "file_lock_stale"].includes(error.code)) throw error;
    continue;
  }
  execFileSync(python, ["-ISs", inside, state, name, "-"], { stdio: "inherit" });
  await held.release();
  await new Promise((resolve) => setTimeout(resolve, 50));
}
