// What the functions of fs-safe's file lock do, told as JSON: test_foreign_fs_safe_api.py asks the same of holdfast.sidecar.
//
//     node fs_safe_api.mjs PACKAGE SCENARIO DIRECTORY
//
// PACKAGE is its directory `dist`.
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [dist, scenario, directory] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(path.join(dist, name)));
const { acquireFileLock, createFileLockManager } = await load("file-lock.js");

const target = path.join(directory, "state.json");
const lock = `${target}.lock`;
const once = { retry: { retries: 0 }, payload: () => ({ pid: process.pid }) };
const old = new Date(Date.now() - 3600_000);

function put(text) {
  fs.writeFileSync(lock, text);
  fs.utimesSync(lock, old, old);
}

async function outcome(acquiring) {
  try {
    await acquiring;
    return "acquired";
  } catch (error) {
    return error.code ?? error.name;
  }
}

const scenarios = {
  async reentrant() {
    const options = { ...once, managerKey: "m", reentrantOwner: "one" };
    const first = await acquireFileLock(target, options);
    const second = await acquireFileLock(target, options);
    const told = [];
    for (const more of [{ reentrantOwner: "two" }, { reentrantOwner: undefined }, { managerKey: "n" }]) {
      told.push(await outcome(acquireFileLock(target, { ...options, ...more })));
    }
    await second.release();
    await second.release();
    told.push(fs.existsSync(lock), await first.verifyStillHeld());
    await first.release();
    return [...told, fs.existsSync(lock)];
  },
  async parse() {
    const told = [];
    const options = {
      ...once,
      parsePayload: (raw) => ({ words: raw.split(" ") }),
      shouldReclaim: ({ payload, heldByThisProcess }) => told.push(payload, heldByThisProcess) && payload.words[1] === "dead",
      shouldRemoveStaleLock: ({ raw, payload }) => told.push(raw, payload),
      staleRecovery: "remove-if-unchanged",
    };
    put("builder alive");
    told.push(await outcome(acquireFileLock(target, options)));
    put("builder dead");
    told.push(await outcome(acquireFileLock(target, options)));
    return told;
  },
  async parsedAge() {
    const told = [];
    for (const createdAt of [new Date().toISOString(), old.toISOString(), 3, null]) {
      put("x");
      told.push(await outcome(acquireFileLock(target, { ...once, parsePayload: () => ({ createdAt }) })));
    }
    return told;
  },
  async parseFails() {
    put("x");
    const fails = () => { throw Object.assign(new Error("no"), { code: "mine" }); };
    return [await outcome(acquireFileLock(target, { ...once, parsePayload: fails })), fs.readFileSync(lock, "utf8")];
  },
  async root() {
    const { root } = await load("root.js");
    const lockRoot = await root(path.join(directory, "locks"));
    const at = (lockPath) => outcome(acquireFileLock(path.join(directory, "absent", "x"), { ...once, lockRoot, lockPath }));
    const inside = await at(path.join(directory, "locks", "sub", "x.lock"));
    const told = [inside, fs.existsSync(path.join(directory, "locks", "sub", "x.lock"))];
    for (const outside of ["elsewhere/x.lock", "link/x.lock", "locks/out/x.lock"]) {
      told.push((await at(path.join(directory, outside))) === "acquired");
    }
    return [...told, fs.existsSync(path.join(directory, "absent")), fs.readdirSync(path.join(directory, "elsewhere"))];
  },
  async compromised() {
    const told = [];
    const handle = await acquireFileLock(target, {
      ...once, onCompromised: (info) => told.push(info), compromiseCheckIntervalMs: 5,
    });
    fs.unlinkSync(lock);
    while (told.length === 0) await new Promise((resolve) => setTimeout(resolve, 1));
    await handle.release();
    return told;
  },
  async reset() {
    const manager = createFileLockManager("m");
    const handle = await manager.acquire(target, { ...once, metadata: { why: "test" } });
    const told = [manager.heldEntries().map(({ lockPath, metadata }) => [lockPath, metadata])];
    manager.reset();
    told.push(manager.heldEntries().length, fs.existsSync(lock), await handle.verifyStillHeld());
    await handle.release();
    return told;
  },
  async force() {
    const manager = createFileLockManager("m");
    const options = { ...once, reentrantOwner: "one" };
    const handles = [await manager.acquire(target, options), await manager.acquire(target, options)];
    const [entry] = manager.heldEntries();
    const told = [await entry.forceRelease(), fs.existsSync(lock), manager.heldEntries().length, await entry.forceRelease()];
    for (const handle of handles) {
      told.push(await handle.verifyStillHeld());
      await handle.release();
    }
    return told;
  },
  async tries() {
    let asked = 0;
    put("{}");
    const shouldReclaim = async () => {
      asked += 1;
      await new Promise((resolve) => setTimeout(resolve, 20));
      return false;
    };
    const retry = { retries: 3, minTimeout: 1, maxTimeout: 1 };
    return [await outcome(acquireFileLock(target, { ...once, retry, shouldReclaim })), asked >= 4];
  },
  async elsewhere() {
    await acquireFileLock(target, { ...once, managerKey: "m", lockPath: `${target}.other` });
    put("{}");
    const told = [];
    for (const managerKey of ["m", "n"]) {
      const shouldReclaim = (params) => told.push(params.heldByThisProcess) && false;
      await outcome(acquireFileLock(target, { ...once, managerKey, shouldReclaim, lockPath: lock }));
    }
    return told.slice(0, 1).concat(told.slice(-1));
  },
  async retain() {
    await acquireFileLock(target, { ...once, retainOnExit: true });
    await acquireFileLock(`${target}2`, once);
    return fs.existsSync(lock);
  },
};

fs.writeSync(1, JSON.stringify(await scenarios[scenario]()) + "\n");
