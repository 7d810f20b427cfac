// The sema protocol in Node, as the conformance kit asks for it: `node plain_sema.mjs OPERATION [PATH]`.
// It never reclaims a stale lock, which is permitted, so `reclaim` is none of its abilities.
import fs from "node:fs";
import readline from "node:readline";

const { O_RDONLY, O_NONBLOCK, O_NOFOLLOW } = fs.constants;
const [operation, path] = process.argv.slice(2);
const say = (text) => fs.writeSync(1, text + "\n"); // at once: stdout may be a pipe
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The fields of a record as JSON, or null for one that is malformed. */
function decode(data) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(data); // skips a byte order mark
  } catch {
    return null;
  }
  if (data.length > 1 << 20) return null;
  const found = new Map();
  for (const line of text.split("\n")) { // at LF only: other separators are data
    const at = line.indexOf("=");
    if (at >= 0) found.set(trim(line.slice(0, at)), trim(line.slice(at + 1)));
  }
  const pid = number(found.get("pid"), 2n ** 32n);
  const timestamp = number(found.get("timestamp"), 2n ** 64n);
  if (pid === null || timestamp === null) return null;
  const tag = JSON.stringify(found.get("tag") ?? null);
  return `{"pid":${pid},"timestamp":${timestamp},"tag":${tag}}`; // JSON.stringify would round a large number
}

/** White space as Unicode has it: trim() knows neither U+0085 nor the separators 1C to 1F, but takes U+FEFF for it. */
function trim(text) {
  const blank = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
  return text.replace(new RegExp(`^${blank}`), "").replace(new RegExp(`${blank}$`), "");
}

function number(text, limit) {
  if (text === undefined || text.length > 4000 || !/^\+?[0-9]+$/.test(text)) return null;
  const value = BigInt(text.replace("+", ""));
  return value < limit ? value : null;
}

/** The lock file that is now ours; null when somebody holds the lock. Throws where no lock can be. */
function attempt(path) {
  let fd;
  try {
    fd = fs.openSync(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW); // a link is an error, a FIFO opens at once
  } catch (error) {
    if (error.code === "EACCES") return null; // somebody's, who lets nobody read it
    if (error.code !== "ENOENT") throw error;
  }
  if (fd !== undefined) {
    const isFile = fs.fstatSync(fd).isFile();
    fs.closeSync(fd);
    if (!isFile) throw new Error(`${path} is no file`);
    return null; // held, or stale: that is for others to reclaim
  }
  // Whole, and exclusive: written under another name, and linked to its place, which fails if there is something.
  const whole = `${path}.${process.pid}.new`;
  const data = `pid=${process.pid}\ntimestamp=${Math.floor(Date.now() / 1000)}\n`;
  fs.writeFileSync(whole, data, { flag: "wx", mode: 0o644, flush: true });
  try {
    fs.linkSync(whole, path);
  } catch (error) {
    if (error.code !== "EEXIST") throw error;
    return null;
  } finally {
    fs.unlinkSync(whole);
  }
  const { dev, ino } = fs.lstatSync(path);
  return { data, dev, ino };
}

/** Remove the lock file, if it is still ours. */
function release(path, ours) {
  try {
    const { dev, ino } = fs.lstatSync(path);
    if (dev === ours.dev && ino === ours.ino && fs.readFileSync(path, "utf8") === ours.data) fs.unlinkSync(path);
  } catch (error) {
    if (error.code !== "ENOENT") throw error;
  }
}

async function onAPath(operation, path) {
  let ours = attempt(path);
  while (ours === null && operation === "hold") {
    await sleep(20);
    ours = attempt(path);
  }
  if (ours === null) {
    say("refused");
    return 1;
  }
  say("held");
  for await (const _ of process.stdin); // until it ends
  release(path, ours);
  return 0;
}

if (operation === "abilities") {
  say("decode decode-lines hold try");
} else if (operation === "decode") {
  const record = decode(fs.readFileSync(0));
  if (record !== null) say(record);
  process.exitCode = record === null ? 1 : 0;
} else if (operation === "decode-lines") {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    say(decode(Buffer.from(line, "hex")) ?? "malformed");
  }
} else {
  try {
    process.exitCode = await onAPath(operation, path);
  } catch (error) {
    console.error(error.message);
    process.exitCode = 2;
  }
}
