// Adds 1 to the number in a file, so many times: node polyglot.mjs COUNTER LOCK TIMES
//
// The whole of the sema protocol in plain Node, with the same limit as polyglot.sh: no proof of death.
import { closeSync, openSync, readFileSync, unlinkSync, writeFileSync, writeSync } from "node:fs";
import { setTimeout } from "node:timers/promises";

const [counter, lock, times] = process.argv.slice(2);

async function create() {
  for (;;) {
    try {
      return openSync(lock, "wx", 0o644); // exclusively: EEXIST if it is there, whoever made it
    } catch (error) {
      if (error.code !== "EEXIST") throw error;
      await setTimeout(2);
    }
  }
}

for (let left = Number(times); left > 0; left--) {
  const fd = await create(); // empty until the next line: that counts as held
  try {
    writeSync(fd, `pid=${process.pid}\ntimestamp=${Math.floor(Date.now() / 1000)}\ntag=counting in Node\n`);
    closeSync(fd);
    writeFileSync(counter, `${Number(readFileSync(counter, "utf8")) + 1}\n`);
  } finally {
    unlinkSync(lock);
  }
}
