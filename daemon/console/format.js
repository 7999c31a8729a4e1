// Times, counts and names as a person reads them. Pure.

const MINUTE = 60,
  HOUR = 3600,
  DAY = 86400;

// "850 ms", "1.2 s", "10 s", "42 s", "3 min 10 s", "2 h 5 min", "4 d 3 h"; of milliseconds.
export function span(milliseconds) {
  const ms = Math.max(0, milliseconds);
  const s = ms / 1000;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (s < 9.95 && ms % 1000 !== 0) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < MINUTE) return `${whole} s`;
  if (whole < HOUR) return two(whole, MINUTE, "min", 1, "s");
  if (whole < DAY) return two(whole, HOUR, "h", MINUTE, "min");
  return two(whole, DAY, "d", HOUR, "h");
}

function two(seconds, unit, name, smaller, smallerName) {
  const rest = Math.floor((seconds % unit) / smaller);
  return `${Math.floor(seconds / unit)} ${name}${rest ? ` ${rest} ${smallerName}` : ""}`;
}

// "3 s ago", "9 h ago"; of an RFC 3339 time and the present in milliseconds. Below a second it is "just now".
export function ago(time, now) {
  const passed = now - Date.parse(time);
  return passed < 1000 ? "just now" : `${largestUnit(Math.floor(passed / 1000))} ago`;
}

function largestUnit(seconds) {
  const [size, name] = [
    [DAY, "d"],
    [HOUR, "h"],
    [MINUTE, "min"],
  ].find(([unit]) => seconds >= unit) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${name}`;
}

// How long since; changes once a second, not with each tenth.
export function since(time, now) {
  return span(wholeSeconds(now - Date.parse(time)));
}

function wholeSeconds(milliseconds) {
  return Math.floor(Math.max(0, milliseconds) / 1000) * 1000;
}

// "in 3.2 s", "in 3.0 s", "in 12 s", and "now" when it is due.
export function countdown(time, now) {
  const left = Date.parse(time) - now;
  if (left <= 50) return "now";
  return left < 9950
    ? `in ${(left / 1000).toFixed(1)} s`
    : `in ${span(Math.ceil(left / 1000) * 1000)}`;
}

// Formatters are dear to make and cheap to use.
const timeOfDay = new Intl.DateTimeFormat([], { timeStyle: "medium", hourCycle: "h23" });
const dateAndTime = new Intl.DateTimeFormat([], {
  dateStyle: "medium",
  timeStyle: "medium",
  hourCycle: "h23",
});
const inFull = new Intl.DateTimeFormat([], { dateStyle: "full", timeStyle: "long" });

// "14:03:07", with the date when it was another day.
export function clock(time, now) {
  const date = new Date(time);
  const today = new Date(now).toDateString() === date.toDateString();
  return (today ? timeOfDay : dateAndTime).format(date);
}
// The whole of it, for titles.
export const exactly = (time) => inFull.format(new Date(time));

// A protobuf JSON duration, "1.500s", in milliseconds.
export const durationMs = (text) => Math.round(parseFloat(text) * 1000);

const numbers = new Intl.NumberFormat("en-GB");
// 10,000; also of protobuf JSON's 64-bit integers, which are strings.
export const count = (number) => numbers.format(Number(number ?? 0));
// "1 instance", "2 instances".
export const plural = (number, one, many = `${one}s`) =>
  `${count(number)} ${Number(number) === 1 ? one : many}`;

// How many rows a filter has left of all.
export const shownOf = (shown, all, one) =>
  shown === all ? plural(all, one) : `${plural(shown, one)} of ${count(all)} match`;

// PENDING_STATE_IN_FLIGHT of prefix PENDING_STATE is "in flight".
export function enumName(value, prefix) {
  return String(value ?? "")
    .replace(`${prefix}_`, "")
    .replaceAll("_", " ")
    .toLowerCase();
}

// google.rpc codes by name, as everybody else prints them.
const CODES = [
  "OK",
  "CANCELLED",
  "UNKNOWN",
  "INVALID_ARGUMENT",
  "DEADLINE_EXCEEDED",
  "NOT_FOUND",
  "ALREADY_EXISTS",
  "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED",
  "FAILED_PRECONDITION",
  "ABORTED",
  "OUT_OF_RANGE",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
  "UNAUTHENTICATED",
];
export const codeName = (code) => CODES[code] ?? (code === undefined ? "" : String(code));
