// fs-safe itself, as the conformance kit asks for it: node fs_safe_adapter.mjs MODULE OPERATION [PATH]
import fs from "node:fs";
import { pathToFileURL } from "node:url";

const [module, operation, path] = process.argv.slice(2);
const say = (word) => fs.writeSync(1, word + "\n");

if (operation === "abilities") {
  say("hold try recover");
  process.exit(0);
}
const { acquireFileLock } = await import(pathToFileURL(module));
const options = {
  payload: () => ({ pid: process.pid, createdAt: new Date().toISOString() }),
  retry: operation === "hold" ? { retries: 100000, factor: 1, minTimeout: 20, maxTimeout: 20 } : { retries: 0 },
};
if (operation === "recover") {
  Object.assign(options, { staleRecovery: "remove-if-unchanged", shouldRemoveStaleLock: () => true });
}
let handle;
try {
  handle = await acquireFileLock(path, options);
} catch (error) {
  const word = { file_lock_timeout: "refused", file_lock_stale: "stale" }[error.code];
  if (word === undefined) {
    console.error(error);
    process.exit(2);
  }
  say(word);
  process.exit(1);
}
say("held");
await new Promise((resolve) => process.stdin.on("end", resolve).resume());
await handle.release();
