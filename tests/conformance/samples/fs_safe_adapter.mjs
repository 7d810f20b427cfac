// fs-safe itself, as the conformance kit asks for it: node fs_safe_adapter.mjs MODULE OPERATION [PATH]
import { pathToFileURL } from "node:url";
import { run, say } from "./adapter.mjs";

const [module, operation, path] = process.argv.slice(2);

if (operation === "abilities") {
  say("hold try recover serve");
  process.exit(0);
}
const { acquireFileLock } = await import(pathToFileURL(module));

/** The exit status. `untilTold` is resolved when the lock is to be released. */
async function answer(operation, path, untilTold) {
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
      return 2;
    }
    say(word);
    return 1;
  }
  say("held");
  await untilTold();
  await handle.release();
  return 0;
}

await run(answer, operation, path);
