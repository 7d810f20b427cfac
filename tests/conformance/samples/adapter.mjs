// What adapters of libraries for Node have in common: one operation, or many of them where the kit asks to `serve`.
import fs from "node:fs";
import readline from "node:readline";

export const say = (word) => fs.writeSync(1, word + "\n");

/** `answer(operation, path, untilTold)` resolves to the exit status; `untilTold` when the lock is to be released. */
export async function run(answer, operation, path) {
  if (operation === "serve") {
    const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
    for (let { value, done } = await lines.next(); !done; { value, done } = await lines.next()) {
      const [, operation, path] = /^(\S*) ?(.*)$/.exec(value);
      if (operation) say(`exit ${await answer(operation, path, () => lines.next())}`);
    }
  } else {
    process.exitCode = await answer(operation, path, () =>
      new Promise((resolve) => process.stdin.on("end", resolve).resume())
    );
  }
}
