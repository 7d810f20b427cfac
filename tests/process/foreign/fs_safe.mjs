// fs-safe itself, spoken to in the way of the stand-ins (talk.py).
//
//     node fs_safe.mjs MODULE TARGET [STALE_MS]
//
// It can be stopped at `payload` and at `approve`, which are its callers' functions.
import fs from "node:fs";
import os from "node:os";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [module, target, staleMs = "30000"] = process.argv.slice(2);
const { acquireFileLock } = await import(pathToFileURL(module));

const say = (...words) => fs.writeSync(1, words.join(" ") + "\n");
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const lines = [];
let waiting = null;
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  lines.push(line.split(" "));
  waiting?.();
});

async function hear() {
  while (lines.length === 0) await new Promise((resolve) => { waiting = resolve; });
  waiting = null;
  return lines.shift();
}

const stops = new Set();
function obey([, ...names]) {
  stops.clear();
  for (const name of names) stops.add(name);
}

async function step(name) {
  if (!stops.has(name)) return;
  say("at", name);
  for (let words = await hear(); words[0] !== "go"; words = await hear()) obey(words);
}

const patient = { retries: 100000, factor: 1, minTimeout: 5, maxTimeout: 5 };
const payload = async () => {
  await step("payload");
  return { pid: process.pid, host: os.hostname(), createdAt: new Date().toISOString(), note: "ü \u2028 \"x\"" };
};
const options = { staleMs: Number(staleMs), payload };
const removing = {
  staleRecovery: "remove-if-unchanged",
  shouldReclaim: ({ payload }) => payload !== null && isDead(payload.pid),
  shouldRemoveStaleLock: async ({ payload }) => {
    await step("approve");
    return payload !== null && isDead(payload.pid);
  },
};

function isDead(pid) {
  try {
    process.kill(pid, 0);
    return false;
  } catch (error) {
    return error.code === "ESRCH";
  }
}

let held = null;
async function attempt(more) {
  try {
    held = await acquireFileLock(target, { ...options, ...more });
    return "acquired";
  } catch (error) {
    return { file_lock_timeout: "held", file_lock_stale: "stale" }[error.code] ?? `error ${error.code ?? error}`;
  }
}

function visit(state) {
  const mark = `${state}/inside`;
  let fd;
  try {
    fd = fs.openSync(mark, "wx");
  } catch {
    fs.appendFileSync(`${state}/overlaps`, `fs-safe ${process.pid} found somebody inside\n`);
    return;
  }
  fs.writeSync(fd, `fs-safe ${process.pid}`);
  fs.closeSync(fd);
  const n = Number(fs.readFileSync(`${state}/counter`, "utf8")) + 1;
  fs.writeFileSync(`${state}/counter`, String(n));
  fs.unlinkSync(mark);
}

const commands = {
  take: () => attempt({ retry: { retries: 0 } }),
  seize: () => attempt({ retry: { retries: 0 }, ...removing }),
  acquire: (timeoutMs = "60000") => attempt({ retry: patient, timeoutMs: Number(timeoutMs) }),
  verify: async () => (held.verifyStillHeld ? ((await held.verifyStillHeld()) ? "kept" : "lost") : "unknown"),
  release: async () => {
    await held.release();
    return "released";
  },
  async storm(state, pause) {
    let done = 0;
    while (fs.existsSync(`${state}/go`) || done === 0) {
      // 0.3.0 now and then calls a lock stale that was released while it looked.
      const got = await attempt({ retry: { retries: 10, factor: 1, minTimeout: 1, maxTimeout: 3 }, timeoutMs: 20 });
      if (got === "acquired") {
        visit(state);
        done += 1;
        await held.release();
      } else if (got.startsWith("error")) throw new Error(got);
      await sleep(Number(pause) * 1000);
    }
    return done;
  },
};

for (;;) {
  const words = await hear();
  if (words[0] === "stop") obey(words);
  else say(await commands[words[0]](...words.slice(1)));
}
