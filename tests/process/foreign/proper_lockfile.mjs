// proper-lockfile itself, spoken to in the way of the stand-ins (talk.py).
//
//     node proper_lockfile.mjs MODULE TARGET [STALE_MS [UPDATE_MS [REALPATH]]]
//
// It can be stopped before any of its own steps on the filesystem: mkdir, stat, rmdir, utimes.
import fs from "node:fs";
import { createRequire } from "node:module";
import readline from "node:readline";

const [module, target, staleMs = "10000", updateMs = "", realpath = "yes"] = process.argv.slice(2);
const lockfile = createRequire(import.meta.url)(module);

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

const stepped = { ...fs };
for (const name of ["mkdir", "stat", "rmdir", "utimes"])
  stepped[name] = (...words) => { step(name).then(() => fs[name](...words)); };

let told = 0;
const options = {
  stale: Number(staleMs),
  update: updateMs ? Number(updateMs) : null,
  realpath: realpath === "yes",
  fs: stepped,
  onCompromised: () => { told += 1; },
};

let release = null;
async function attempt(more) {
  try {
    release = await lockfile.lock(target, { ...options, ...more });
    return "acquired";
  } catch (error) {
    return error.code === "ELOCKED" ? "held" : `error ${error.code ?? error}`;
  }
}

function visit(state) {
  const mark = `${state}/inside`;
  let fd;
  try {
    fd = fs.openSync(mark, "wx");
  } catch {
    fs.appendFileSync(`${state}/overlaps`, `proper-lockfile ${process.pid} found somebody inside\n`);
    return;
  }
  fs.writeSync(fd, `proper-lockfile ${process.pid}`);
  fs.closeSync(fd);
  const n = Number(fs.readFileSync(`${state}/counter`, "utf8")) + 1;
  fs.writeFileSync(`${state}/counter`, String(n));
  fs.unlinkSync(mark);
}

const commands = {
  take: () => attempt({}),
  acquire: () => attempt({ retries: { retries: 100000, factor: 1, minTimeout: 5, maxTimeout: 5 } }),
  check: async () => ((await lockfile.check(target, options)) ? "held" : "free"),
  told: () => told,
  async release() {
    try {
      await release();
      return "released";
    } catch (error) {
      return error.code === "ERELEASED" ? "lost" : `error ${error.code ?? error}`;
    }
  },
  async storm(state, pause) {
    let done = 0;
    while (fs.existsSync(`${state}/go`) || done === 0) {
      const got = await attempt({});
      if (got === "acquired") {
        visit(state);
        done += 1;
        await release();
      } else if (got !== "held") throw new Error(got);
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
